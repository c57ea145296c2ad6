"""What a GPU can follow: more latency never saves more, rules are kept, longer segments pay."""

import dataclasses
import itertools
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_switches import switch
from underclock.core.planning.clock_changes import Rules, misses, sequence_problem
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
from underclock.core.solvers import violations
from underclock.core.step.cost_table import CostTable
from underclock.core.step.power_cap import LaunchCosts
from underclock.errors import DataError
from underclock.records import AUTO, Clocks, Kernel, Kind, Pass, Status
from underclock.records.latencies import LatencyTable, Switch
from underclock.units import Domain

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
    latencies = LatencyTable.constant(1e-3)
    told = as_schedule(costs, problem, schedule, latencies=latencies, wording="1ms, assumed")
    assert sum(segment.launches for segment in told.segments) == len(order)
    clocks = [s.clocks for s in told.segments for _ in range(s.launches)]
    assert clocks == [costs.settings[s] for s in schedule.choice.tolist()]
    assert told.switches == schedule.switches
    assert told.latency == "1ms, assumed"


SETTINGS = (Clocks(core_mhz=1000, mem_mhz=800), Clocks(core_mhz=1000, mem_mhz=8000))
JITTER_S = np.array([[0.0, 1e-3], [1e-3, 0.0]])
ORDER = np.array([0, 1])


def costs(memory_bound: float, core_bound: float, *, launch_s: float = 0.05) -> LaunchCosts:
    """Two kernels: the first takes so many times as long at the slow memory clock, the second too.

    Power is 100 W everywhere.
    """
    time_s = launch_s * np.array([[memory_bound, 1.0], [core_bound, 1.0]])
    return LaunchCosts(settings=SETTINGS, time_s=time_s, energy_j=100.0 * time_s)


@given(bound=st.lists(st.floats(1.0, 10.0), min_size=2, max_size=2), jitter_s=st.floats(1e-5, 1e-2))
def test_the_best_aim_costs_no_more_than_the_launch_itself(
    bound: list[float], jitter_s: float
) -> None:
    spread = jitter_s * 1e3 * JITTER_S
    _, _, time_s, energy_j = misses(costs(*bound), ORDER, np.array([1, 0]), spread, 100.0)
    cost = energy_j + 250.0 * time_s
    # Aimed at the launch: half of the misses on either side, of the mean distance.
    mean_s = jitter_s / math.sqrt(2 * math.pi)
    early = np.array([1.0 / bound[1] - 1.0, bound[0] - 1.0])  # in time of launches before
    late = np.array([1.0 - 1.0 / bound[0], 1.0 - bound[1]])

    assert (cost <= 350.0 * mean_s * (early + late) + 1e-2 * jitter_s * 350.0).all()


@pytest.mark.parametrize(
    ("own_s", "curve"),
    [
        (None, (1e-3, 6e-3, 0.15)),
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
