"""Plans of a step under its cap, against brute force over what each choice settles at."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from functools import cache

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arms import arm_cost
from made_boards import GPU
from steps_beside import AUTO_MHZ, MEM_MHZ, ORDER, STEADY_C, campaign_beside, step_beside, taken
from underclock.arrays import Ints
from underclock.core.model.costs import Costs, PredictedChange
from underclock.core.model.estimate import Estimate, estimate
from underclock.core.planning.best_choice import (
    Goal,
    fastest,
    is_held,
)
from underclock.core.planning.clock_changes import Rules, sequence_problem
from underclock.core.planning.latency_constrained import achieved, as_schedule, schedule_cost
from underclock.core.planning.strategies import solve_strategies
from underclock.core.solvers import Effort
from underclock.core.step.cost_table import CostTable, cost_table
from underclock.core.step.power_cap import PowerCap, settle
from underclock.core.step.power_capped_step import auto_core_mhz, grouped, settled_step, step_cost
from underclock.errors import DataError
from underclock.physics.cap import Fading
from underclock.physics.costs import idle_w
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
from windows import having, with_step

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


def arm_of(arms: Sequence[Arm], name: Strategy = Strategy.KERNEL_GLOBAL) -> Arm:
    return next(arm for arm in arms if arm.name is name)


@pytest.mark.slow
@settings(max_examples=8)
@given(seeds, st.sampled_from([-0.005, 0.0, 0.02]))
def test_a_plan_is_what_it_settles_at_and_keeps_its_budget(seed: int, budget: float) -> None:
    table = step(seed, limit=0.8)
    arms, settings = solve_strategies(table, Goal(max_slowdown=budget))
    arm = arm_of(arms)
    tried = settled_all(table)
    within = [c.energy_j for _, c, held in tried if not held and c.time_change <= budget]
    if arm.status is Status.INFEASIBLE:
        return
    settled = settled_step(table, settings[Strategy.KERNEL_GLOBAL][order_of(table)])
    assert arm_cost(arm).time_s == pytest.approx(math.fsum(settled.time_s))
    assert arm_cost(arm).energy_j == pytest.approx(math.fsum(settled.energy_j))
    assert arm.time_change is not None
    assert arm_cost(arm).energy_j is not None
    assert arm.time_change <= budget + 1e-9
    assert arm.gap is not None
    assert min(within, default=math.inf) >= arm_cost(arm).energy_j * (1.0 - arm.gap) * (1.0 - 1e-9)


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


@pytest.mark.slow
@pytest.mark.parametrize("objective", [Objective.EDP, Objective.ENERGY])
@pytest.mark.parametrize("aggregate", Aggregate)
def test_other_objectives_claim_no_more_than_is_known(
    objective: Objective, aggregate: Aggregate
) -> None:
    table = step(3, limit=0.4)
    goal = Goal(objective=objective, aggregate=aggregate)
    for sure in (None, Sure(table)):
        arms, settings = solve_strategies(table, goal, sure)
        for name, setting in settings.items():
            arm = arm_of(arms, name)
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
        assert arm_cost(arm).time_s == pytest.approx(cost.time_s)
        assert arm_cost(arm).energy_j == pytest.approx(cost.energy_j)
        assert arm.cost.time_change <= budget + 1e-5
    return arm


@pytest.mark.untraced
@pytest.mark.parametrize("seed", [3, 5])
def test_more_time_and_less_latency_give_no_worse_schedule_of_a_step(seed: int) -> None:
    table = step(seed, limit=0.8, each=6)
    saved = np.array(
        [
            [
                arm_cost(schedule(table, budget, latency_s, Sure(table, 1e-3))).energy_change
                for latency_s in (1e-4, 6e-3, 20e-3)
            ]
            for budget in (0.0, 0.01, 0.03)
        ],
        dtype=np.float64,
    )
    assert (saved <= 0.0).all()
    assert (np.diff(saved, axis=0) <= 1e-9).all()
    assert (np.diff(saved, axis=1) >= -1e-9).all()


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
            assert arm_cost(arm).energy_j is not None
            assert arm.gap is not None
            for _, cost, held in settled_all(table):
                if not held and cost.time_change <= budget:
                    assert cost.energy_j >= arm_cost(arm).energy_j * (1.0 - arm.gap) * (1.0 - 1e-9)
    assert arms
    assert all(arm.status is Status.BOUNDED for arm in arms)


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
    setting = solve_strategies(table, Goal(max_slowdown=0.0))[1][Strategy.KERNEL_GLOBAL]

    boost = settled_step(table, np.array([4, 0])[order])
    assert boost.core_mhz == pytest.approx(np.full(len(order), 1000.0))
    assert setting.tolist() == [0, 0]


@cache
def _estimate(true: float, told: float) -> Estimate:
    return estimate(campaign_beside(true, told))


def _found(true: float, told: float) -> Costs:
    return _estimate(true, told).costs


@pytest.mark.untraced
@pytest.mark.parametrize("share", [0.0, 0.4])
def test_kernels_add_up_to_a_step_that_does_not_wait_for_all_of_them(share: float) -> None:
    closure = _found(share, share).table.closure

    assert closure is not None
    assert closure.time == pytest.approx(1.0, abs=6e-3)
    assert closure.energy == pytest.approx(1.0, abs=6e-3)


@cache
def _settings() -> dict[Strategy, Ints]:
    found = _found(0.0, 0.0)
    return solve_strategies(found.table, Goal(max_slowdown=0.02), found)[1]


def test_a_promise_is_kept_and_rests_on_what_is_waited_for() -> None:
    found, setting = _found(0.0, 0.0), _settings()[Strategy.KERNEL_GLOBAL]
    change = found.predicted_change(setting)
    time_s = energy_j = 0.0
    for k in ORDER:
        core_mhz = found.table.settings[setting[k]].core_mhz or AUTO_MHZ
        each_s, each_w = taken(k, core_mhz)
        if k == 5:
            each_w -= float(idle_w(GPU, core_mhz, MEM_MHZ, STEADY_C))
        time_s += each_s * (k != 5)
        energy_j += each_s * each_w
    auto_s, auto_j = step_beside(AUTO_MHZ, 0.0)

    assert change.energy_change < -0.05
    assert time_s / auto_s - 1.0 == pytest.approx(change.time_change, abs=3 * change.time_spread)
    # A slower neighbour slows it too, which saves what no plan claims.
    assert -0.01 < energy_j / auto_j - 1.0 - change.energy_change < 0.005
    others = setting.copy()
    others[5] = 0
    assert found.predicted_change(others).energy_change == pytest.approx(change.energy_change)


@pytest.mark.untraced
def test_no_change_of_clocks_is_spent_on_it() -> None:
    found = _found(0.0, 0.0)
    rules = Rules(latencies=LatencyTable.constant(2e-5), max_slowdown=0.02)
    problem = sequence_problem(found.table, ORDER, rules)
    arm, schedule, _ = achieved(found.table, problem, list(_settings().values()), found)
    drawn = as_schedule(
        found.table, problem, schedule, latencies=rules.latencies, wording="a constant one"
    )

    assert np.flatnonzero(problem.blocked).tolist() == [2, 8]
    assert arm.energy_change is not None
    assert arm.energy_change < -0.03
    assert schedule.switches > 2
    assert (schedule.choice[[2, 8]] == schedule.choice[[1, 7]]).all()
    assert math.fsum(drawn.launch_s) == pytest.approx(step_beside(AUTO_MHZ, 0.0)[0], rel=0.03)
    at_auto = dict.fromkeys(range(len(found.table.kernels)), AUTO_MHZ)
    # Noise of power, 0.4 %, alone moves that clock by 5 MHz from one set of samples to another.
    assert auto_core_mhz(found.table) == pytest.approx(at_auto, abs=10.0)
    assert auto_core_mhz(dataclasses.replace(found.table, power_cap=None)) == {}


def test_a_step_that_draws_no_more_than_what_it_does_not_wait_for_is_refused() -> None:
    campaign = campaign_beside(0.0, 0.0)
    little = tuple(msgspec.structs.replace(s, energy_j=0.1) for s in campaign.in_situ)

    with pytest.raises(
        DataError, match=r"cost 0.1 s or J, no more than the 0.\d+ of launches"
    ) as no:
        estimate(having(campaign, in_situ=little))
    assert no.value.hint


def test_a_step_that_waits_for_nothing_is_refused() -> None:
    campaign = campaign_beside(0.0, 0.0)
    none = tuple(msgspec.structs.replace(kernel, waited_for=0.0) for kernel in campaign.kernels)

    with pytest.raises(DataError, match="waits for none of its kernels") as refused:
        cost_table(with_step(campaign, kernels=none))
    assert refused.value.hint


def test_a_schedule_of_unsure_costs_keeps_its_budget_with_a_margin() -> None:
    table = step(3, limit=0.8, each=6)
    arm = schedule(table, 0.01, 1e-4, Sure(table, 2e-3))
    assert arm.time_change is not None
    assert arm.time_change <= 0.01 - (1.64 * 2e-3 - 1e-3) + 1e-5
    assert arm.time_interval is not None


def test_where_nothing_is_sure_to_keep_the_budget_auto_is_left() -> None:
    table = step(3, limit=0.7, each=6)
    arm = schedule(table, 0.08, 1e-4, Sure(table, 0.5))
    assert (arm.time_change, arm.energy_change) == (0.0, 0.0)
