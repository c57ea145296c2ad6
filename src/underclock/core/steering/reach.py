"""How far company moved the clock: what steering reached, and what readers must know of that."""

import math

from underclock.core.steering.taking_off import HUNTS_MHZ
from underclock.core.step.cap import is_power_capped
from underclock.records import SampleSet, Window


def at_cap(sample: Window, limit_w: float | None) -> bool:
    """Whether the power cap held a measurement's clock."""
    return bool(is_power_capped([sample], limit_w or math.inf)[0])


def reach_mhz(sample_set: SampleSet) -> tuple[float, float] | None:
    """Return the lowest and highest core clock at which kernels ran where none was ever set.

    Returns:
        The clocks; ``None`` where clocks were held, or nothing ran in company.
    """
    steered = all(window.asked.is_auto for window in sample_set.windows) and any(
        sample.in_company for sample in sample_set.mixed
    )
    seen = [sample.at_mhz for sample in sample_set.mixed if sample.kernel_s]
    return (min(seen), max(seen)) if seen and steered else None


def told(sample_set: SampleSet) -> tuple[str, ...]:
    """Say what a reader of measurements in company must know of them; nothing of other samples."""
    mixed = sample_set.mixed
    reach = reach_mhz(sample_set)
    if reach is None:
        return ()
    lowest, highest = (f"{mhz:.0f}" for mhz in reach)
    sentence = (
        f"clocks were steered by company, not set: only core clocks from {lowest} to {highest} "
        "MHz are known; what lower ones and other memory clocks would save cannot be seen"
    )
    sentences = [sentence]
    limit_w = sample_set.gpu.power_limit_w
    if not any(at_cap(sample, limit_w) for sample in mixed):
        most_w = max(sample.energy_j / sample.time_s for sample in mixed)
        limit = "unknown" if limit_w is None else f"{limit_w:g} W"
        sentence = (
            f"nothing steers this GPU: it drew {most_w:.0f} W at most, below its power limit "
            f"({limit}), and ran at {highest} MHz whatever the company; with root it can be "
            "measured at clocks that are held"
        )
        sentences = [sentence]
    wild = [sample for sample in mixed if sample.spread_mhz > HUNTS_MHZ]
    if wild:
        worst = max(wild, key=lambda sample: sample.spread_mhz)
        what = repr(worst.kernel) if worst.kernel else "the step"
        sentences.append(
            f"the core clock hunted in {len(wild)} of {len(mixed)} measurements in company, in one "
            f"of {what} by {worst.core_spread_mhz:.0f} MHz around {worst.core_mhz:.0f}: these "
            "count less"
        )
    return tuple(sentences)
