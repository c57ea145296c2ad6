"""A log of clocks, laid over the kernels of the step that ran while it was taken.

Shape letters: N log entries, L launches of a step.
"""

from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPeriod:
    """When steps began, if all are equally long.

    Attributes:
        start_s: When step 0 began, on the log's clock.
        step_s: Length of a step.
    """

    start_s: float
    step_s: float


def fit_period(at_s: Floats, done: Ints) -> StepPeriod:
    """Find when steps end from a count of finished steps that was read along with the log.

    A count is read some time after a step's end, never before, so of all reads that first show a
    new count the earliest ones, relative to evenly spaced ends, lie nearest to the ends.

    Args:
        at_s: When the count was read, ascending. Shape (N,).
        done: Steps finished. Shape (N,).

    Raises:
        DataError: Fewer than two counts were seen to change.
    """
    changed = np.flatnonzero(np.diff(done) > 0) + 1
    if len(changed) < 2:  # noqa: PLR2004 - a line needs two points
        raise DataError(
            "too few steps ended while the log was taken", hint="log for longer: --for 10s"
        )
    seen_s, count = at_s[changed], done[changed].astype(np.float64)
    step_s, first_s = np.polyfit(count, seen_s, 1)
    early_s = float((seen_s - (first_s + step_s * count)).min())
    return StepPeriod(start_s=float(first_s) + early_s, step_s=float(step_s))


def launch_at(at_s: Floats, period: StepPeriod, duration_s: Floats) -> Ints:
    """Return which launch of the step ran at each moment.

    Args:
        at_s: Moments, on the log's clock. Shape (N,).
        period: When steps began.
        duration_s: Duration of each launch in turn, in any unit, for only their shares of a step
            count. Shape (L,).

    Returns:
        Indices into the launches. Shape (N,).
    """
    phase = ((at_s - period.start_s) / period.step_s) % 1.0
    ends = np.cumsum(duration_s) / duration_s.sum()
    return np.minimum(np.searchsorted(ends, phase, side="right"), len(duration_s) - 1)
