"""Whether a fitted GPU is unlike those that its prior was made of, in words."""

import numpy as np

from underclock.core.model.most_likely import FittedModel
from underclock.core.model.sample_sets import UNKNOWN_MHZ

_WORTH_SAYING = 1.5  # times further from usual than usual GPUs are
# Of the shared vector: in words, its unit, and how many of that unit one of the model's is.
_WORDS = (
    ("exponent that joins a kernel's parts", "", 1.0),
    ("crossbar's least clock", "MHz", 1.0),
    ("voltage rises from", "MHz", 1.0),
    ("rise of voltage there", "mV/MHz", 1e3),
    ("how the rise steepens", "mV/GHz²", 1e9),
    ("leakage at 1 V and 25 °C", "W", 1.0),
    ("clock tree at 1 V", "W/GHz", 1.0),
    ("rise of leakage", "%/°C", 100.0),
    ("DRAM traffic", "mJ/Mcycle", 1e3),
    ("crossbar cycles per DRAM cycle", "", 1.0),
)


def prior_doubt(model: FittedModel) -> tuple[str, ...]:
    """Say that a GPU is unlike those that the prior was made of, where the rows show it."""
    if model.shared_scale < _WORTH_SAYING:
        return ()
    family = model.parameters.family
    own = slice(len(model.parameters.shared) - family.common)  # errors in common come last
    away = (model.parameters.shared[own] - family.start()[own]) / family.spread()[own]
    most = int(np.abs(away).argmax())
    name, unit, size = _words(model)[most]
    value, usual = (
        size * float(np.exp(vector[own][most]))
        for vector in (model.parameters.shared, family.start())
    )
    unit = f" {unit}" if unit else ""
    words = (
        f"this GPU's constants lie {model.shared_scale:.1f} times further from the usual than "
        f"those of other GPUs, most of all {name!r}: {value:.3g}{unit}, usually about "
        f"{usual:.3g}. What the samples do not tell of it is taken to be as much less sure"
    )
    return (words,)


def _words(model: FittedModel) -> tuple[tuple[str, str, float], ...]:
    """Return names, units, and how many of that unit one of the model's is."""
    gpu = model.parameters.family.base
    memory = [f"{mhz:g} MHz" for mhz in gpu.mem_points_mhz if mhz > UNKNOWN_MHZ] or ["any clock"]
    return (
        *_WORDS,
        *[(f"memory at {clock}", "W", 1.0) for clock in memory],
        *[(f"bytes per cycle at {clock}", f"of {memory[-1]}", 1.0) for clock in memory[:-1]],
    )
