"""Plans of small jobs: a pipeline of equal stages whose instructions follow the core clock."""

import msgspec
import numpy as np

from underclock.core.job.network import network_of
from underclock.core.job.schedules import Layout, pipeline
from underclock.records import Arm, Cost, Evidence, GpuInfo, Status, Strategy
from underclock.records.job import (
    Held,
    Job,
    JobPlan,
    JobPoint,
    Profile,
    ProfileRow,
    RankClocks,
    Waiting,
)

CLOCKS_MHZ = (1800, 1755, 1710, 1665, 1620, 1500, 1350)
"""That instructions were measured at, besides auto; the highest is as fast as auto."""
GPU = GpuInfo(name="RTX 3080 Ti", power_limit_w=350.0)


def profile(auto_s: float) -> Profile:
    """Return what an instruction costs: time as one over the clock, power as its square."""
    rows = [ProfileRow(time_s=auto_s, energy_j=300.0 * auto_s)]
    for mhz in CLOCKS_MHZ:
        ratio = mhz / CLOCKS_MHZ[0]
        power_w = 60.0 + 230.0 * ratio**2
        rows.append(
            ProfileRow(core_mhz=mhz, time_s=auto_s / ratio, energy_j=power_w * auto_s / ratio)
        )
    return Profile(rows=tuple(rows), auto=0)


def job(
    schedule: str = "1f1b", *, unit_s: float = 0.01, gpu: GpuInfo = GPU, **shape: object
) -> Job:
    """Return a job whose forwards take ``unit_s`` and whose backwards twice that."""
    made = Layout(**{"stages": 2, "microbatches": 4, **shape})  # type: ignore[arg-type]
    profiles = {
        f"stage {stage} {kind}": profile(unit_s * times)
        for stage in range(made.stages)
        for kind, times in (("forward", 1.0), ("backward", 2.0))
    }
    waiting = dict.fromkeys(range(made.stages), (Waiting(power_w=60.0),))
    return pipeline(
        schedule, made, profiles, waiting=waiting, gpu=gpu, workload="small",
        evidence=Evidence.SIMULATED,
    )  # fmt: skip


def all_at(of: Job, row: int) -> tuple[RankClocks, ...]:
    """Return clocks that run every instruction by one row."""
    return tuple(
        tuple(None if each.profile is None else Held(row=row) for each in rank.instructions)
        for rank in of.ranks
    )


def iteration_s(of: Job, clocks: tuple[RankClocks, ...], slower: tuple[float, ...] = ()) -> float:
    """Return how long an iteration takes, some ranks being slower by a factor."""
    slower = slower or (1.0,) * len(of.ranks)
    taken_s = [
        (each.time_s or 0.0)
        if held is None or each.profile is None
        else of.profiles[each.profile].rows[held.row].time_s * slow
        for rank, some, slow in zip(of.ranks, clocks, slower, strict=True)
        for each, held in zip(rank.instructions, some, strict=True)
    ]
    return float(network_of(of).iteration_s(np.array(taken_s)))


def cost(of: Job, clocks: tuple[RankClocks, ...]) -> Cost:
    """Return what clocks cost, waiting apart."""

    def energy_j(some: tuple[RankClocks, ...]) -> float:
        return sum(
            of.profiles[each.profile].rows[held.row].energy_j or 0.0
            for rank, held_by in zip(of.ranks, some, strict=True)
            for each, held in zip(rank.instructions, held_by, strict=True)
            if each.profile is not None and held is not None
        )

    auto = all_at(of, 0)
    time_s, auto_s = iteration_s(of, clocks), iteration_s(of, auto)
    ratio = energy_j(clocks) / energy_j(auto)
    return Cost(
        time_s=time_s,
        energy_j=energy_j(clocks),
        time_change=time_s / auto_s - 1.0,
        energy_change=ratio - 1.0,
    )


def job_plan(of: Job, row: int = 1, clocks: tuple[RankClocks, ...] | None = None) -> JobPlan:
    """Return a plan that runs all by one row, or by clocks; one clock for all is the frontier."""
    chosen = all_at(of, row) if clocks is None else clocks
    points = [all_at(of, each) for each in range(1, 1 + len(CLOCKS_MHZ))]
    costs = cost(of, all_at(of, 0)), cost(of, chosen)
    return JobPlan(
        evidence=Evidence.SIMULATED,
        job=of,
        max_slowdown=max(0.0, costs[1].time_change),
        latency_s=1e-3,
        chosen=Strategy.INSTRUCTION,
        arms=(
            Arm(Strategy.AUTO, costs[0], Status.BASELINE),
            Arm(Strategy.INSTRUCTION, costs[1], Status.BOUNDED, gap=0.0),
        ),
        clocks=chosen,
        frontier=tuple(JobPoint(cost=cost(of, each), gap=0.0, clocks=each) for each in points),
    )


def slow_forwards(of: Job) -> JobPlan:
    """Forwards slow, backwards fast; the budget is wide, for this machine has other work too."""
    clocks = tuple(
        tuple(
            None if each.profile is None else Held(row=6 if "forward" in each.profile else 2)
            for each in rank.instructions
        )
        for rank in of.ranks
    )
    plan = job_plan(of, clocks=clocks)
    return msgspec.structs.replace(plan, max_slowdown=0.99, latency_s=4e-3)
