"""Plans of a step under its cap, against brute force over what each choice settles at."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.arrays import Ints
from underclock.core.model.costs import PredictedChange
from underclock.core.planning.best_choice import Goal, Task, best_choice
from underclock.core.planning.capped_choice import (
    as_it_runs,
    cheapest_within,
    fastest,
    is_held,
    proof_of_held,
)
from underclock.core.planning.chance_constraint import Aim
from underclock.core.planning.clock_changes import Rules, sequence_problem
from underclock.core.planning.latency_constrained import achieved, schedule_cost
from underclock.core.planning.strategies import SolvedStrategies, solve_strategies
from underclock.core.solvers import Effort, Problem, solve
from underclock.core.step.cost_table import CostTable
from underclock.core.step.power_cap import PowerCap, settle
from underclock.core.step.power_capped_step import grouped, settled_step, step_cost
from underclock.physics.cap import Fading
from underclock.records import (
    AUTO,
    Aggregate,
    Arm,
    Clocks,
    Cost,
    Granularity,
    Kernel,
    Objective,
    Pass,
    Status,
    Strategy,
)
from underclock.records.latencies import LatencyTable

seeds = st.integers(0, 2**32 - 1)
CORES = np.array([1000, 1200, 1400, 1600, 1800])
WINDOW_S = 0.02


def step(seed: int = 0, *, limit: float = 0.85, each: int = 10) -> CostTable:
    """Two hot kernels, then a cool one for as long, many times longer than the window.

    Args:
        seed: Of their costs.
        limit: Of the cap, as a part of the power of the hot half at boost.
        each: Launches of each kernel.
    """
    random = np.random.default_rng(seed)
    part = CORES / CORES[-1]
    size_s = np.array([[2e-3], [3e-3], [6e-3]]) * random.uniform(0.8, 1.2, (3, 1))
    bound = np.array([[0.95], [0.1], [0.6]]) * random.uniform(0.7, 1.05, (3, 1))
    time_s = size_s * (bound / part + 1.0 - bound)
    busy_w = np.array([[350.0], [300.0], [80.0]]) * random.uniform(0.8, 1.2, (3, 1))
    energy_j = time_s * (60.0 + busy_w * part**3)
    order = np.array([0, 1] * each + [2] * each)
    hot_w = energy_j[:2, -1].sum() / time_s[:2, -1].sum()
    cap = PowerCap(
        limit_w=float(limit * hot_w), order=order, boost=4, fading=Fading(each_s=WINDOW_S)
    )
    passes = (Pass.FORWARD, Pass.FORWARD, Pass.BACKWARD)
    table = CostTable(
        kernels=tuple(Kernel(name=f"k{k}", count=each, pass_=passes[k]) for k in range(3)),
        settings=(*(Clocks(core_mhz=int(core)) for core in CORES), AUTO),
        time_s=np.column_stack([each * time_s, np.ones(3)]),
        energy_j=np.column_stack([each * energy_j, np.ones(3)]),
        baseline=5,
        power_cap=cap,
    )
    auto = settle(cap, table.launches, np.full(len(order), 4))
    for costs, launches in ((table.time_s, auto.time_s), (table.energy_j, auto.energy_j)):
        costs[:, 5] = np.bincount(order, launches)
    return table


def order_of(table: CostTable) -> Ints:
    assert table.power_cap is not None
    return table.power_cap.order


def settled_all(table: CostTable) -> list[tuple[Ints, Cost, bool]]:
    """Return every choice, what its step settles at, and whether the cap holds it."""
    choices = (np.array(each) for each in itertools.product(range(5), repeat=3))
    return [
        (each, step_cost(table, each[order_of(table)]), is_held(table, each[order_of(table)]))
        for each in choices
    ]


@pytest.mark.slow
@settings(max_examples=10)
@given(seeds, st.floats(0.7, 1.1))
def test_the_fastest_step_is_what_it_settles_at(seed: int, limit: float) -> None:
    table = step(seed, limit=limit)
    found = fastest(table, grouped(table, Granularity.KERNEL), Effort.PROOF)
    tried = settled_all(table)
    if found is None:
        assert all(held for _, _, held in tried)
        return
    setting, cost = found
    assert cost == step_cost(table, setting[order_of(table)])
    assert cost.time_s <= 1.02 * min(cost.time_s for _, cost, _ in tried)


def test_windows_make_the_step_as_fast_as_it_can_be() -> None:
    """The mean of both halves leaves power that the hot one cannot have."""
    table = step(3, limit=0.7)
    found = fastest(table, grouped(table, Granularity.KERNEL), Effort.PROOF)
    assert found is not None
    least_s = min(cost.time_s for _, cost, _ in settled_all(table))
    assert found[1].time_s == pytest.approx(least_s, rel=1e-3)


def test_a_limit_below_all_powers_is_kept_by_no_choice() -> None:
    table = step()
    assert table.power_cap is not None
    cold = dataclasses.replace(table, power_cap=dataclasses.replace(table.power_cap, limit_w=1.0))
    assert fastest(cold, grouped(cold, Granularity.KERNEL), Effort.PROOF) is None


def isolated(table: CostTable) -> CostTable:
    return dataclasses.replace(table, power_cap=None)


def test_kernels_alone_have_no_cap() -> None:
    table = isolated(step())
    groups = grouped(table, Granularity.KERNEL)
    with pytest.raises(ValueError, match="no step"):
        fastest(table, groups, Effort.PROOF)
    with pytest.raises(ValueError, match="no step"):
        cheapest_within(table, groups, Effort.PROOF, Aim(slowdown=0.0))
    with pytest.raises(ValueError, match="no step"):
        proof_of_held(table, groups, Effort.PROOF, np.zeros(3, dtype=np.int64))
    assert not is_held(table, np.zeros(3, dtype=np.int64))


def test_the_measured_step_at_auto_is_not_held_by_a_model_of_it() -> None:
    table = step()
    assert not is_held(table, np.full(30, table.baseline))
    assert is_held(table, np.full(30, 4))


def arm_of(solved: SolvedStrategies, name: Strategy = Strategy.KERNEL_GLOBAL) -> Arm:
    return next(arm for arm in solved.arms if arm.name is name)


@pytest.mark.slow
@settings(max_examples=8)
@given(seeds, st.sampled_from([-0.005, 0.0, 0.02]))
def test_a_plan_is_what_it_settles_at_and_keeps_its_budget(seed: int, budget: float) -> None:
    table = step(seed, limit=0.8)
    solved = solve_strategies(table, Goal(max_slowdown=budget))
    arm = arm_of(solved)
    tried = settled_all(table)
    within = [c.energy_j for _, c, held in tried if not held and c.time_change <= budget]
    if arm.status is Status.INFEASIBLE:
        return
    setting = solved.settings[Strategy.KERNEL_GLOBAL]
    settled = settled_step(table, setting[order_of(table)])
    assert arm.time_s == pytest.approx(math.fsum(settled.time_s))
    assert arm.energy_j == pytest.approx(math.fsum(settled.energy_j))
    assert arm.time_change is not None
    assert arm.energy_j is not None
    assert arm.time_change <= budget + 1e-9
    assert arm.gap is not None
    assert min(within, default=math.inf) >= arm.energy_j * (1.0 - arm.gap) * (1.0 - 1e-9)


def test_a_budget_that_only_windows_can_keep_is_kept() -> None:
    """Without a cap in mind the choice is late: the hot half is held."""
    table = step(4, limit=0.62)
    groups = grouped(table, Granularity.KERNEL)
    quickest = fastest(table, groups, Effort.PROOF)
    assert quickest is not None
    budget = quickest[1].time_change + 1e-5
    budget_s = table.auto_time_s * (1.0 + budget)
    problem = Problem(time_s=groups.time_s, energy_j=groups.energy_j, budget_s=budget_s)
    late = groups.spread(solve(problem).choice)
    assert step_cost(table, late[order_of(table)]).time_change > budget
    arm = arm_of(solve_strategies(table, Goal(max_slowdown=budget)))
    assert arm.time_change is not None
    assert arm.energy_change is not None
    assert arm.time_change <= budget
    allowed = [c.energy_change for _, c, _ in settled_all(table) if c.time_change <= budget]
    assert arm.energy_change == pytest.approx(min(allowed), abs=2e-3)
    # Where even the fastest step is late, nothing keeps it.
    nothing = arm_of(solve_strategies(table, Goal(max_slowdown=-0.05)))
    assert nothing.status is Status.INFEASIBLE


class Sure:
    """Takes what settles as certain, but for a spread of the time."""

    def __init__(self, table: CostTable, spread: float = 0.0) -> None:
        self.table, self.spread = table, spread

    def predicted_change(self, setting: Ints) -> PredictedChange:
        return self.predicted_schedule(setting[order_of(self.table)])

    def predicted_schedule(self, choice: Ints) -> PredictedChange:
        cost = step_cost(self.table, choice)
        return PredictedChange(
            time_change=cost.time_change,
            energy_change=cost.energy_change,
            time_spread=self.spread,
            energy_spread=self.spread,
        )

    def time_variance(self, setting: Ints) -> None:
        """Return nothing: no kernel has a share."""


@pytest.mark.untraced
@pytest.mark.parametrize("seed", range(4))
def test_with_confidence_too_what_is_held_is_no_worse_than_auto(seed: int) -> None:
    table = step(seed, limit=0.8)
    arm = arm_of(solve_strategies(table, Goal(max_slowdown=0.0), Sure(table, 1e-3)))
    assert arm.time_change is not None
    assert arm.energy_change is not None
    assert arm.time_change + 1.6 * 1e-3 <= 0.001 + 1e-5 or arm.energy_change == 0.0
    assert arm.energy_change <= 0.0


@pytest.mark.slow
@pytest.mark.parametrize("objective", [Objective.EDP, Objective.ENERGY])
@pytest.mark.parametrize("aggregate", Aggregate)
def test_other_objectives_claim_no_more_than_is_known(
    objective: Objective, aggregate: Aggregate
) -> None:
    table = step(3, limit=0.4)
    goal = Goal(objective=objective, aggregate=aggregate)
    for sure in (None, Sure(table)):
        solved = solve_strategies(table, goal, sure)
        for name, setting in solved.settings.items():
            arm = arm_of(solved, name)
            cost = step_cost(table, setting[order_of(table)])
            assert arm.time_change == pytest.approx(cost.time_change, abs=1e-9)
            one = len(set(setting.tolist())) == 1
            if is_held(table, setting[order_of(table)]) and not one:
                assert arm.status is Status.BOUNDED


def schedule(table: CostTable, budget: float, latency_s: float, sure: Sure | None = None) -> Arm:
    rules = Rules(latencies=LatencyTable.constant(latency_s), max_slowdown=budget)
    problem = sequence_problem(table, order_of(table).tolist(), rules)
    arm, found, _ = achieved(table, problem, [np.full(3, table.baseline)], sure)
    if arm.cost is not None:
        cost = schedule_cost(table, problem, found)
        assert cost is not None
        assert arm.time_s == pytest.approx(cost.time_s)
        assert arm.energy_j == pytest.approx(cost.energy_j)
        assert arm.cost.time_change <= budget + 1e-5
    return arm


@pytest.mark.slow
@pytest.mark.parametrize("budget", [-0.004, 0.0, 0.02])
def test_a_schedule_keeps_its_budget_as_it_settles(budget: float) -> None:
    table = step(3, limit=0.8, each=6)
    arm = schedule(table, budget, 1e-4)
    if budget >= 0.0:
        assert arm.energy_change is not None
        assert arm.energy_change <= 0.0
    # One setting for each kernel is a schedule too.
    least = [
        cost.energy_change
        for _, cost, held in settled_all(table)
        if not held and cost.time_change <= budget
    ]
    if least and arm.energy_change is not None:
        assert arm.energy_change <= min(least) + 5e-3


def test_a_schedule_of_unsure_costs_keeps_its_budget_with_a_margin() -> None:
    table = step(3, limit=0.8, each=6)
    arm = schedule(table, 0.01, 1e-4, Sure(table, 2e-3))
    assert arm.time_change is not None
    assert arm.time_change <= 0.01 - (1.64 * 2e-3 - 1e-3) + 1e-5
    assert arm.time_interval is not None


@pytest.mark.untraced
@pytest.mark.parametrize("seed", [3, 5])
def test_more_time_and_less_latency_give_no_worse_schedule_of_a_step(seed: int) -> None:
    table = step(seed, limit=0.8, each=6)
    saved = np.array(
        [
            [
                schedule(table, budget, latency_s, Sure(table, 1e-3)).energy_change
                for latency_s in (1e-4, 6e-3, 20e-3)
            ]
            for budget in (0.0, 0.01, 0.03)
        ],
        dtype=np.float64,
    )
    assert (saved <= 0.0).all()
    assert (np.diff(saved, axis=0) <= 1e-9).all()
    assert (np.diff(saved, axis=1) >= -1e-9).all()


def test_a_schedule_at_its_bound_is_sought_no_further() -> None:
    arm = schedule(step(3, limit=5.0, each=6), 5.0, 1e-4)
    assert (arm.gap or 0.0) <= Effort.PLAN.gap


def test_no_schedule_is_faster_than_the_fastest() -> None:
    table = step(3, limit=0.8, each=6)
    assert schedule(table, -0.5, 1e-4).status is Status.INFEASIBLE


def test_where_nothing_is_sure_to_keep_the_budget_auto_is_left() -> None:
    table = step(3, limit=0.7, each=6)
    arm = schedule(table, 0.08, 1e-4, Sure(table, 0.5))
    assert (arm.time_change, arm.energy_change) == (0.0, 0.0)


def test_a_schedule_that_the_cap_holds_claims_no_more_than_its_gap() -> None:
    """As fast as may be the hot half is held now and then."""
    arms = []
    for seed, budget in itertools.product(range(4), (-0.004, -0.006)):
        table = step(seed, limit=0.6, each=6)
        rules = Rules(latencies=LatencyTable.free(), max_slowdown=budget)
        problem = sequence_problem(table, order_of(table).tolist(), rules)
        arm, found, _ = achieved(table, problem, [])
        if arm.cost is not None and is_held(table, found.choice):
            arms.append(arm)
            assert arm.energy_j is not None
            assert arm.gap is not None
            for _, cost, held in settled_all(table):
                if not held and cost.time_change <= budget:
                    assert cost.energy_j >= arm.energy_j * (1.0 - arm.gap) * (1.0 - 1e-9)
    assert arms
    assert all(arm.status is Status.BOUNDED for arm in arms)


def test_nobody_asks_for_a_higher_clock_than_the_cap_leaves() -> None:
    table = step(3, limit=0.5)
    assert table.power_cap is not None
    in_turns = dataclasses.replace(table.power_cap, order=np.array([0, 1, 2] * 10))
    table = dataclasses.replace(table, power_cap=in_turns)
    groups, order = grouped(table, Granularity.KERNEL), order_of(table)
    boost = np.array([4, 4, 5])  # the last is left to the driver
    asked = as_it_runs(table, groups, boost)
    before, after = (settled_step(table, each[order]) for each in (boost, asked))

    assert (asked[:2] < boost[:2]).all()
    assert asked[2] == table.baseline
    for k in range(2):
        reached_mhz = before.core_mhz[order == k].max()
        assert CORES[asked[k]] >= reached_mhz - 1e-6
        assert CORES[asked[k] - 1] < reached_mhz
    assert after.time_s.sum() == pytest.approx(before.time_s.sum(), rel=0.01)


def test_a_choice_that_the_cap_leaves_alone_asks_for_what_it_asked() -> None:
    table = step(3, limit=2.0)
    choice = np.array([3, 4, 0])

    asked = as_it_runs(table, grouped(table, Granularity.KERNEL), choice)
    assert asked.tolist() == choice.tolist()


def racing() -> CostTable:
    """One kernel takes less energy the faster it runs, so without a cap boost is best for it."""
    part = CORES / CORES[-1]
    time_s = np.stack([2e-3 / part, np.full(5, 3e-3)])
    energy_j = time_s * np.stack([300.0 + 60.0 * part, 60.0 + 100.0 * part**3])
    order = np.array([0, 1] * 20)
    cap = PowerCap(limit_w=190.0, order=order, boost=4, fading=Fading(each_s=0.5))
    table = CostTable(
        kernels=(Kernel(name="races", count=20), Kernel(name="waits", count=20)),
        settings=(*(Clocks(core_mhz=int(core)) for core in CORES), AUTO),
        time_s=20 * np.column_stack([time_s, np.ones(2)]),
        energy_j=20 * np.column_stack([energy_j, np.ones(2)]),
        baseline=5,
        power_cap=cap,
    )
    auto = settle(cap, table.launches, np.full(len(order), 4))
    for costs, launches in ((table.time_s, auto.time_s), (table.energy_j, auto.energy_j)):
        costs[:, 5] = np.bincount(order, launches)
    return table


def test_a_plan_asks_for_no_higher_clock_than_the_cap_leaves() -> None:
    table = racing()
    order = order_of(table)
    setting = solve_strategies(table, Goal(max_slowdown=0.0)).settings[Strategy.KERNEL_GLOBAL]

    boost = settled_step(table, np.array([4, 0])[order])
    assert boost.core_mhz == pytest.approx(np.full(len(order), 1000.0))
    assert setting.tolist() == [0, 0]


class OnBoards(Sure):
    """Is unsure of one choice, which comes to the same on the mean board as another does."""

    unsure: Ints | None = None

    def predicted_change(self, setting: Ints) -> PredictedChange:
        change = super().predicted_change(setting)
        change = dataclasses.replace(change, energy_change=change.energy_change - 1e-6)
        if self.unsure is None or (setting != self.unsure).any():
            return change
        return dataclasses.replace(change, time_spread=1.0)


def test_a_ceiling_is_lowered_only_where_that_is_as_sure() -> None:
    table = racing()
    risk = OnBoards(table)
    task = Task(
        groups=grouped(table, Granularity.KERNEL),
        aggregate=Aggregate.GLOBAL,
        goal=Goal(max_slowdown=0.0),
        max_slowdown=0.0,
    )
    lowered = best_choice(table, task, risk)
    assert lowered is not None
    risk.unsure = lowered.setting
    asked = best_choice(table, task, risk)
    assert asked is not None

    assert lowered.setting.tolist() == [0, 0]
    assert as_it_runs(table, task.groups, asked.setting).tolist() == [0, 0]
    assert asked.setting[0] == 4
