"""A job on simulated boards: who waits for whom, what it takes, and what goes wrong."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from job_costs import job_cost
from simulated_jobs.cluster import Board, boards_of
from simulated_jobs.job import SimulatedJob
from simulated_jobs.policed import policed
from simulated_jobs.profiling import profiled_in
from underclock.core.job.planning import JobGoal, plan_job
from underclock.core.job.schedules import Layout, pipeline
from underclock.core.job.timeline import auto_clocks
from underclock.errors import DataError
from underclock.gpus.models import Latency, SwitchingModel, gpu_model
from underclock.hw.simulated.costs import Piece, Work
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.faults import Fault, FaultKind, FaultScript
from underclock.physics.constants import KernelConstants
from underclock.records import Evidence, GpuInfo, Segment
from underclock.records.job import (
    Held,
    Instruction,
    InstructionKind,
    Job,
    Profile,
    ProfileRow,
    Rank,
    RankClocks,
    Waiting,
)
from underclock.records.latencies import LatencyTable
from underclock.runtime.policy.job import JobPolicy

LATENCY_S = 2e-3
TABLE = LatencyTable.constant(LATENCY_S)
INSTANT = SwitchingModel(
    setter=Latency(shares=(0.0, 1.0), points_s=(0.0, 0.0)),
    core_s=LATENCY_S,
    target_spread=0.0,
    jitter=0.0,
)
A100 = dataclasses.replace(gpu_model("a100"), switching=INSTANT)
FORWARD = KernelConstants(core_mcycles=28.2, work_j_per_v2=4.0)  # 20 ms at 1410 MHz
CLOCKS = 900, 1200
GUESS = Profile(rows=(ProfileRow(time_s=0.02, energy_j=4.0),), auto=0)


def rank(stage: int, *instructions: Instruction) -> Rank:
    return Rank(stage=stage, waiting=(Waiting(power_w=80.0),), instructions=instructions)


def computes(profile: str, microbatch: int = 0) -> Instruction:
    return Instruction(kind=InstructionKind.FORWARD, microbatch=microbatch, profile=profile)


def sums(time_s: float = 0.005) -> Instruction:
    return Instruction(kind=InstructionKind.COLLECTIVE, meeting=0, time_s=time_s)


def job_of(*ranks: Rank, microbatches: int = 1) -> Job:
    names = {each.profile for one in ranks for each in one.instructions if each.profile}
    return Job(
        evidence=Evidence.SIMULATED,
        gpu=GpuInfo(name=A100.name),
        workload="made up",
        schedule="made up",
        microbatches=microbatches,
        ranks=ranks,
        profiles=dict.fromkeys(names, GUESS),
    )


def one_sum() -> Job:
    return job_of(rank(0, computes("short"), sums()), rank(1, computes("long"), sums()))


WORK: dict[str, Work] = {"short": FORWARD, "long": Piece(((FORWARD, 2.0),))}


def running(job: Job, *, seed: int = 1, spread: float = 0.0) -> SimulatedJob:
    return SimulatedJob(job, WORK, boards_of(A100, len(job.ranks), seed=seed, spread=spread), TABLE)


def measured(job: Job) -> Job:
    return profiled_in(running(job), CLOCKS, repeats=3)


def held(job: Job, rows: Sequence[Held]) -> tuple[RankClocks, ...]:
    return tuple(
        tuple(None if each.profile is None else row for each in one.instructions)
        for one, row in zip(job.ranks, rows, strict=True)
    )


def test_a_collective_waits_for_the_last_and_all_leave_it_together() -> None:
    each = running(one_sum()).iterate()
    short, short_sum, long, long_sum = range(4)
    assert each.ended
    assert each.begins_s[[short, long]] == pytest.approx([0.0, 0.0])
    assert each.ends_s[short] == pytest.approx(0.020, rel=2e-3)
    assert each.ends_s[long] == pytest.approx(0.040, rel=2e-3)
    assert each.begins_s[short_sum] == each.begins_s[long_sum] == each.ends_s[long]
    assert each.ends_s[[short_sum, long_sum]] == pytest.approx(each.ends_s[long] + 0.005)
    assert each.time_s == pytest.approx(each.ends_s[long_sum])


def test_energy_is_what_the_counters_say() -> None:
    run = running(one_sum(), spread=0.02)
    boards = run.boards
    before = [board.counted_j for board in boards]
    some = [run.iterate() for _ in range(5)]
    counted = sum(each.counted_j for each in some)
    assert counted == pytest.approx([b.counted_j - a for a, b in zip(before, boards, strict=True)])
    gains = [board.gpu.unit.gain for board in boards]
    assert gains[0] != gains[1]
    assert sum(each.energy_j for each in some) * gains == pytest.approx(counted)
    idle_w = 85.0  # of an A100 at 1410 MHz, within a few
    waited_j = some[-1].counted_j[0] - some[-1].ran_j[0]
    waited_s = some[-1].time_s - (some[-1].ends_s - some[-1].begins_s)[0]
    assert waited_j / gains[0] / waited_s == pytest.approx(idle_w, rel=0.05)


def test_what_is_measured_in_the_job_says_what_it_takes_at_every_clock() -> None:
    job = measured(one_sum())
    low, middle, auto = job.profiles["long"].rows
    assert (low.core_mhz, middle.core_mhz, auto.core_mhz) == (900, 1200, None)
    assert low.time_s == pytest.approx(2 * 28.2 / 900, rel=2e-3)
    assert middle.energy_j is not None
    assert auto.energy_j is not None
    assert middle.energy_j < auto.energy_j
    assert low.time_error_s > 0
    assert [each.core_mhz for each in job.ranks[0].waiting] == [900, 1200, None]
    with pytest.raises(ValueError, match="no scatter"):
        profiled_in(running(one_sum()), CLOCKS, repeats=1)


def test_a_plan_is_executed_as_it_says() -> None:
    job = measured(
        job_of(
            rank(0, computes("short"), computes("long", 1), sums()),
            rank(1, computes("long"), computes("long", 1), sums()),
            microbatches=2,
        )
    )
    clocks = (
        (Held(0), Held(0, then=1, share=0.5), None),
        (Held(2), Held(1), None),
    )
    run = running(job, seed=2)
    run.follow(clocks)
    each = [run.iterate() for _ in range(8)][-1]
    planned = job_cost(job, clocks)
    assert each.time_s == pytest.approx(planned.time_s, rel=3e-3)
    assert each.counted_j.sum() == pytest.approx(planned.energy_j, rel=1e-2)


def test_one_clock_for_all_is_held_and_auto_comes_back() -> None:
    job = measured(one_sum())
    run = running(job)
    run.follow(held(job, (Held(0), Held(0))))
    run.iterate()
    each = run.iterate()
    assert each.ends_s[0] == pytest.approx(28.2 / 900, rel=2e-3)
    run.hold()
    run.iterate()
    assert run.iterate().ends_s[0] == pytest.approx(0.020, rel=2e-3)


def test_runs_are_the_same_by_seed() -> None:
    job = measured(one_sum())
    some, others = (running(job, seed=7, spread=0.03) for _ in range(2))
    for run in (some, others):
        run.follow(held(job, (Held(0), Held(1))))
    for _ in range(3):
        one, other = some.iterate(), others.iterate()
        assert one.time_s == other.time_s
        assert np.array_equal(one.energy_j, other.energy_j)
    assert running(job, seed=8, spread=0.03).iterate().time_s != one.time_s


def test_a_rank_that_dies_leaves_no_clocks_behind() -> None:
    job = measured(one_sum())
    run = running(job)
    run.follow(held(job, (Held(0), Held(1))))
    run.iterate()
    assert [board.gpu.core_lock for board in run.boards] == [(900, 900), (1200, 1200)]
    run.kill(1, 0.01)
    each = run.iterate()
    assert not each.ended
    assert np.isfinite(each.ends_s[0])
    assert np.isinf(each.ends_s[[1, 2, 3]]).all()
    assert [board.gpu.core_lock for board in run.boards] == [None, None]
    assert len({board.now_s for board in run.boards}) == 1


def test_a_lock_that_is_refused_is_given_back_as_soon_as_it_may() -> None:
    job = measured(one_sum())
    run = running(job)
    run.follow(held(job, (Held(0), Held(1))))
    run.iterate()
    gpu = run.boards[0].gpu

    def lock() -> object:
        return gpu.core_lock

    fault = Fault(at_s=gpu.now_s, for_s=2.0, kind=FaultKind.PERMISSION_REVOKED)
    FaultScript([fault]).arm([gpu])
    run.follow(held(job, (Held(1), Held(1))))
    run.iterate()
    assert lock() == (900, 900)  # it may not even be given back
    while gpu.now_s < fault.at_s + 4.0:
        run.iterate()
    assert lock() is None
    assert run.refusals > 1
    run.end()
    assert all(board.gpu.core_lock is None for board in run.boards)


def test_a_weak_board_and_a_slow_link_hold_all_up() -> None:
    job = one_sum()
    weak = SimulatedJob(
        job,
        WORK,
        [Board(VirtualGpu(A100, seed=at), slowness=1.0 + 0.1 * at) for at in range(2)],
        TABLE,
    )
    assert weak.iterate().time_s == pytest.approx(0.044 + 0.005, rel=2e-3)
    slow = running(job)
    slow.slow_link(0, 1, 3.0)
    assert slow.iterate().time_s == pytest.approx(0.040 + 0.015, rel=2e-3)
    shape = Layout(stages=2, microbatches=2, transfer_s=(0.01,))
    names = [f"stage {s} {kind}" for s in range(2) for kind in ("forward", "backward", "weights")]
    waiting = dict.fromkeys(range(2), (Waiting(power_w=80.0),))
    lagging = pipeline(
        "zero-bubble",
        shape,
        dict.fromkeys(names, GUESS),
        waiting=waiting,
        gpu=job.gpu,
        workload="made up",
    )
    run = SimulatedJob(lagging, dict.fromkeys(names, FORWARD), boards_of(A100, 2, seed=1), TABLE)
    before = run.iterate()
    run.slow_link(0, 1, 2.0)
    first = len(lagging.ranks[0].instructions)
    assert run.iterate().begins_s[first] - before.begins_s[first] == pytest.approx(0.01, abs=1e-4)


def test_jobs_that_cannot_be_run_are_refused() -> None:
    job = one_sum()
    with pytest.raises(DataError, match="1 boards for 2 ranks"):
        SimulatedJob(job, WORK, boards_of(A100, 1, seed=1), TABLE)
    with pytest.raises(DataError, match=r"no work for \['long'\]"):
        SimulatedJob(job, {"short": FORWARD}, boards_of(A100, 2, seed=1), TABLE)
    idle = job_of(rank(0, sums()), rank(1, computes("long"), sums()))
    with pytest.raises(DataError, match="rank 0 runs nothing"):
        running(idle)
    run = running(job)
    with pytest.raises(DataError, match="has no clocks"):
        run.follow(((None, None), auto_clocks(job)[1]))
    inside = ProfileRow(
        time_s=0.02, energy_j=4.0, inside=(Segment(launches=1, core_mhz=900, mem_mhz=None),)
    )
    profiles = job.profiles | {"short": Profile(rows=(*GUESS.rows, inside), auto=0)}
    kernels = running(
        Job(**{name: getattr(job, name) for name in _FIELDS} | {"profiles": profiles})
    )
    with pytest.raises(DataError, match="change inside"):
        kernels.follow(held(job, (Held(1), Held(0))))


_FIELDS = ("evidence", "gpu", "workload", "schedule", "microbatches", "ranks")


def replicas() -> Job:
    ranks = (
        Rank(
            stage=0,
            data=data,
            waiting=(Waiting(power_w=80.0),),
            instructions=(computes("long"), sums()),
        )
        for data in range(2)
    )
    clocks = (1050, 1110, 1200, 1230, 1260, 1305, 1350)
    return profiled_in(running(job_of(*ranks)), clocks, repeats=3)


@pytest.mark.untraced
def test_others_take_the_plan_that_a_slow_replica_leaves_them_time_for() -> None:
    job = replicas()
    plan = plan_job(job, JobGoal(max_slowdown=0.01, latency_s=LATENCY_S))
    run = running(job, seed=3)
    iterations = policed(run, JobPolicy(plan, window=8))
    for _ in range(40):
        healthy = next(iterations)
    assert healthy.time_s == pytest.approx(plan.promise.time_s, rel=5e-3)
    run.boards[1].slowness = 1.1
    slowed = next(iterations)
    assert slowed.time_s > 1.05 * healthy.time_s
    for _ in range(20):
        later = next(iterations)
    assert later.time_s == pytest.approx(slowed.time_s, rel=2e-3)
    assert later.energy_j[0] < 0.99 * slowed.energy_j[0]
    run.kill(1, 0.01)
    assert [each.ended for each in iterations] == [False]
    assert [board.gpu.core_lock for board in run.boards] == [None, None]
