"""The trades of all groups' hulls, against the hull of every sum of choices.

Shape letters: G groups, S settings, T trades.
"""

import itertools
import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.core.solvers import Problem
from underclock.core.solvers.hull import Quanta, Trades, trades

Point = tuple[int, int]


@st.composite
def tiny_problems(draw: st.DrawFn) -> Problem:
    groups, count = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    cells = st.integers(0, draw(st.sampled_from([3, 40])))
    row = st.lists(cells, min_size=count, max_size=count)
    rows = st.lists(row, min_size=groups, max_size=groups)
    time_s = np.array(draw(rows), dtype=np.float64)
    energy_j = np.array(draw(rows), dtype=np.float64)
    known = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    known[draw(st.integers(0, count - 1))] = True
    return Problem(
        time_s=np.where(known, time_s, math.inf), energy_j=np.where(known, energy_j, math.inf)
    )


def cost(quanta: Quanta, choice: tuple[int, ...]) -> Point:
    rows = np.arange(len(choice))
    return int(quanta.time[rows, choice].sum()), int(quanta.energy[rows, choice].sum())


def prefixes(quanta: Quanta, steps: Trades) -> list[Point]:
    """Return the cost of every prefix of the trades, from none to all."""
    choices = (steps.choice_after(count) for count in range(len(steps.time) + 1))
    return [cost(quanta, tuple(choice.tolist())) for choice in choices]


def lower_hull(quanta: Quanta) -> list[Point]:
    """Return the corners of the hull of all sums, from the fastest to the cheapest."""
    settings_of = [np.flatnonzero(row).tolist() for row in quanta.available]
    points = sorted({cost(quanta, choice) for choice in itertools.product(*settings_of)})
    hull: list[Point] = []
    for time, energy in points:
        if hull and energy >= hull[-1][1]:
            continue  # slower and no cheaper
        while len(hull) > 1 and turns_up(hull[-2], hull[-1], (time, energy)):
            hull.pop()
        hull.append((time, energy))
    return hull


def turns_up(first: Point, middle: Point, last: Point) -> bool:
    """Return whether the middle point lies on or above the line between the others."""
    run, rise = last[0] - first[0], last[1] - first[1]
    return (middle[1] - first[1]) * run >= rise * (middle[0] - first[0])


def is_on(hull: list[Point], point: Point) -> bool:
    return point in hull or any(
        left[0] < point[0] < right[0]
        and (point[1] - left[1]) * (right[0] - left[0])
        == (right[1] - left[1]) * (point[0] - left[0])
        for left, right in itertools.pairwise(hull)
    )


@given(tiny_problems())
def test_prefixes_of_the_trades_are_on_the_hull_of_all_sums_and_have_all_its_corners(
    problem: Problem,
) -> None:
    quanta = Quanta.of(problem)
    hull, points = lower_hull(quanta), prefixes(quanta, trades(quanta))

    assert all(is_on(hull, point) for point in points)
    assert set(hull) <= set(points)


@settings(max_examples=30)
@given(tiny_problems())
def test_every_trade_costs_time_and_saves_energy_at_a_rate_that_never_rises(
    problem: Problem,
) -> None:
    steps = trades(Quanta.of(problem))

    assert (steps.time > 0).all()
    assert (steps.energy > 0).all()
    assert (np.diff(steps.rate) <= 0).all()
    assert np.allclose(steps.rate, steps.energy / steps.time, rtol=1e-12, atol=0.0)


@settings(max_examples=30)
@given(tiny_problems())
def test_a_groups_trades_follow_one_another(problem: Problem) -> None:
    steps = trades(Quanta.of(problem))

    here = steps.start.copy()
    for group, source, target in zip(steps.group, steps.source, steps.target, strict=True):
        assert here[group] == source
        here[group] = target
