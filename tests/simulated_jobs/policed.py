"""A job on simulated boards under the policy that its conductors share."""

from collections.abc import Iterator

import numpy as np

from simulated_jobs.job import Iteration, SimulatedJob
from underclock.core.job.timeline import auto_clocks
from underclock.records.job import COMPUTES
from underclock.runtime.policy.job import JobPolicy, Order


def policed(running: SimulatedJob, policy: JobPolicy) -> Iterator[Iteration]:
    """Run iterations without end, or until a rank dies, each at what the policy orders.

    Ranks are armed as the first begins; an order holds from the next iteration on.
    """
    job = running.job
    every = [each for rank in job.ranks for each in rank.instructions]
    firsts = np.cumsum([0, *(len(rank.instructions) for rank in job.ranks)])
    computes = np.array([each.kind in COMPUTES for each in every])
    for rank in range(len(job.ranks)):
        policy.armed(rank)
    while True:
        each = running.iterate()
        taken_s = np.where(computes, each.ends_s - each.begins_s, 0.0) if each.ended else None
        order: Order | None = None
        for rank in range(len(job.ranks)):
            own = slice(firsts[rank], firsts[rank + 1])
            if taken_s is not None:
                busy_s = float(taken_s[own].sum())
                order = policy.passed(rank, each.time_s, busy_s) or order
            elif not np.isfinite(each.ends_s[own]).all():
                order = policy.lost(rank, "it waits for a rank that died, or is it") or order
        if order is not None:
            _follow(running, policy, order)
        yield each
        if not each.ended:
            return


def _follow(running: SimulatedJob, policy: JobPolicy, order: Order) -> None:
    auto = auto_clocks(running.job)
    running.follow(
        tuple(
            auto[rank] if point is None else policy.points[point].clocks[rank]
            for rank, point in enumerate(order.points)
        )
    )
