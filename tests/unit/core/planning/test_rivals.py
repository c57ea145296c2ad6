"""Policies as rivals: all judged alike, none beats ours within a budget, each does what it says."""

import dataclasses
import math
from collections.abc import Iterable
from functools import cache

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn_costs import cost_tables
from steps_beside import campaign_beside
from underclock.core.inference.table import inferred_costs
from underclock.core.model.cost_estimate import CostEstimate
from underclock.core.model.estimate import estimate
from underclock.core.planning import rivals
from underclock.core.planning.contest import Contest
from underclock.core.planning.goal import Goal
from underclock.core.planning.rivals import CHANGES_CLOCKS, POLICIES, compete, stretches
from underclock.core.planning.sequence import Rules, sequence_problem
from underclock.core.planning.strategies import solve_strategies
from underclock.core.solvers import SequenceProblem
from underclock.core.step.table import CostTable
from underclock.records import AUTO, Clocks, GpuInfo, Kernel, Pass, Status, Strategy
from underclock.records.latencies import LatencyTable
from underclock.records.rivals import Rival
from windows import having

BUDGETED = set(POLICIES) - {Strategy.EDP, Strategy.ED2P, Strategy.POWER_PROFILE}


def contest(
    table: CostTable, budget: float = 0.01, *, latency_s: float | None = None, **more: object
) -> Contest:
    goal = Goal(max_slowdown=budget)
    fields: dict[str, object] = {"risk": None, "gpu": GpuInfo(name="G"), **more}
    problem = None
    if latency_s is not None:
        kernels = enumerate(table.kernels)
        order = tuple(k for k, kernel in kernels for _ in range(kernel.count))
        if table.power_cap is not None:
            order = tuple(table.power_cap.order.tolist())
        rules = Rules(latencies=LatencyTable.constant(latency_s), max_slowdown=budget)
        problem = sequence_problem(table, order, rules)
    solved = solve_strategies(table, goal, fields["risk"])  # type: ignore[arg-type]
    return Contest(table=table, goal=goal, solved=solved, problem=problem, **fields)  # type: ignore[arg-type]


def by_name(given: Contest, names: Iterable[Strategy] = POLICIES) -> dict[Strategy, Rival]:
    return {rival.name: rival for rival in compete(given, list(names))}


def energy(rival: Rival, *, achievable: bool = False) -> float:
    choice = rival.achievable if achievable else rival.free
    return (choice and choice.arm.energy_j) or math.inf


@cache
def held_step() -> CostEstimate:
    """Return what samples say of a step that its limit holds at auto."""
    return estimate(campaign_beside(0.4, 0.4))


@cache
def of_held_step(budget: float = 0.02, **more: object) -> Contest:
    costs = held_step()
    own_w = campaign_beside(0.4, 0.4).gpu.power_limit_w
    assert own_w is not None
    gpu = GpuInfo(name="G", power_limit_w=own_w, power_range_w=(0.8 * own_w, own_w))
    return contest(costs.table, budget, **{"risk": costs, "gpu": gpu, "seed": 1, **more})  # type: ignore[arg-type]


@settings(max_examples=6)
@given(cost_tables(most_kernels=4), st.sampled_from([0.0, 0.01, 0.4]))
def test_within_the_budget_none_takes_less_energy_than_ours(
    table: CostTable, budget: float
) -> None:
    found = by_name(contest(table, budget))

    # Feedback shares its time between two clocks.
    for name in BUDGETED - {Strategy.POWER_LIMIT, Strategy.FEEDBACK}:
        choice = found[name].free
        assert choice is not None
        assert not choice.keeps_budget or energy(found[Strategy.KERNEL_GLOBAL]) <= energy(
            found[name]
        ) * (1 + 1e-9)
        assert (choice.arm.time_change or 0.0) <= budget + 1e-9 or not choice.keeps_budget
    auto = found[Strategy.AUTO].free
    assert auto is not None
    assert auto.keeps_budget


@settings(max_examples=6)
@given(cost_tables(most_kernels=4))
def test_products_are_least_where_they_are_minimised(table: CostTable) -> None:
    found = by_name(contest(table))

    for name, power in ((Strategy.EDP, 1), (Strategy.ED2P, 2)):
        products = {
            other: choice.arm.energy_j * choice.arm.time_s**power
            for other, rival in found.items()
            if (choice := rival.free) is not None and choice.arm.energy_j and choice.arm.time_s
        }
        assert products[name] <= min(products.values()) * (1 + 1e-9)


@pytest.mark.untraced
def test_a_step_under_its_cap_is_compared_with_intervals() -> None:
    found = by_name(of_held_step(latency_s=2e-3))

    for name in set(POLICIES) - {Strategy.POWER_PROFILE}:
        for choice in found[name].choices:
            assert choice.arm.time_interval is not None
            assert choice.arm.energy_interval is not None
    # A limit's own clocks lie between those that can be locked, of which this step has few.
    for name in BUDGETED - {Strategy.FEEDBACK, Strategy.POWER_LIMIT}:
        assert all(choice.keeps_budget for choice in found[name].choices)
        assert energy(found[name]) >= energy(found[Strategy.KERNEL_GLOBAL]) * (1 - 1e-4)
        least_j = energy(found[Strategy.KERNEL_GLOBAL], achievable=True)
        assert energy(found[name], achievable=True) >= least_j * (1 - 1e-3)


@pytest.mark.untraced
def test_a_lower_limit_makes_auto_slower_and_is_one_the_gpu_takes() -> None:
    given = of_held_step()
    (limited,) = compete(given, [Strategy.POWER_LIMIT])

    assert limited.free is not None
    assert limited.power_limit_w is not None
    assert given.gpu.power_range_w is not None
    assert limited.power_limit_w >= given.gpu.power_range_w[0]
    assert limited.free.clocks == (AUTO,)
    assert 0.0 < (limited.free.arm.time_change or 0.0) < 0.02
    assert (limited.free.arm.energy_change or 0.0) < 0.0


def test_a_limit_needs_a_step_that_ran_whole() -> None:
    given = of_held_step()

    for other in (
        dataclasses.replace(given, risk=None),
        dataclasses.replace(given, gpu=GpuInfo(name="G")),
        contest(dataclasses.replace(given.table, power_cap=None)),
    ):
        (limited,) = compete(other, [Strategy.POWER_LIMIT])
        assert limited.free is None
        assert "of kernels alone" in limited.note


def test_feedback_ends_about_where_steps_just_keep_the_budget() -> None:
    """Clocks 5 % apart, of which the time follows half."""
    core = 1000 * 1.05 ** np.arange(8)
    time_s = 1.0 + 0.5 * (core[-1] / core - 1.0)
    table = CostTable(
        kernels=(Kernel(name="k"),),
        settings=(*(Clocks(core_mhz=int(mhz), mem_mhz=5000) for mhz in core), AUTO),
        time_s=np.array([[*time_s, 1.0]]),
        energy_j=np.array([[*(core / core[-1]), 1.1]]),
        baseline=8,
    )
    (found,) = compete(contest(table, 0.06, seed=3), [Strategy.FEEDBACK])
    assert found.free is not None

    assert found.free.clocks[0] == table.settings[5]  # 5.1 % slower; the next is 7.9 %
    assert set(found.free.clocks) == {table.settings[s] for s in (4, 5)}
    assert found.free.arm.status is Status.GIVEN
    assert found.achievable == found.free
    assert compete(contest(table, 0.06, seed=3), [Strategy.FEEDBACK]) == (found,)


def test_the_genetic_search_repeats_with_its_seed() -> None:
    random, shape = np.random.default_rng(5), (40, 12)
    table = CostTable(
        kernels=tuple(Kernel(name=f"k{k}") for k in range(40)),
        settings=(*(Clocks(core_mhz=100 * s) for s in range(1, 12)), AUTO),
        time_s=random.uniform(1.0, 2.0, shape),
        energy_j=random.uniform(1.0, 2.0, shape),
        baseline=11,
    )
    given = contest(table)
    found, other = (
        compete(dataclasses.replace(given, seed=seed), [Strategy.GENETIC]) for seed in (0, 1)
    )

    assert compete(given, [Strategy.GENETIC]) == found
    assert found != other


def test_where_nothing_keeps_the_budget_policies_say_so() -> None:
    found = by_name(of_held_step(-0.5, latency_s=2e-3))

    for name in BUDGETED:
        assert not any(choice.keeps_budget for choice in found[name].choices)
    for name in (Strategy.BEST_FIXED, Strategy.GENETIC, Strategy.PASS, Strategy.KERNEL_GLOBAL):
        assert {choice.arm.status for choice in found[name].choices} == {Status.INFEASIBLE}


def test_where_clocks_follow_only_once_in_a_step_one_pair_is_held() -> None:
    found = by_name(of_held_step(latency_s=10.0))

    for name in CHANGES_CLOCKS:
        choice = found[name].achievable
        assert choice is not None
        assert len(choice.clocks) == 1


def test_what_keeps_no_budget_in_a_few_rounds_leaves_one_pair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rivals, "_ROUNDS", 0)
    for name in (Strategy.PASS, Strategy.KERNEL_GLOBAL):
        (found,) = compete(of_held_step(latency_s=2e-3), [name])
        assert found.achievable is not None
        assert len(found.achievable.clocks) == 1


@pytest.mark.untraced
def test_no_time_to_lose_and_slow_clocks_leave_auto() -> None:
    given = of_held_step(0.0, latency_s=10.0)
    found = by_name(given, [Strategy.KERNEL_GLOBAL, Strategy.POWER_LIMIT])
    ours, limited = found[Strategy.KERNEL_GLOBAL].achievable, found[Strategy.POWER_LIMIT]

    assert ours is not None
    assert ours.arm.name is Strategy.KERNEL_GLOBAL
    assert ours.keeps_budget
    assert limited.power_limit_w is None
    assert limited.free is not None
    assert limited.free.arm.energy_change == 0.0


def test_kernels_alone_follow_clocks_too_with_what_is_known_of_them() -> None:
    alone = having(campaign_beside(0.4, 0.4), in_situ=())
    costs = inferred_costs(alone)
    given = contest(costs.table, 0.015, risk=costs, latency_s=2e-3)
    found, ours = compete(given, [Strategy.PASS, Strategy.KERNEL_GLOBAL])

    assert ours.achievable is not None
    assert ours.achievable.keeps_budget
    assert len(ours.achievable.clocks) > 1
    choice = found.achievable
    assert choice is not None
    assert choice.arm.energy_interval is not None
    (certain,) = compete(contest(costs.table, 0.02, latency_s=2e-3), [Strategy.PASS])
    assert certain.achievable is not None
    assert certain.achievable.arm.energy_interval is None


def test_kernels_without_clocks_in_common_share_no_stretch() -> None:
    table = CostTable(
        kernels=(Kernel(name="a"), Kernel(name="b", pass_=Pass.BACKWARD)),
        settings=(Clocks(core_mhz=900), Clocks(core_mhz=1200), AUTO),
        time_s=np.array([[1.1, math.inf, 1.0], [math.inf, 1.1, 1.0]]),
        energy_j=np.array([[0.5, math.inf, 1.0], [math.inf, 0.5, 1.0]]),
        baseline=2,
    )
    given = contest(table, 0.2, latency_s=5.0)
    assert given.problem is not None
    lacking = given.problem.time_s.copy(), given.problem.energy_j.copy()
    for each in lacking:
        each[:, 2] = math.inf
    problem = dataclasses.replace(given.problem, time_s=lacking[0], energy_j=lacking[1])
    (found,) = compete(dataclasses.replace(given, problem=problem), [Strategy.PASS])

    assert found.achievable is not None
    assert found.achievable.clocks == (AUTO,)


@pytest.mark.parametrize(
    ("profiles", "said"),
    [
        (None, "--gpu"),
        ((), "lists no"),
        (("max-q", "training"), "lists max-q, training; no sample"),
    ],
)
def test_power_profiles_are_told_and_never_costed(
    profiles: tuple[str, ...] | None, said: str
) -> None:
    given = contest(held_step().table, profiles=profiles)
    (found,) = compete(given, [Strategy.POWER_PROFILE])

    assert found.choices == ()
    assert said in found.note


def steps(lasts_s: list[float], dwell_s: float, blocked: list[int]) -> SequenceProblem:
    at = np.zeros(len(lasts_s), dtype=np.bool_)
    at[blocked] = True
    return SequenceProblem(
        time_s=np.array(lasts_s)[:, None] * [1.0, 1.2],
        energy_j=np.ones((len(lasts_s), 2)),
        order=np.arange(len(lasts_s)),
        switch_time_s=np.zeros((2, 2)),
        switch_energy_j=np.zeros((2, 2)),
        dwell_s=dwell_s * (1.0 - np.eye(2)),
        blocked=at,
    )


@pytest.mark.parametrize(
    ("lasts_s", "dwell_s", "blocked", "expected"),
    [
        ([1, 1, 1, 1], 2.0, [], [0, 0, 1, 1]),
        ([1, 1, 1, 1, 1], 2.0, [], [0, 0, 1, 1, 1]),
        ([1, 1, 1, 1], 2.0, [2], [0, 0, 0, 0]),
        ([3, 1, 3, 3], 2.0, [0], [0, 1, 1, 0]),
        ([1, 1], 9.0, [], [0, 0]),
        ([1, 1, 1], 0.0, [], [0, 1, 2]),
    ],
)
def test_stretches_are_as_long_as_a_change(
    lasts_s: list[float], dwell_s: float, blocked: list[int], expected: list[int]
) -> None:
    assert stretches(steps(lasts_s, dwell_s, blocked)).tolist() == expected


def test_a_rival_without_numbers_says_why() -> None:
    with pytest.raises(ValueError, match="nothing says why"):
        Rival(name=Strategy.EDP)
    assert (
        msgspec.json.decode(msgspec.json.encode(Rival(name=Strategy.EDP, note="w")))["free"] is None
    )
