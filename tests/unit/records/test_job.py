"""Records of a job refuse what does not fit together, each with what is wrong."""

from collections.abc import Callable

import msgspec
import pytest

from invented import read_again
from small_jobs import WAITING, fixed, job_of_ranks, small_job
from underclock.records import Arm, Clocks, Cost, Evidence, GpuInfo, Pass, Status, Strategy
from underclock.records.job import (
    Held,
    Instruction,
    InstructionKind,
    Job,
    JobPlan,
    JobPoint,
    Profile,
    ProfileRow,
    Rank,
    Wait,
    Waiting,
)
from underclock.records.serving import Basis, ServingBucket, ServingCost, ServingPlan

replace = msgspec.structs.replace
SEND, RECEIVE, FORWARD = InstructionKind.SEND, InstructionKind.RECEIVE, InstructionKind.FORWARD
ROW = ProfileRow(core_mhz=1000, time_s=1.0, energy_j=1.0)


def plan_of(job: Job) -> JobPlan:
    """Return a plan that leaves all at auto."""
    cost = Cost(time_s=1.0, energy_j=1.0, time_change=0.0, energy_change=0.0)
    clocks = tuple(
        tuple(
            None if each.profile is None else Held(job.profiles[each.profile].auto)
            for each in rank.instructions
        )
        for rank in job.ranks
    )
    return JobPlan(
        evidence=job.evidence,
        job=job,
        max_slowdown=0.0,
        chosen=Strategy.AUTO,
        arms=(Arm(Strategy.AUTO, cost, Status.BASELINE),),
        clocks=clocks,
        frontier=(JobPoint(cost=cost, gap=None, clocks=clocks),),
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Profile(rows=(ROW,), auto=1), "row 1 of 1 cannot be auto"),
        (lambda: Profile(rows=(ROW, ROW), auto=0), "core 1000 MHz, memory auto 2 times"),
        (lambda: replace(ROW, time_s=0.0), "> 0.0 - at `\\$.time_s`"),
        (lambda: Instruction(kind=SEND), "a profile or a time of its own"),
        (lambda: fixed(1.0, FORWARD), "belongs to a microbatch"),
        (
            lambda: Instruction(kind=InstructionKind.OTHER, profile="x", meeting=1),
            "has no meeting and no power",
        ),
        (lambda: Rank(stage=0, waiting=WAITING, instructions=()), "has something to do"),
        (
            lambda: Rank(
                stage=0, waiting=(Waiting(core_mhz=900, power_w=1.0),), instructions=(fixed(1.0),)
            ),
            "from the lowest clock to auto",
        ),
        (lambda: replace(small_job(), ranks=()), "a job has ranks"),
        (
            lambda: replace(small_job(), ranks=(small_job().ranks[0],) * 2),
            r"\(0, 0, 0, 0\) is 2 ranks",
        ),
        (lambda: replace(small_job(), profiles={}), "no profile is called 'stage 0 forward'"),
        (lambda: replace(small_job(), microbatches=2), "beyond the job's 2 microbatches"),
        (lambda: replace(small_job(), microbatches=4), "takes 3 of 4 microbatches through"),
        (lambda: small_job(microbatches=0), "microbatches"),
        (lambda: job_of_ranks((fixed(1.0),), waits=(Wait(0, 0, 0, 7),)), "there is none"),
        (lambda: job_of_ranks((fixed(1.0, SEND, meeting=1),)), "send of rank 0 meets no receive"),
        (
            lambda: job_of_ranks((fixed(1.0, RECEIVE, meeting=1),), (fixed(1.0, meeting=1),)),
            "receive of rank 0 meets no send",
        ),
        (lambda: job_of_ranks((fixed(1.0, meeting=1),)), "has a meeting of its own"),
        (
            lambda: job_of_ranks((fixed(1.0, meeting=1), fixed(1.0, meeting=1))),
            "rank 0 meets itself",
        ),
        (lambda: Held(0, None, 0.5), "a share of 0.5 with None"),
        (lambda: Held(0, 1, 1.0), "a share of 1.0 with 1"),
        (lambda: replace(plan_of(small_job()), arms=()), "the arm <Strategy.AUTO"),
        (
            lambda: replace(plan_of(small_job()), arms=plan_of(small_job()).arms * 2),
            "every arm is compared once",
        ),
        (lambda: replace(plan_of(small_job()), clocks=()), "clocks of 0 ranks for 2"),
        (lambda: replace(plan_of(small_job()), clocks=((), ())), "another number of instructions"),
        (
            lambda: replace(plan_of(small_job()), clocks=((None,) * 6,) * 2),
            "a profile and no clocks",
        ),
        (lambda: replace(plan_of(small_job()), clocks=((Held(9),) * 6,) * 2), "has no such row"),
    ],
)
def test_what_does_not_fit_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(Exception, match=message):
        read_again(make())


def test_an_instruction_that_a_rank_runs_twice_is_refused() -> None:
    job = small_job()
    rank = job.ranks[0]
    again = replace(rank, instructions=(*rank.instructions, rank.instructions[0]))
    with pytest.raises(ValueError, match="runs a forward of chunk 0 2 times"):
        replace(job, ranks=(again, job.ranks[1]))


def test_waiting_draws_what_lies_between_the_clocks_listed() -> None:
    listed = (
        Waiting(core_mhz=500, power_w=50.0),
        Waiting(core_mhz=1000, power_w=70.0),
        Waiting(power_w=90.0),
    )
    rank = Rank(stage=0, waiting=listed, instructions=(fixed(1.0),))
    clocks = (None, 300, 500, 750, 1000, 1980)
    assert [rank.waiting_w(mhz) for mhz in clocks] == [90.0, 50.0, 50.0, 60.0, 70.0, 70.0]
    assert Rank(stage=0, waiting=WAITING, instructions=(fixed(1.0),)).waiting_w(700) == 50.0


def test_a_job_and_its_plan_come_back_from_json_as_they_were() -> None:
    plan = plan_of(small_job(transfer_s=(0.1,), data=2, reduce_s=0.1))
    assert msgspec.json.decode(msgspec.json.encode(plan), type=JobPlan) == plan
    assert plan.answer[0] in repr(plan)
    assert "ranks 4" in repr(plan.job)


def cost(mhz: int | None, time_s: float, energy_j: float) -> ServingCost:
    return ServingCost(
        clocks=Clocks(core_mhz=mhz),
        time_s=time_s,
        time_interval_s=(time_s * 0.99, time_s * 1.01),
        energy_j=energy_j,
        energy_interval_j=(energy_j * 0.98, energy_j * 1.02),
        basis=Basis.STEERED,
    )


FAST, SLOW = cost(None, 0.010, 2.0), cost(1500, 0.0101, 1.5)


def bucket(batch: int, context: int, phase: Pass = Pass.DECODE) -> ServingBucket:
    return ServingBucket(
        pass_=phase,
        batch=batch,
        context=context,
        tokens=batch,
        auto=FAST,
        chosen=SLOW,
        fixed=SLOW,
        frontier=(FAST, SLOW),
    )


def plan(*buckets: ServingBucket) -> ServingPlan:
    return ServingPlan(
        evidence=Evidence.SIMULATED,
        gpu=GpuInfo(name="G"),
        workload="w",
        max_slowdown=0.02,
        fixed=SLOW.clocks,
        buckets=buckets,
    )


def test_a_step_is_of_the_smallest_bucket_that_holds_it() -> None:
    table = plan(*(bucket(b, c) for b in (8, 1, 32) for c in (8192, 1024)))

    found = table.bucket(Pass.DECODE, 2, 1024)
    assert found is not None
    assert (found.batch, found.context) == (8, 1024)
    longer = table.bucket(Pass.DECODE, 2, 1025)
    assert longer is not None
    assert (longer.batch, longer.context) == (8, 8192)
    assert table.bucket(Pass.DECODE, 33) is None
    assert table.bucket(Pass.PREFILL, 1) is None


def test_a_plan_says_what_it_saves() -> None:
    one = bucket(8, 1024)

    assert one.energy_change == pytest.approx(-0.25)
    assert one.time_change == pytest.approx(0.01)
    assert SLOW.power_w == pytest.approx(1.5 / 0.0101)
    assert "-25.0%" in repr(plan(one))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: bucket(0, 1024), ">= 1 - at `\\$.batch`"),
        (lambda: bucket(1, 1, Pass.BACKWARD), "phase is prefill, decode, mixed, got backward"),
        (plan, "at least one bucket"),
        (lambda: plan(bucket(1, 1), bucket(1, 1)), "one bucket for each"),
        (
            lambda: msgspec.structs.replace(plan(bucket(1, 1)), quantile=1.0),
            "< 1.0 - at `\\$.quantile`",
        ),
        (
            lambda: msgspec.structs.replace(plan(bucket(1, 1)), max_slowdown=2.0),
            "< 1.0 - at `\\$.max_slowdown`",
        ),
        (lambda: msgspec.structs.replace(bucket(1, 1), frontier=()), "fastest first"),
        (lambda: msgspec.structs.replace(bucket(1, 1), frontier=(SLOW, FAST)), "fastest first"),
        (lambda: msgspec.structs.replace(bucket(1, 1), auto=SLOW), "auto cannot be at"),
        (lambda: msgspec.structs.replace(FAST, time_s=1.0), "does not hold"),
        (lambda: msgspec.structs.replace(FAST, time_interval_s=(0.0, 1.0)), "must be positive"),
    ],
)
def test_tables_that_cannot_be_are_refused(make: Callable[[], object], told: str) -> None:
    with pytest.raises((ValueError, msgspec.ValidationError), match=told):
        read_again(make())
