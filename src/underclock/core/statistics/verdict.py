"""Whether a plan kept its promise, as far as repeats can tell.

Shape letters: N repeats of each arm.

Auto and plan ran N times each, and the mean change over all N² pairs of runs is estimated.
The pairs share runs, so they are no N² independent observations: the bootstrap resamples the runs
of each arm, not the pairs, and takes all pairs of what it drew.

A bootstrap of few runs is too narrow: it knows the scatter of the runs it saw, divided by N, not
by N - 1, and takes that scatter as known. Each arm's resampled deviations are therefore widened by
√(N / (N - 1)), and the percentiles by Student's t over the normal quantile, with the degrees of
freedom that Welch's approximation gives two arms of unequal scatter. docs/model.md says how often
such an interval holds the truth.
"""

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from underclock.arrays import Floats
from underclock.core.statistics.student import student_quantile
from underclock.records import MOST_REPEATS, TOLERANCE, Spread, Verdict

RESAMPLES = 10_000
_TAIL = 0.025  # beyond either end of a 95 % interval
_Z = NormalDist().inv_cdf(1.0 - _TAIL)
_POWER_Z = NormalDist().inv_cdf(0.8)
_ROUNDING = 1e-9


def pair_changes(auto: Floats, plan: Floats) -> Floats:
    """Return plan over auto minus one for every pair, as arXiv 2601.08539 does. Shape (N, N)."""
    return plan[None, :] / auto[:, None] - 1.0


def spread(changes: Floats) -> Spread:
    """Return mean and extremes; less is better."""
    return Spread(
        mean=float(np.mean(changes)), best=float(np.min(changes)), worst=float(np.max(changes))
    )


def count_within(changes: Floats, limit: float) -> int:
    """Count the pairs whose change does not exceed a limit."""
    return int(np.count_nonzero(changes <= limit + _ROUNDING))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanChange:
    """The mean change of one quantity from auto to plan, over all pairs of runs."""

    mean: float  # fraction of auto
    # low and high end of the 95 % confidence interval; ``None`` of a single run
    interval: tuple[float, float] | None
    repeats: int  # runs of each arm
    standard_error: float = 0.0  # of the mean; 0 of a single run
    freedom: float = 1.0  # degrees of freedom of the standard error


def mean_change(
    auto: Floats, plan: Floats, random: np.random.Generator, *, resamples: int = RESAMPLES
) -> MeanChange:
    """Return the mean change over all pairs of runs, and its bootstrap interval.

    Runs without any scatter give an interval without width; the caller must know that they were
    measured one by one, and not copied.

    Args:
        auto: One total per run, positive. Shape (N,).
        plan: One total per run, positive. Shape (N,).
        random: Where the resamples come from.
    """
    repeats = auto.size
    mean = float(np.mean(pair_changes(auto, plan)))
    if repeats == 1:
        return MeanChange(mean=mean, interval=None, repeats=1)
    # The mean over all pairs of plan / auto is mean(plan) x mean(1 / auto).
    arms = plan / plan.mean(), (1.0 / auto) / (1.0 / auto).mean()
    variances = [float(np.var(arm, ddof=1)) / repeats for arm in arms]
    variance = math.fsum(variances)
    if math.sqrt(variance) <= _ROUNDING:
        return MeanChange(mean=mean, interval=(mean, mean), repeats=repeats)
    shares = [each / variance for each in variances]
    freedom = (repeats - 1) / math.fsum(share**2 for share in shares)
    widen = math.sqrt(repeats / (repeats - 1))
    drawn = [
        arm[random.integers(0, repeats, (resamples, repeats))].mean(axis=1) - 1.0 for arm in arms
    ]
    products = (1.0 + widen * drawn[0]) * (1.0 + widen * drawn[1])
    ends = np.quantile(products, (_TAIL, 1.0 - _TAIL)) - 1.0
    stretch = student_quantile(freedom) / _Z * (1.0 + mean)
    low, high = (mean + stretch * float(end) for end in ends)
    error = math.sqrt(variance) * (1.0 + mean)
    return MeanChange(
        mean=mean, interval=(low, high), repeats=repeats, standard_error=error, freedom=freedom
    )


def judge(
    energy: MeanChange,
    time: MeanChange,
    *,
    promise: float,
    budget: float | None,
    tolerance: float = TOLERANCE,
) -> tuple[Verdict, int | None]:
    """Say whether a plan kept its promise of energy within its budget of time.

    A promise without bias is the expected saving: the truth lies as often above it as below. Held
    to the very number, a plan that is exactly right would stay undecided for ever, and more runs
    would only find out on which side of it the promise was rounded. So a promise that says how sure
    it is is held to the worse end of its interval, and a shortfall of up to ``tolerance`` counts as
    kept: both bounds are raised by it:

    * ``kept``: the whole interval of energy is at or below promise + tolerance, and the whole
      interval of time at or below budget + tolerance.
    * ``not kept``: either interval is wholly above its bound.
    * ``inconclusive``: anything else.

    A plan beyond a bound is called kept in about 2.5 % of validations at most; one within both is
    called not kept in about 2.5 % for energy and 2.5 % for time at most. That is for one validation
    with its repeats settled beforehand: repeating until the verdict pleases errs more often.

    Args:
        promise: Greatest change of energy that the promise allows: the upper end of its interval,
            or what it promised where it has none. A saving is negative.
        budget: Greatest change of time allowed; ``None`` where time was free.
        tolerance: How far beyond either bound still counts as kept, as a fraction of auto.

    Returns:
        The verdict, and the repeats of each arm, beyond those there are, that would decide:
        ``None`` where the verdict is known, nothing can be said, or `MOST_REPEATS` would not do.
    """
    bounded = [(energy, promise + tolerance)]
    if budget is not None:
        bounded.append((time, budget + tolerance))
    sides = [Verdict.of(change.interval, bound) for change, bound in bounded]
    further, verdict = None, Verdict.of_all(sides)
    if verdict is Verdict.INCONCLUSIVE:
        # How many more repeats would probably decide changes that are to be within bounds.
        undecided = [each for each, side in zip(bounded, sides, strict=True) if side is verdict]
        needed = [(_needed(*each), each[0].mean > each[1]) for each in undecided]
        broken = [count for count, is_broken in needed if is_broken]
        if broken:
            further = min((count for count in broken if count is not None), default=None)
        else:
            known = [count for count, _ in needed if count is not None]
            further = max(known) if len(known) == len(needed) else None
    return verdict, further


def _needed(change: MeanChange, bound: float) -> int | None:
    """Return the further repeats that decide four times in five, if mean and scatter stay."""
    if change.interval is None:
        return None
    distance = abs(change.mean - bound)

    def decides(repeats: int) -> bool:
        freedom = change.freedom * (repeats - 1) / (change.repeats - 1)
        error = change.standard_error * math.sqrt(change.repeats / repeats)
        return (student_quantile(freedom) + _POWER_Z) * error <= distance

    candidates = range(change.repeats + 1, MOST_REPEATS + 1)
    further = 1 + bisect_left(candidates, True, key=decides)
    return further if further <= len(candidates) else None


def paired_change(pairs: Sequence[tuple[float, float]]) -> MeanChange:
    """Return the mean change from the first to the second of each pair, and its interval.

    What both of a pair share is in neither: the logarithms of the ratios are one sample, and
    Student's t says how far its mean may be off.
    """
    logs = [math.log(second / first) for first, second in pairs]
    mean, count = statistics.fmean(logs), len(logs)
    if count == 1:
        return MeanChange(mean=math.expm1(mean), interval=None, repeats=1)
    error = statistics.stdev(logs) / math.sqrt(count)
    reach = student_quantile(count - 1) * error
    return MeanChange(
        mean=math.expm1(mean),
        interval=(math.expm1(mean - reach), math.expm1(mean + reach)),
        repeats=count,
        standard_error=error * math.exp(mean),
        freedom=count - 1.0,
    )
