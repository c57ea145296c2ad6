"""What studies ask of the estimate of costs: from replayed samples, and from steered files.

Shape letters: K kernels, S settings of the estimate, N predictions.
"""

from collections import Counter
from functools import cache
from typing import TypeAlias

import msgspec
import numpy as np

from calibrate_h200 import read as read_steered
from steered_h200 import compare, reached
from underclock.arrays import Floats
from underclock.core.model.costs import Costs
from underclock.core.model.estimate import at_locked_clocks, estimate
from underclock.core.model.most_likely import clocks_of, fit_rows, temperature_of
from underclock.core.model.parameters import Rows
from underclock.records import ALONE, Clocks, Evidence, SampleSet, Window

Figures: TypeAlias = dict[str, float]

SIGMAS = 1.96
_LEFT_OUT = 0.3  # of what steering measured of kernels


def costs_of(sample_set: SampleSet, baseline: Clocks) -> Costs:
    """Return what samples say of every setting; they count as read off a table."""
    replayed = msgspec.structs.replace(sample_set, evidence=Evidence.REPLAYED)
    return estimate(replayed, baseline=baseline).costs


def of_rows(costs: Costs) -> tuple[Floats, Floats]:
    """Return what one more row of each kernel is expected to show.

    Returns:
        Logarithms of time in s and energy in J of one launch, nan where unknown, and their standard
        deviations. Shapes (2, K, S).
    """
    launches = costs.table.launches
    return (
        np.log([launches.time_s, launches.energy_j]),
        np.sqrt([costs.variance(1.0, 0.0), costs.variance(0.0, 1.0)]),
    )


def figures_of(off: Floats, deviation: Floats, names: tuple[str, ...]) -> Figures:
    """Return error, coverage and width of predictions of some logarithms. Shapes (n, N)."""
    if not off.size:
        return {}
    inside = np.abs(off) <= SIGMAS * deviation
    return {
        f"{name} {what}": float(value)
        for name, o, d, i in zip(names, off, deviation, inside, strict=True)
        for what, value in (
            ("rms", np.sqrt((o**2).mean())),
            ("covered", i.mean()),
            ("±", SIGMAS * np.median(d)),
        )
    }


@cache
def _reference(name: str) -> tuple[SampleSet, Rows]:
    """Return what steering measured of kernels that it reached, and the rows it comes to."""
    whole = reached(read_steered(name)).sample_set
    return whole, fit_rows(whole, whole.settings)[0]


def steered_fit(name: str, seed: int) -> Figures:
    """Predict rows that are left out, and the step at auto as if nobody had looked at it."""
    whole, rows = _reference(name)
    some = msgspec.structs.replace(whole, windows=_windows_drawn(whole, seed))
    kept, model = fit_rows(some, whole.settings)
    known, every = (
        list(zip(each.kernel.tolist(), each.log[0].tolist(), strict=True)) for each in (kept, rows)
    )
    out = np.array([one not in known for one in every])
    k, windows = rows.kernel[out], rows.windows[:, out]
    asked = [Clocks(core_mhz=round(mhz)) for mhz in rows.core_mhz[out].tolist()]
    settings = tuple(dict.fromkeys(asked))
    column = np.array([settings.index(clocks) for clocks in asked])
    clocks = clocks_of(model.rows, settings)
    one = at_locked_clocks(model, clocks, settings, temperature_of(whole))[0]
    off = rows.log[:, out] - one.log[:, k, column]
    variance = np.stack([one.variance(1.0, 0.0), one.variance(0.0, 1.0)])[:, k, column]
    figures: Figures = {}
    for q, quantity in enumerate(("time", "power")):
        there = windows[q] > 0.0
        noise2 = one.noise[q, k[there]] ** 2 / windows[q, there]
        deviation = np.sqrt(variance[q, there] + noise2)
        figures |= figures_of(off[[q]][:, there], deviation[None], (quantity,))
    step = compare(whole, with_auto=False)
    return figures | {
        "step's time off": abs(step.time),
        "step's energy off": abs(step.energy),
        "its kernels' times rms": float(np.sqrt((step.kernels**2).mean())),
    }


def _windows_drawn(whole: SampleSet, seed: int) -> tuple[Window, ...]:
    """Leave out some runs of the step in company, and of kernels that ran in several mixes."""
    random = np.random.default_rng(seed)
    mixes = Counter(sample.kernel for sample in whole.mixed)
    kept = []
    for sample in whole.windows:
        spare = sample.in_company if sample.is_step else mixes[sample.kernel] > 1
        if (sample.is_step or sample.kernel) and spare and random.random() < _LEFT_OUT:
            mixes[sample.kernel] -= 1
            if sample.mix == ALONE:
                kept.append(sample.untimed())
            continue
        kept.append(sample)
    return tuple(kept)
