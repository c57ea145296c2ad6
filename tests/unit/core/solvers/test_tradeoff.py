"""Time against cost of networks of activities, judged by a dense program of another form."""

import math
import sys
from itertools import product

import highspy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from underclock.arrays import Floats
from underclock.core.solvers import TradeCurve, TradeoffProblem, solve_tradeoff
from underclock.core.solvers.crashing import Engine, Interior, Onwards, Suggestion, engine_of
from underclock.records import Status

seeds = st.integers(0, 2**32 - 1)


def drawn_curve(random: np.random.Generator, points: int) -> TradeCurve:
    slopes = -np.sort(-random.uniform(0.1, 50.0, points - 1))
    steps = random.uniform(0.01, 0.5, points - 1)
    return TradeCurve(
        time_s=np.cumsum([random.uniform(0.1, 1.0), *steps]),
        cost_j=np.cumsum([random.uniform(-20.0, 50.0), *(-slopes * steps)]),
    )


def drawn(seed: int, most: int = 8) -> TradeoffProblem:
    """Return a network whose activities are numbered in no order."""
    random = np.random.default_rng(seed)
    count = int(random.integers(1, most))
    curves = tuple(drawn_curve(random, points) for points in random.integers(1, 5, 3))
    curve = random.integers(-1, len(curves), count)
    names = random.permutation(count)
    links = [(a, b) for b in range(count) for a in range(b) if random.random() < 0.4]
    waits = np.array([(names[b], names[a]) for a, b in links], dtype=np.int64).reshape(-1, 2)
    return TradeoffProblem(
        waits_of=waits[:, 0],
        waits_on=waits[:, 1],
        lag_s=random.choice([0.0, 0.2], len(waits)),
        fixed_s=np.where(curve < 0, random.uniform(0.0, 2.0, count), 0.0),
        curve=curve,
        curves=curves,
        weight=random.choice([0.0, 1.0, 3.5], count),
    )


def either(problem: TradeoffProblem, seed: int) -> Engine:
    return Onwards(problem, highspy) if seed % 2 else Interior(problem)


def least_cost(problem: TradeoffProblem, time_s: float) -> float:
    """Return the least cost of the program with costs above the line of every piece."""
    count = len(problem.curve)  # columns: begins, durations, costs
    rows, most = [], []

    def row(values: dict[int, float], limit: float) -> None:
        rows.append([values.get(at, 0.0) for at in range(3 * count)])
        most.append(limit)

    for of, on, lag_s in zip(problem.waits_of, problem.waits_on, problem.lag_s, strict=True):
        row({on: 1.0, count + on: 1.0, of: -1.0}, -lag_s)
    for at, curve in enumerate(problem.curve):
        row({at: 1.0, count + at: 1.0}, time_s)
        points = problem.curves[curve]
        if curve >= 0:
            for slope_w, point_s, point_j in zip(
                [*points.slope_w, 0.0], points.time_s, points.cost_j, strict=True
            ):
                row({count + at: slope_w, 2 * count + at: -1.0}, slope_w * point_s - point_j)
    answer = linprog(
        [0.0] * (2 * count) + [float(w) if c >= 0 else 0.0 for w, c in zip(
            problem.weight, problem.curve, strict=True)],
        A_ub=rows,
        b_ub=most,
        bounds=[(0.0, None)] * count
        + list(zip(problem.shortest_s, problem.longest_s, strict=True))
        + [(-1e6, None)] * count,
    )  # fmt: skip
    assert answer.status == 0
    return float(answer.fun)


def check_kept(problem: TradeoffProblem, duration_s: Floats, time_s: float) -> None:
    """Every duration is one that the activity has, and the longest path fits."""
    assert (duration_s >= problem.shortest_s * (1.0 - 1e-12)).all()
    assert (duration_s <= problem.longest_s * (1.0 + 1e-12)).all()
    assert problem.makespan_s(duration_s) <= time_s * (1.0 + 1e-12)


@pytest.mark.untraced
@settings(max_examples=40, deadline=None)
@given(seeds)
def test_no_plan_costs_less_and_the_bound_says_so(seed: int) -> None:
    problem = drawn(seed)
    least_s, most_s = problem.range_s
    times_s = [least_s + share * (most_s - least_s) for share in (0.0, 0.1, 0.6, 1.0, 1.5)]
    last_j = math.inf
    engine = either(problem, seed) if least_s < most_s else None
    for time_s, solution in zip(times_s, solve_tradeoff(problem, times_s, engine), strict=True):
        check_kept(problem, solution.duration_s, time_s)
        expected_j = least_cost(problem, time_s)
        scale_j = 1e-7 * (1.0 + problem.at_stake_j)
        assert solution.cost_j == pytest.approx(expected_j, abs=scale_j)
        assert solution.bound_j == pytest.approx(expected_j, abs=scale_j)
        assert solution.status is Status.OPTIMAL
        assert solution.cost_j <= last_j + scale_j
        last_j = solution.cost_j


class Liar:
    """Suggests anything."""

    def __init__(self, problem: TradeoffProblem, random: np.random.Generator) -> None:
        self.problem, self.random = problem, random

    def at(self, time_s: float) -> Suggestion:
        del time_s
        size = 10.0 ** self.random.uniform(-2.0, 3.0)
        counts = map(len, (self.problem.lag_s, self.problem.curve, self.problem.curve))
        draws = (self.random.random(count) * self.random.choice([0, 1], count) for count in counts)
        duration_s = self.random.uniform(self.problem.shortest_s, self.problem.longest_s)
        flow_w, source_w, sink_w = (size * each for each in draws)
        return duration_s, flow_w, source_w, sink_w


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_whatever_a_solver_says_plans_are_kept_and_bounds_hold(seed: int) -> None:
    random = np.random.default_rng(seed)
    problem = drawn(seed, 6)
    time_s = random.uniform(*problem.range_s)
    (answer,) = solve_tradeoff(problem, [time_s], Liar(problem, random))
    check_kept(problem, answer.duration_s, time_s)
    assert answer.cost_j == problem.cost_j(answer.duration_s) >= answer.bound_j
    points = [
        problem.curves[curve].time_s if curve >= 0 else problem.fixed_s[[at]]
        for at, curve in enumerate(problem.curve)
    ]
    for each in product(*points):
        duration_s = np.array(each)
        if problem.makespan_s(duration_s) <= time_s:
            assert problem.cost_j(duration_s) >= answer.bound_j


class Silent:
    """Knows nothing."""

    def at(self, time_s: float) -> None:
        del time_s


@pytest.mark.parametrize("seed", [0, 1])
def test_a_solver_that_knows_nothing_leaves_a_plan_and_a_bound(seed: int) -> None:
    problem = drawn(4)
    least_s, most_s = problem.range_s
    assert either(problem, seed).at(0.9 * least_s) is None
    time_s = 0.5 * (least_s + most_s)
    check_kept(problem, problem.within(np.full_like(problem.weight, np.nan), time_s), time_s)
    (true,), (told,) = (solve_tradeoff(problem, [time_s], engine) for engine in (None, Silent()))
    check_kept(problem, told.duration_s, time_s)
    assert math.isfinite(told.bound_j)
    assert told.bound_j <= true.cost_j <= told.cost_j


def test_without_the_extra_the_answers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = drawn(4)
    times_s = np.linspace(*problem.range_s, 4).tolist()
    assert isinstance(engine_of(problem, times=4), Onwards)
    onwards = solve_tradeoff(problem, times_s)
    monkeypatch.setitem(sys.modules, "highspy", None)
    assert isinstance(engine_of(problem, times=4), Interior)
    anew = solve_tradeoff(problem, times_s)
    assert [each.cost_j for each in anew] == pytest.approx([each.cost_j for each in onwards])


def test_less_time_than_there_can_be_is_infeasible_and_says_the_least() -> None:
    problem = drawn(4)
    least_s, _ = problem.range_s
    short, nan, fits = solve_tradeoff(problem, [0.999 * least_s, math.nan, least_s])
    assert short.status is nan.status is Status.INFEASIBLE
    assert not len(short.duration_s)
    assert fits.status is Status.OPTIMAL
    assert fits.time_s == pytest.approx(least_s)
