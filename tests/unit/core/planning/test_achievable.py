"""What a GPU can follow: more latency never saves more, rules are kept, longer segments pay."""

import dataclasses
import itertools
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_switches import switch
from underclock.core.planning.best_choice import Goal
from underclock.core.planning.clock_changes import Rules, sequence_problem
from underclock.core.planning.latency_constrained import (
    CURVE,
    Own,
    achieved,
    as_schedule,
    budget_curve,
    curve_latencies,
    fastest_change,
    latency_curve,
)
from underclock.core.planning.strategies import compare_strategies
from underclock.core.solvers import Solution, violations
from underclock.core.step.cost_table import CostTable
from underclock.errors import DataError
from underclock.records import AUTO, Clocks, Kernel, Kind, Pass, Status
from underclock.records.latencies import Domain, LatencyTable, Switch

PASSES = (Pass.FORWARD, Pass.BACKWARD, Pass.OPTIMIZER)
LAYERS = 4
LATENCIES_S = (*(latency_s for latency_s, _ in CURVE), 1e-6, 1e-4, 1e-2, 0.5)


def table(*, seed: int = 0, passes: tuple[Pass, ...] = PASSES) -> CostTable:
    """Two kernels of each pass; some bound by the core, some not, milliseconds each."""
    random = np.random.default_rng(seed)
    cores = [900, 1200, 1500]
    kernels, time_s, energy_j = [], [], []
    for pass_, bound in itertools.product(passes, (0.0, 0.9)):
        count = LAYERS if pass_ is not Pass.OPTIMIZER else 1
        kernels.append(Kernel(name=f"{pass_} {bound}", pass_=pass_, count=count))
        base_s = random.uniform(1e-3, 3e-3)
        part = np.array([core / 1500 for core in cores] + [1.0])
        row_s = base_s * (bound / part + 1 - bound) * count
        time_s.append(row_s)
        energy_j.append(row_s * (100 + 200 * part**3))
    return CostTable(
        kernels=tuple(kernels),
        settings=(*(Clocks(core_mhz=core) for core in cores), AUTO),
        time_s=np.array(time_s),
        energy_j=np.array(energy_j),
        baseline=3,
    )


def order_of(costs: CostTable) -> tuple[int, ...]:
    """Launch each pass layer by layer."""
    launches: list[int] = []
    for pass_ in dict.fromkeys(kernel.pass_ for kernel in costs.kernels):
        mine = [k for k, kernel in enumerate(costs.kernels) if kernel.pass_ is pass_]
        launches += mine * costs.kernels[mine[0]].count
    return tuple(launches)


def rules(latency_s: float = 1e-4, **fields: object) -> Rules:
    return Rules(latencies=LatencyTable.constant(latency_s), **fields)  # type: ignore[arg-type]


def plan(costs: CostTable, kept: Rules) -> tuple[float, float, int]:
    problem = sequence_problem(costs, order_of(costs), kept)
    arm, schedule, _ = achieved(costs, problem, [np.full(len(costs.kernels), costs.baseline)])
    assert arm.cost is not None
    assert not violations(problem, schedule.choice)
    return arm.cost.time_change, arm.cost.energy_change, schedule.switches


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "budget"), [(0, 0.0), (4, 0.01)])
def test_more_latency_never_saves_more(seed: int, budget: float) -> None:
    costs = table(seed=seed)
    curve = latency_curve(costs, order_of(costs), rules(max_slowdown=budget), [], LATENCIES_S)
    energies = [point.energy_change for point in curve]
    assert [point.latency_s for point in curve] == sorted(point.latency_s for point in curve)
    for shorter, longer in itertools.pairwise(energies):
        assert shorter is not None
        assert longer is not None
        assert shorter <= longer + 2e-4  # the gap at which solving stops
    assert all(p.time_change is not None and p.time_change <= budget + 1e-9 for p in curve)
    assert {point.hardware for point in curve} - {""} == {name for _, name in CURVE}


@pytest.mark.untraced
@pytest.mark.parametrize("seed", range(3))
def test_more_time_and_less_latency_give_no_worse_schedule(seed: int) -> None:
    costs = table(seed=seed)
    saved = np.array(
        [
            [plan(costs, rules(latency_s, max_slowdown=budget))[1] for latency_s in (1e-4, 6e-3)]
            for budget in (0.0, 0.01, 0.03)
        ]
    )
    assert (np.diff(saved, axis=0) <= 1e-9).all()
    assert (np.diff(saved, axis=1) >= -1e-9).all()


@pytest.mark.untraced
@settings(max_examples=4)
@given(st.integers(0, 1000))
def test_it_saves_at_least_what_simpler_arms_do_where_they_can_be_followed(seed: int) -> None:
    costs = table(seed=seed)
    arms = compare_strategies(costs, Goal(max_slowdown=0.02))
    problem = sequence_problem(costs, order_of(costs), rules(5e-3, max_slowdown=0.02))
    arm, *_ = achieved(costs, problem, list(arms.settings.values()))
    assert arm.energy_change is not None
    for name, setting in arms.settings.items():
        if not violations(problem, setting[problem.order]):
            simple = next(a for a in arms.arms if a.name == name)
            assert arm.energy_change <= (simple.energy_change or 0.0) + 1e-12


@pytest.mark.untraced
def test_a_point_of_the_curve_is_what_planning_at_its_latency_finds() -> None:
    costs = table(seed=1, passes=(Pass.FORWARD, Pass.BACKWARD))
    curve = latency_curve(costs, order_of(costs), rules(), [], curve_latencies(None))
    alone = plan(costs, rules(6e-3))
    point = next(point for point in curve if point.latency_s == 6e-3)
    assert point.energy_change == pytest.approx(alone[1], abs=1e-4)
    assert point.gap is not None
    assert point.gap <= 1e-4


@pytest.mark.slow
def test_a_gap_left_at_the_shortest_latency_leaves_no_point_worse_than_a_longer_one() -> None:
    costs = table(seed=0)
    kept = rules(max_slowdown=0.02, max_switches=3)
    curve = latency_curve(costs, order_of(costs), kept, [], (1e-6, 1e-4))
    energies = [point.energy_change or 0.0 for point in curve]
    assert energies[0] <= energies[1]
    assert all(point.gap is not None and point.gap >= 0.0 for point in curve)


def test_free_switching_saves_at_least_what_one_setting_per_kernel_does() -> None:
    costs = table()
    ideal = compare_strategies(costs, Goal(max_slowdown=0.02)).arms[-1].energy_change
    _, energy, _ = plan(costs, Rules(latencies=LatencyTable.free(), max_slowdown=0.02))
    assert ideal is not None
    assert energy <= ideal + 2e-4


@pytest.mark.parametrize(("latency_s", "budget"), [(2e-3, 0.01), (10.0, 0.03)])
def test_the_plan_stands_on_its_curves_as_it_is(latency_s: float, budget: float) -> None:
    costs = table(passes=(Pass.FORWARD, Pass.BACKWARD))
    kept = rules(latency_s, max_slowdown=budget)
    problem = sequence_problem(costs, order_of(costs), kept)
    arm, schedule, aim = achieved(costs, problem, [])
    assert arm.cost is not None
    assert aim == pytest.approx(budget)

    frontier = budget_curve(costs, problem, arm.cost, aim - budget, [schedule.choice])
    own = Own(latency_s, arm, schedule, aim - budget, frontier)
    curve = latency_curve(costs, order_of(costs), kept, [], (1e-3, latency_s, 20.0), own)
    assert [point.latency_s for point in curve] == [1e-3, latency_s, 20.0]
    assert (curve[1].energy_change, curve[1].gap) == (arm.energy_change, arm.gap)
    assert curve[1].frontier == frontier
    # With the same time, who changes clocks faster saves no less.
    for faster, slower in itertools.pairwise(curve):
        assert faster.energy_change in [cost.energy_change for cost in faster.frontier]
        assert faster.frontier[-1].energy_change <= slower.frontier[-1].energy_change + 1e-3

    assert arm.cost in frontier
    assert [cost.time_change for cost in frontier] == sorted(c.time_change for c in frontier)
    assert all(a.energy_change > b.energy_change for a, b in itertools.pairwise(frontier))
    for cost in frontier:
        assert cost.time_change <= 0.05 + 1e-9


def test_budgets_that_no_schedule_keeps_are_left_out_of_the_curve() -> None:
    costs = table(passes=(Pass.FORWARD,))
    problem = sequence_problem(costs, order_of(costs), rules(1e-3))
    arm, *_ = achieved(costs, problem, [])
    assert arm.cost is not None
    assert budget_curve(costs, problem, arm.cost, -0.9, []) == (arm.cost,)


@pytest.mark.untraced
def test_limits_on_switching_are_kept() -> None:
    free = plan(table(), rules(max_slowdown=0.02))[2]
    assert free > 4
    assert plan(table(), rules(max_slowdown=0.02, max_switches=4))[2] <= 4
    assert plan(table(), rules(10.0, max_slowdown=0.02))[2] == 0


def two_domains(memory: Switch) -> tuple[CostTable, LatencyTable]:
    costs = CostTable(
        kernels=(Kernel(name="a"), Kernel(name="b")),
        settings=(Clocks(core_mhz=600, mem_mhz=800), Clocks(core_mhz=1200), AUTO),
        time_s=np.ones((2, 3)),
        energy_j=np.ones((2, 3)),
        baseline=2,
    )
    core = switch(Domain.CORE, call_s=1e-3, delay_s=4e-3, jitter_s=1e-4)
    return costs, LatencyTable(evidence=None, gpu=None, switches=(core, memory))


def test_calls_follow_each_other_and_delays_run_side_by_side() -> None:
    costs, latencies = two_domains(switch(Domain.MEMORY, 1e-2, call_s=2e-3, stall_s=5e-3))
    problem = sequence_problem(costs, (0, 1), Rules(latencies=latencies))
    assert problem.dwell_s[0, 1] == pytest.approx(3 * 3e-3 + 1.5e-2)
    assert problem.dwell_s[1, 2] == pytest.approx(3 * 1e-3 + 4e-3 + 3e-4)
    # No clock suits any kernel better than another, so only the stall costs something.
    assert problem.switch_time_s[0, 1] == pytest.approx(5e-3)
    assert problem.switch_time_s[1, 2] == 0.0
    # Calls scatter too.
    assert problem.jitter_s[0, 1] == pytest.approx(math.hypot(1e-4, 0.6 * 1e-3, 0.6 * 2e-3))
    assert problem.jitter_s[1, 2] == pytest.approx(math.hypot(1e-4, 0.6 * 1e-3))
    # A step at auto draws 1 W here, and so does the wait.
    assert problem.switch_energy_j == pytest.approx(problem.switch_time_s)
    assert not problem.dwell_s.diagonal().any()


def test_latencies_are_asked_once_for_every_target() -> None:
    asked: list[tuple[Domain, int | None]] = []

    class Asked(LatencyTable, frozen=True, kw_only=True):
        def from_anywhere(self, domain: Domain, to_mhz: int | None) -> Switch:
            asked.append((domain, to_mhz))
            return super().from_anywhere(domain, to_mhz)

    costs = all_pairs((600, 900, 1200, None), (800, 5001, None))
    sequence_problem(costs, (0,), Rules(latencies=Asked.constant(1e-3)))
    assert len(asked) == len(set(asked)) == 4 + 3


def test_every_change_takes_what_the_latencies_answer() -> None:
    clocks = (600, 900, 1200, None)
    costs = all_pairs(clocks, (None,))
    # Two sampled switches to one target, one of them from an origin that no setting has.
    sampled = ((600, 900), (300, 900), (900, 1200), (1200, 600), (600, None))
    latencies = LatencyTable(
        evidence=None,
        gpu=None,
        switches=tuple(
            switch(Domain.CORE, 1e-3 * (row + 1), mhz=mhz) for row, mhz in enumerate(sampled)
        ),
    )
    problem = sequence_problem(costs, (0,), Rules(latencies=latencies))
    for (a, before), (b, after) in itertools.permutations(enumerate(clocks), 2):
        delay_s = latencies.answer(Domain.CORE, before, after).delay_s
        assert problem.dwell_s[a, b] == pytest.approx(delay_s)


def all_pairs(cores: tuple[int | None, ...], memories: tuple[int | None, ...]) -> CostTable:
    """One kernel at every pair of clocks."""
    pairs = list(itertools.product(cores, memories))
    return CostTable(
        kernels=(Kernel(name="a"),),
        settings=tuple(Clocks(core_mhz=core, mem_mhz=mem) for core, mem in pairs),
        time_s=np.ones((1, len(pairs))),
        energy_j=np.ones((1, len(pairs))),
        baseline=len(pairs) - 1,
    )


def test_a_change_of_memory_alone_is_not_at_the_wrong_core_clock() -> None:
    costs, latencies = two_domains(switch(Domain.MEMORY, jitter_s=1.0))
    costs = CostTable(
        kernels=costs.kernels,
        settings=(Clocks(core_mhz=600, mem_mhz=800), Clocks(core_mhz=600), AUTO),
        time_s=costs.time_s,
        energy_j=costs.energy_j,
        baseline=2,
    )
    problem = sequence_problem(costs, (0, 1), Rules(latencies=latencies))
    assert problem.switch_time_s[0, 1] == 0.0


@pytest.mark.parametrize("in_forward", [False, True])
def test_no_clock_changes_round_a_collective(*, in_forward: bool) -> None:
    passes = (Pass.FORWARD, Pass.COMMUNICATION, Pass.BACKWARD)
    costs = table(passes=passes)
    order = order_of(costs)
    told = [
        msgspec.structs.replace(kernel, kind=Kind.COLLECTIVE, pass_=Pass.FORWARD)
        if in_forward and kernel.pass_ is Pass.COMMUNICATION
        else kernel
        for kernel in costs.kernels
    ]
    problem = sequence_problem(dataclasses.replace(costs, kernels=tuple(told)), order, rules())
    first = next(i for i, k in enumerate(order) if costs.kernels[k].pass_ is Pass.COMMUNICATION)
    last = max(i for i, k in enumerate(order) if costs.kernels[k].pass_ is Pass.COMMUNICATION)
    assert np.flatnonzero(problem.blocked).tolist() == list(range(first, last + 2))


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(DataError, match="the order in which"):
        sequence_problem(table(), (), rules())


@pytest.mark.parametrize(
    "fields", [{"max_slowdown": -1.0}, {"max_slowdown": math.inf}, {"max_switches": -1}]
)
def test_rules_that_mean_nothing_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        rules(**fields)


def test_a_budget_nobody_meets_says_what_the_fastest_takes() -> None:
    costs = table()
    problem = sequence_problem(costs, order_of(costs), rules(max_slowdown=-0.5))
    arm, schedule, _ = achieved(costs, problem, [])
    assert arm.cost is None
    assert schedule.status is Status.INFEASIBLE
    assert fastest_change(costs, problem) == pytest.approx(0.0, abs=1e-9)
    curve = latency_curve(costs, order_of(costs), rules(max_slowdown=-0.5), [], LATENCIES_S)
    assert {(p.energy_change, p.switches) for p in curve} == {(None, None)}


def test_a_schedule_is_told_as_its_segments() -> None:
    costs = table()
    order = order_of(costs)
    problem = sequence_problem(costs, order, rules(max_slowdown=0.02))
    _, schedule, _ = achieved(costs, problem, [])
    told = as_schedule(
        costs, problem, schedule, latencies=LatencyTable.constant(1e-3), wording="1ms, assumed"
    )
    assert sum(segment.launches for segment in told.segments) == len(order)
    clocks = [s.clocks for s in told.segments for _ in range(s.launches)]
    assert clocks == [costs.settings[s] for s in schedule.choice.tolist()]
    assert told.switches == schedule.switches
    assert told.latency == "1ms, assumed"


def test_a_schedule_that_leaves_the_step_at_auto_says_how_long_launches_take() -> None:
    costs = table()
    order = order_of(costs)
    problem = sequence_problem(costs, order, rules())
    # Of a step under its cap the solver is not offered auto.
    unoffered_s, unoffered_j = problem.time_s.copy(), problem.energy_j.copy()
    unoffered_s[:, costs.baseline] = unoffered_j[:, costs.baseline] = math.inf
    problem = dataclasses.replace(problem, time_s=unoffered_s, energy_j=unoffered_j)
    schedule = Solution(
        status=Status.BOUNDED,
        choice=np.full(len(order), costs.baseline),
        time_s=costs.auto_time_s,
        energy_j=costs.auto_energy_j,
        bound_j=costs.auto_energy_j,
        switches=0,
    )
    told = as_schedule(
        costs, problem, schedule, latencies=LatencyTable.constant(1e-3), wording="1ms, assumed"
    )
    assert math.fsum(told.launch_s) == pytest.approx(costs.auto_time_s)
    assert math.fsum(told.launch_j) == pytest.approx(costs.auto_energy_j)


@pytest.mark.parametrize(
    ("own_s", "curve"),
    [
        (None, (1e-3, 6e-3, 0.15)),
        (0.0, (1e-3, 6e-3, 0.15)),
        (20e-6, (20e-6, 6e-3, 0.15)),
        (6e-3, (1e-3, 6e-3, 0.15)),
        (20e-3, (1e-3, 20e-3, 0.15)),
        (0.5, (1e-3, 6e-3, 0.5)),
    ],
)
def test_a_curve_has_three_latencies_and_a_gpus_own_among_them(
    own_s: float | None, curve: tuple[float, ...]
) -> None:
    assert curve_latencies(own_s) == curve
