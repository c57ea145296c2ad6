"""The plan of a job, against trying everything."""

from collections.abc import Sequence
from itertools import pairwise, product

import msgspec
import numpy as np
import pytest

from job_costs import job_cost
from small_jobs import fixed, job_of_ranks, profile, small_job
from underclock.core.job.monte_carlo import Scatter
from underclock.core.job.planning import JobGoal, plan_job
from underclock.core.job.tables import RowChoice, auto_clocks, table_of
from underclock.errors import DataError, UsageError
from underclock.records import TOLERANCE, Clocks, Segment, Strategy
from underclock.records.choices import Cost, Status
from underclock.records.job import (
    Held,
    Job,
    JobPlan,
    Profile,
    ProfileRow,
    Waiting,
)

GROUPS = {
    "best_fixed": (0,) * 8,
    "rank": (0,) * 4 + (1,) * 4,
    "direction": (0, 0, 1, 1, 2, 3, 2, 3),
}
"""Which instructions of two stages and microbatches share a clock."""


def uneven(microbatches: int = 2, *, data: int = 1) -> Job:
    """Two stages of which the second takes longer by a third."""
    given = {
        f"stage {stage} {kind}": profile(time_s * (1.0 + stage / 3.0))
        for stage in range(2)
        for kind, time_s in (("forward", 0.1), ("backward", 0.2))
    }
    return small_job(microbatches=microbatches, given=given, data=data)


def clocks_of(job: Job, rows: Sequence[int]) -> tuple[tuple[Held, ...], ...]:
    """Rows of every instruction, rank by rank."""
    each = iter(rows)
    return tuple(tuple(Held(next(each)) for _ in rank.instructions) for rank in job.ranks)


def least_of(costs: Sequence[Cost], budget: float) -> float:
    """Least change of energy within a budget."""
    return min(each.energy_change for each in costs if each.time_change <= budget + 1e-9)


def with_rows(job: Job, **changes: float) -> Job:
    """A job whose every row is changed."""
    return msgspec.structs.replace(
        job,
        profiles={
            name: msgspec.structs.replace(
                each,
                rows=tuple(
                    msgspec.structs.replace(row, **{k: v * row.time_s for k, v in changes.items()})
                    for row in each.rows
                ),
            )
            for name, each in job.profiles.items()
        },
    )


def changes_j(plan: JobPlan) -> list[float]:
    """What each arm changes of the energy."""
    return [arm.energy_change for arm in plan.arms if arm.energy_change is not None]


@pytest.mark.parametrize("budget", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("name", GROUPS)
def test_clocks_that_are_shared_are_the_best_of_all(name: str, budget: float) -> None:
    job = uneven()
    groups = GROUPS[name]
    costs = [
        job_cost(job, clocks_of(job, [rows[group] for group in groups]))
        for rows in product(range(3), repeat=max(groups) + 1)
    ]
    arm = plan_job(job, JobGoal(max_slowdown=budget, points=2)).arm(name)

    assert arm.energy_change == pytest.approx(least_of(costs, budget))
    assert arm.time_change is not None
    assert arm.time_change <= budget + 1e-9


def test_no_rows_take_less_than_a_plan() -> None:
    job = uneven()
    table = table_of(job)
    rows = np.array(list(product(range(3), repeat=8)))
    time_s, energy_j = (each[table.pair, rows] for each in (table.time_s, table.energy_j))
    ends_s = table.network.iteration_s(time_s)
    total_j = energy_j.sum(axis=1) + 50.0 * (2.0 * ends_s - time_s.sum(axis=1))
    for budget in (0.0, 0.02, 0.1, 0.2):
        plan = plan_job(job, JobGoal(max_slowdown=budget, points=2))
        kept = ends_s <= ends_s[-1] * (1.0 + budget + 1e-9)

        assert plan.arm("instruction").status is Status.OPTIMAL
        assert plan.promise.energy_change <= total_j[kept].min() / total_j[-1] - 1.0 + 1e-9
        assert plan.promise.time_change <= budget + 1e-9


@pytest.mark.parametrize("latency_s", [0.001, 0.02])
def test_rows_are_near_the_best_where_changes_are_late(latency_s: float) -> None:
    job = uneven(1)
    costs = [job_cost(job, clocks_of(job, rows), latency_s) for rows in product(range(3), repeat=4)]
    for budget in (0.0, 0.05, 0.2):
        goal = JobGoal(max_slowdown=budget, latency_s=latency_s, points=2)
        arm, least = plan_job(job, goal).arm("instruction"), least_of(costs, budget)

        assert arm.gap is not None
        assert arm.energy_change is not None
        assert (1.0 + arm.energy_change) * (1.0 - arm.gap) <= 1.0 + least + 1e-9
        assert arm.energy_change <= least + 0.002


@pytest.mark.parametrize(
    "goal",
    [
        JobGoal(max_slowdown=0.01, points=6),
        JobGoal(max_slowdown=0.03, points=6, latency_s=0.006, min_dwell_s=0.15),
        JobGoal(max_slowdown=0.03, points=6, latency_s=10.0),
        JobGoal(max_slowdown=0.03, points=6, board_spread=0.01),
    ],
)
def test_more_freedom_is_never_worse_and_what_is_promised_is_what_clocks_cost(
    goal: JobGoal,
) -> None:
    plan = plan_job(uneven(2, data=2), goal)
    cost = job_cost(plan.job, plan.clocks, plan.latency_s)

    assert all(a >= b - 1e-12 for a, b in pairwise(changes_j(plan)))
    assert plan.chosen is Strategy.INSTRUCTION
    assert any(point.clocks == plan.clocks for point in plan.frontier)
    times_s = [point.cost.time_s for point in plan.frontier]
    energies_j = [point.cost.energy_j for point in plan.frontier if point.clocks != plan.clocks]
    assert times_s == sorted(times_s)
    assert energies_j == sorted(energies_j, reverse=True)
    if not goal.board_spread:
        assert cost.energy_j == pytest.approx(plan.promise.energy_j)
        assert cost.time_s == pytest.approx(plan.promise.time_s)


@pytest.mark.untraced
def test_more_time_and_less_latency_are_never_worse() -> None:
    job = uneven(4)
    budgets = [
        plan_job(job, JobGoal(max_slowdown=each, points=2)).promise.energy_j
        for each in (0.0, 0.01, 0.02, 0.05, 0.3)
    ]
    latencies = [
        plan_job(job, JobGoal(max_slowdown=0.05, latency_s=each, points=4)).promise.energy_j
        for each in (0.0, 0.006, 0.3)
    ]

    assert budgets == sorted(budgets, reverse=True)
    assert latencies == sorted(latencies)


def test_clocks_inside_instructions_are_an_arm_of_their_own() -> None:
    job = uneven()
    inside = tuple(Segment(launches=1, clocks=Clocks(core_mhz=mhz)) for mhz in (1400, 1000))
    made = {
        name: msgspec.structs.replace(
            each,
            rows=(
                *each.rows,
                ProfileRow(
                    time_s=each.rows[-1].time_s,
                    energy_j=0.8 * (each.rows[-1].energy_j or 0.0),
                    inside=inside,
                ),
            ),
        )
        for name, each in job.profiles.items()
    }
    plan = plan_job(msgspec.structs.replace(job, profiles=made), JobGoal(points=2))
    kernel, instruction = (
        plan.arm(name).energy_change or 0.0 for name in ("kernel", "instruction")
    )

    assert plan.chosen is Strategy.KERNEL
    assert kernel < instruction - 0.05
    assert any(held is not None and 3 in {held.row, held.then} for held in plan.clocks[1])


@pytest.mark.parametrize(("spread", "budget"), [(0.0, 0.02), (0.03, 0.0), (0.03, 0.05)])
def test_a_budget_holds_in_draws_that_were_not_planned_with(spread: float, budget: float) -> None:
    job = with_rows(uneven(2), time_error_s=0.002, energy_error_j=1.0)
    plan = plan_job(job, JobGoal(max_slowdown=budget, board_spread=spread, points=2))
    table = table_of(job)
    again = Scatter(
        table=table,
        stands=np.arange(len(table.pair)),
        auto=RowChoice.held(auto_clocks(job)),
        board_spread=spread,
        latency_s=0.0,
        seed=29,
    )
    arm = plan.arm("instruction")

    ours_s, auto_s = (
        again.drawn(RowChoice.held(each))[0] for each in (plan.clocks, auto_clocks(job))
    )
    kept = budget + (0.0 if spread else TOLERANCE)  # to which errors let a time be told
    assert (ours_s <= auto_s * (1.0 + kept + 1e-9)).mean() >= 0.95
    assert changes_j(plan)[-1] < -0.01
    assert arm.time_interval is not None
    assert arm.energy_interval is not None
    assert arm.time_interval[1] <= budget + 0.01


def test_a_budget_that_no_clocks_meet_leaves_auto() -> None:
    plan = plan_job(small_job(), JobGoal(max_slowdown=-0.05))

    assert plan.chosen is Strategy.AUTO
    assert plan.arm("instruction").status is Status.INFEASIBLE
    assert plan.clocks == auto_clocks(plan.job)
    assert "the least is +0.00 %" in plan.warnings[-1]


def test_a_job_without_energy_or_profiles_is_refused() -> None:
    job = small_job()
    rows = tuple(ProfileRow(core_mhz=1000 + at, time_s=1.0, energy_j=None) for at in range(2))
    times = {**job.profiles, "stage 1 forward": Profile(rows=rows, auto=1)}

    with pytest.raises(DataError, match="not what it takes of energy"):
        plan_job(msgspec.structs.replace(job, profiles=times), JobGoal())
    with pytest.raises(DataError, match="no clocks can be chosen"):
        plan_job(job_of_ranks((fixed(1.0),)), JobGoal())


@pytest.mark.parametrize(
    "goal",
    [{"max_slowdown": 1.0}, {"latency_s": -1.0}, {"confidence": 1.0}, {"points": 1}],
)
def test_goals_that_mean_nothing_are_refused(goal: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="must be from"):
        JobGoal(**goal)  # type: ignore[arg-type]


def test_waiting_is_counted_at_the_clock_that_is_held() -> None:
    job = uneven()
    waiting = (Waiting(core_mhz=1000, power_w=20.0), Waiting(power_w=90.0))
    ranks = tuple(msgspec.structs.replace(rank, waiting=waiting) for rank in job.ranks)
    plan = plan_job(msgspec.structs.replace(job, ranks=ranks), JobGoal(max_slowdown=0.05, points=2))
    cost = job_cost(plan.job, plan.clocks)

    assert cost.energy_j == pytest.approx(plan.promise.energy_j)
    assert all(a >= b - 1e-12 for a, b in pairwise(changes_j(plan)))
