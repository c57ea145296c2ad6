"""At which clocks kernels run inside a step that is longer than the cap's window.

The cap lowers the clock where neighbours draw much, and a GPU shows its clock too seldom to say of
which launch it was. What the fit expects of the step under its cap says it, nearly.

Shape letters: K kernels, C core clocks.
"""

from collections.abc import Sequence

import numpy as np

from underclock.arrays import Floats
from underclock.core.model.laplace import FittedModel
from underclock.core.model.predictive import posterior_of
from underclock.core.steering.taking_off import Paces
from underclock.core.step.cap import LaunchCosts, PowerCap, clock_moves, settled_at
from underclock.core.step.overlap import waited_shares
from underclock.core.step.table import step_means
from underclock.core.step.under_cap import memories_like_auto
from underclock.records import Clocks, SampleSet

_FEWEST = 2  # clocks between which a step settles


def step_paces(
    sample_set: SampleSet, model: FittedModel, settings: Sequence[Clocks], temperature_c: float
) -> Paces | None:
    """Say at which clocks kernels run inside the step at auto.

    A clock is as unsure as the clocks of kernels differ: a real loop moves in bins, and late.

    Args:
        sample_set: With the step at auto, its launches timed.
        model: A fit of what is known without them.
        settings: Clocks of the GPU.
        temperature_c: Of the step.

    Returns:
        ``None`` where nothing moves the clock within the step, or too little is known of it.
    """
    moved = [s for s in sample_set.mixed if s.asked.is_auto and not s.in_company and clock_moves(s)]
    locked = tuple(dict.fromkeys(clocks for clocks in settings if clocks.core_mhz is not None))
    if not (moved and sample_set.in_situ and sample_set.order and locked):
        return None
    memory = memories_like_auto(locked, sample_set)[0]
    same = sorted((c for c in locked if c.mem_mhz == memory), key=lambda clocks: clocks.rank)
    if len(same) < _FEWEST:
        return None
    posterior = posterior_of(
        model, tuple(same), temperature_c=temperature_c, limit_w=model.rows.peak_w
    )
    time_s = np.exp(posterior.log_s) * waited_shares(sample_set.kernels)[:, None]
    costs = LaunchCosts(
        settings=tuple(same), time_s=time_s, energy_j=time_s * np.exp(posterior.log_w)
    )
    real_s, real_j = step_means(sample_set.in_situ)
    order = np.array(sample_set.order, dtype=np.int64)
    cap = PowerCap(limit_w=real_j / real_s, order=order, boost=len(same) - 1)
    _, settled = settled_at(cap, costs, real_j / real_s)
    ratio, apart = settled.paces(order)
    core = np.array([clocks.core_mhz for clocks in same], dtype=np.float64)
    error = apart * _slopes(posterior.log_s, np.log(core), np.log(ratio * settled.mean_mhz))
    return Paces(ratio=ratio, windows=1.0 / (1.0 + (error / model.errors.noise[0]) ** 2))


def _slopes(log_s: Floats, log_mhz: Floats, at: Floats) -> Floats:
    """Return how log time goes with log clock. Shape (K,).

    Args:
        log_s: Of each kernel at each clock. Shape (K, C).
        log_mhz: The clocks, ascending. Shape (C,).
        at: Where to look, of each kernel. Shape (K,).
    """
    slopes = np.gradient(log_s, log_mhz, axis=1)
    values: Floats = np.array(
        [np.interp(x, log_mhz, row) for x, row in zip(at, slopes, strict=True)]
    )
    return np.abs(values)
