"""A replica is slower: what the others do meanwhile, and what power that leaves to it."""

from bisect import bisect_right
from collections.abc import Collection

import numpy as np

from underclock.core.job.costs import auto_clocks, rank_power_w
from underclock.errors import UsageError
from underclock.records.job import JobPlan, JobPoint


def at_time(plan: JobPlan, time_s: float) -> JobPoint:
    """Return the slowest stored plan that is no later than a time; the fastest where all are.

    Nothing is solved, so it may be asked while a job runs.

    Args:
        plan: With a frontier.
        time_s: Of an iteration: what the straggler makes of it.

    Raises:
        UsageError: The plan has no frontier.
    """
    if not plan.frontier:
        raise UsageError(
            "the plan has no plans for other times", hint="plan the job again: underclock plan"
        )
    times_s = [point.cost.time_s for point in plan.frontier]
    return plan.frontier[max(bisect_right(times_s, time_s * (1.0 + _ROUNDING)) - 1, 0)]


_ROUNDING = 1e-9


def movable_w(plan: JobPlan, point: JobPoint, straggler: int, node: Collection[int]) -> float:
    """Return by how much the straggler's power limit may be raised inside its node's power.

    What the node's other ranks draw less than at auto in the mean of an iteration, as far as the
    straggler's limit may be set. Peaks of the others are theirs: their limits have to be lowered by
    as much before.

    Args:
        plan: Of the job.
        point: What the others run.
        straggler: The rank that is slow.
        node: Ranks that share a power budget.

    Returns:
        In W; 0 where the limit is not known to be settable.
    """
    others = [rank for rank in node if rank != straggler]
    before_w = rank_power_w(plan.job, auto_clocks(plan.job))
    now_w = rank_power_w(plan.job, point.clocks, plan.latency_s)
    freed_w = float(np.maximum(before_w - now_w, 0.0)[others].sum())
    gpu = plan.job.gpu_of(straggler)
    if gpu.power_limit_w is None or gpu.power_range_w is None:
        return 0.0
    return max(min(freed_w, gpu.power_range_w[1] - gpu.power_limit_w), 0.0)
