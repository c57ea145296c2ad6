"""The plan of a job, against trying everything."""

from itertools import pairwise, product

import msgspec
import pytest

from underclock.core.job.costs import auto_clocks, instruction_costs, job_cost
from underclock.core.job.planning import JobGoal, plan_job
from underclock.core.job.schedules import Shape, pipeline
from underclock.errors import DataError
from underclock.records import Evidence, GpuInfo, Strategy
from underclock.records.job import Held, Job, JobPlan, Profile, ProfileRow, Waiting

WAITING = (Waiting(power_w=60.0),)


def profile(time_s: float, energy_j: float) -> Profile:
    """Three clocks: slower ones save ever less."""
    rows = ((1000, 1.5, 0.7), (1200, 1.2, 0.78), (1400, 1.0, 1.0))
    return Profile(
        rows=tuple(
            ProfileRow(core_mhz=mhz, time_s=time_s * slower, energy_j=energy_j * less)
            for mhz, slower, less in rows
        ),
        auto=2,
    )


def small(
    stages: int = 2, microbatches: int = 2, waiting: tuple[Waiting, ...] = WAITING, *, data: int = 1
) -> Job:
    """A pipeline whose first stage is the slower one."""
    profiles = {}
    for stage in range(stages):
        profiles[f"stage {stage} forward"] = profile(0.10 - 0.03 * stage, 30.0 - 9.0 * stage)
        profiles[f"stage {stage} backward"] = profile(0.20 - 0.06 * stage, 60.0 - 18.0 * stage)
    return pipeline(
        "1f1b",
        Shape(stages=stages, microbatches=microbatches, data=data),
        profiles,
        waiting=dict.fromkeys(range(stages), waiting),
        gpu=GpuInfo(name="made up"),
        workload="made up",
        evidence=Evidence.SIMULATED,
    )


def changes(plan: JobPlan) -> list[float]:
    """What each arm changes of the energy."""
    return [arm.energy_change for arm in plan.arms if arm.energy_change is not None]


@pytest.mark.slow
def test_no_choice_of_rows_takes_less_than_a_plan() -> None:
    job = small()
    costs = [
        job_cost(job, (tuple(map(Held, rows[:4])), tuple(map(Held, rows[4:]))))
        for rows in product(range(3), repeat=8)
    ]
    for budget in (0.0, 0.02, 0.1):
        plan = plan_job(job, JobGoal(max_slowdown=budget))
        kept = [each.energy_change for each in costs if each.time_change <= budget + 1e-9]

        assert plan.arm("instruction").gap == pytest.approx(0.0, abs=1e-6)
        assert plan.promise.energy_change <= min(kept) + 1e-9
        assert plan.promise.time_change <= budget + 1e-9


def test_what_is_promised_is_what_the_clocks_cost_and_more_freedom_is_never_worse() -> None:
    plan = plan_job(small(data=2), JobGoal(max_slowdown="1%"))  # type: ignore[arg-type]

    assert job_cost(plan.job, plan.clocks).energy_j == pytest.approx(plan.promise.energy_j)
    assert all(a >= b for a, b in pairwise(changes(plan)))
    assert plan.chosen is Strategy.INSTRUCTION
    assert any(point.clocks == plan.clocks for point in plan.frontier)


def test_equal_replicas_take_as_many_times_the_energy_in_the_same_time() -> None:
    one, two = (plan_job(small(data=data), JobGoal(max_slowdown=0.02)) for data in (1, 2))

    assert two.promise.energy_j == pytest.approx(2.0 * one.promise.energy_j)
    assert two.promise.time_s == pytest.approx(one.promise.time_s)
    assert two.clocks[:2] == two.clocks[2:] == one.clocks


def test_energy_of_instructions_and_of_waiting_is_all_of_it() -> None:
    job = small()
    clocks = auto_clocks(job)
    time_s, energy_j = instruction_costs(job, clocks)
    cost = job_cost(job, clocks)
    waited_s = 2 * cost.time_s - time_s.sum()

    assert cost.energy_j == pytest.approx(energy_j.sum() + 60.0 * waited_s)
    assert cost.energy_change == 0.0


def test_a_budget_that_no_clocks_meet_leaves_auto() -> None:
    plan = plan_job(small(), JobGoal(max_slowdown=-0.05))

    assert plan.chosen is Strategy.AUTO
    assert plan.arm("instruction").cost is None
    assert "the least is +0.00 %" in plan.warnings[-1]


def test_a_job_of_times_only_is_refused() -> None:
    job = small()
    rows = tuple(ProfileRow(core_mhz=1000 + at, time_s=1.0, energy_j=None) for at in range(2))
    times = {**job.profiles, "stage 1 forward": Profile(rows=rows, auto=1)}
    with pytest.raises(DataError, match="not what it takes of energy"):
        plan_job(msgspec.structs.replace(job, profiles=times), JobGoal())
