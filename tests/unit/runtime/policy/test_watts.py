"""Power limits of a node's ranks, of which one is given watts that others can spare."""

import itertools
import math
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_jobs import all_at, job, job_plan
from underclock.errors import UsageError
from underclock.records.job import Held
from underclock.runtime.policy.job import planned_points
from underclock.runtime.policy.watts import (
    MARGIN,
    READINGS,
    NodeGpu,
    NodeWatts,
    check_budget,
    moved_w,
    needs_of,
    planned_w,
)

_ROUNDING_W = 1e-6
_CHOSEN = 2
_PLAN, _SLOWED = (_CHOSEN,) * 4, (5, 5, _CHOSEN, _CHOSEN)
_NEEDS_W = (300.0, 280.0, 260.0, 240.0, 220.0, 200.0, 180.0)
"""Under each plan of the frontier."""


@st.composite
def boards(draw: st.DrawFn) -> NodeGpu:
    least_w, wide_w = draw(st.integers(50, 200)), draw(st.integers(1, 500))
    falling_w = draw(st.lists(st.floats(10.0, 700.0), min_size=7, max_size=7))
    return NodeGpu(
        limit_w=draw(st.floats(least_w, least_w + wide_w)),
        range_w=(least_w, least_w + wide_w),
        needs_w=draw(st.sampled_from([(), tuple(sorted(falling_w, reverse=True))])),
        drew_w=draw(st.floats(0.0, 300.0)),
    )


nodes = st.lists(boards(), min_size=1, max_size=8)


@given(nodes, st.data())
def test_limits_stay_within_the_budget_and_their_ranges_and_what_one_plan_needs(
    some: list[NodeGpu], data: st.DataObject
) -> None:
    to = data.draw(st.integers(0, len(some) - 1))
    points = range(data.draw(st.integers(0, 6)), data.draw(st.integers(0, 7)))
    budget_w = math.fsum(each.limit_w for each in some) + data.draw(st.floats(0.0, 300.0))

    limits_w = moved_w(some, to, budget_w, points)

    assert math.fsum(limits_w) <= budget_w + _ROUNDING_W
    for board, limit_w in zip(some, limits_w, strict=True):
        assert board.range_w[0] <= limit_w <= board.range_w[1]
    found_w = tuple(each.limit_w for each in some)
    if limits_w[to] == found_w[to]:
        assert limits_w == found_w
        return
    assert limits_w[to] > found_w[to]
    pairs = list(zip(limits_w, some, strict=True))
    others = pairs[:to] + pairs[to + 1 :]
    assert all(now <= board.limit_w for now, board in others)
    assert any(
        limits_w[to] >= some[to].kept_w(point)
        and all(now == board.limit_w or now >= board.kept_w(point) for now, board in others)
        for point in points
    )


def _board(limit_w: float = 350.0, needs_w: tuple[float, ...] = _NEEDS_W) -> NodeGpu:
    return NodeGpu(limit_w=limit_w, range_w=(100.0, 400.0), needs_w=needs_w)


def test_a_straggler_takes_what_others_spare_each_in_proportion() -> None:
    some = (_board(200.0), _board(350.0, (300.0,)), _board(350.0, (250.0,)), _board(350.0, ()))
    assert moved_w(some, 0, 1300.0, (0,)) == (389.0, 306.0, 255.0, 350.0)
    assert moved_w(some, 0, 1350.0, (0,)) == (400.0, 318.0, 282.0, 350.0)
    assert moved_w(some, 0, 1450.0, (0,)) == (400.0, 350.0, 350.0, 350.0)  # the budget is free
    assert moved_w((_board(400.0), _board()), 0, 750.0, (0,)) == (400.0, 350.0)  # at its highest


def test_where_the_fastest_plan_does_not_fit_the_next_one_is_made_to() -> None:
    some = (_board(200.0), _board(300.0))
    kept_w = [each_w * (1.0 + MARGIN) for each_w in _NEEDS_W]
    assert [round(each_w) for each_w in kept_w] == [306, 286, 265, 245, 224, 204, 184]
    assert moved_w(some, 0, 500.0, range(7)) == (255.0, 245.0)
    assert moved_w(some, 0, 500.0, range(3)) == (200.0, 300.0)
    assert moved_w(some, 0, 612.0, range(7)) == (312.0, 300.0)


def test_what_a_rank_draws_is_the_mean_of_what_it_computes() -> None:
    of = job()
    plan = job_plan(of)
    mixed = tuple(held and Held(row=1, then=6, share=0.5) for held in all_at(of, 1)[0])
    slow_w, slow_s = 60.0 + 230.0 * (1500 / 1800) ** 2, 1800 / 1500
    assert planned_w(plan, 0, all_at(of, 1)[0]) == pytest.approx(290.0)
    assert planned_w(plan, 0, mixed) == pytest.approx((290.0 + slow_s * slow_w) / (1.0 + slow_s))
    back = tuple(held and Held(row=6, then=0, share=0.5) for held in all_at(of, 1)[0])
    assert planned_w(plan, 0, back) == pytest.approx((300.0 + slow_s * slow_w) / (1.0 + slow_s))
    points, _ = planned_points(plan)
    needs_w = needs_of(plan, points, 0)
    assert len(needs_w) == len(points)
    assert list(needs_w) == sorted(needs_w, reverse=True)
    profiles = {
        name: msgspec.structs.replace(
            each, rows=tuple(msgspec.structs.replace(row, energy_j=None) for row in each.rows)
        )
        for name, each in of.profiles.items()
    }
    timed = msgspec.structs.replace(plan, job=msgspec.structs.replace(of, profiles=profiles))
    assert needs_of(timed, points, 0) == ()


def test_a_budget_that_limits_exceed_is_refused() -> None:
    check_budget((350.0, 350.0), 700.0)
    for budget_w in (699.0, math.nan, math.inf):
        with pytest.raises(UsageError, match="add up to 700 W already") as error:
            check_budget((350.0, 350.0), budget_w)
    assert error.value.hint == "say --node-power 700 or more, or lower the limits before"


class Node:
    """A node of two replicas of two stages, of which rank 2 is limited to less than the others."""

    def __init__(self, budget_w: float = 1250.0, some: Sequence[NodeGpu] = ()) -> None:
        self.boards = tuple(some) or (_board(), _board(), _board(200.0), _board())
        self.watts = NodeWatts(self.boards, first=0, budget_w=budget_w, chosen=_CHOSEN)
        self.budget_w, self.moves = budget_w, 0

    def read(self, rank: int, power_w: float, *, capped: bool = False) -> None:
        for _ in range(READINGS):
            self.watts.drew(rank, power_w, capped=capped)

    def set_all(self) -> list[tuple[int, float]]:
        """Set everything that is due."""
        done = []
        while (due := self.watts.due()) is not None:
            done.append(due)
            self.watts.answered(due[0])
            assert math.fsum(self.watts.limits_w) <= self.budget_w + _ROUNDING_W
        return done


def test_watts_are_moved_once_what_falls_first_and_go_back_with_the_plan() -> None:
    node = Node()
    node.watts.ordered(_PLAN, None)
    node.read(2, 199.0)
    assert not node.set_all()  # nobody waits for it
    node.watts.ordered(_SLOWED, 2)
    node.read(2, 150.0)
    assert not node.set_all()  # its limit does not hold it down
    node.read(2, 90.0, capped=True)
    assert not node.set_all()  # it waited
    node.read(2, 199.0)
    assert node.watts.due() is not None
    assert node.watts.words(2) == "for it holds this rank down, and the others wait for that"
    assert node.watts.words(0) == "the rest goes to a rank that others wait for"
    assert node.set_all() == [(0, 283.0), (1, 283.0), (3, 284.0), (2, 400.0)]
    node.watts.ordered(_PLAN, None)
    assert not node.set_all()  # it is a straggler no more, and keeps them
    node.watts.ordered(_SLOWED, 3)
    node.read(3, 349.0)
    assert not node.set_all()
    node.watts.ordered((None,) * 4, None)
    assert node.set_all() == [(2, 200.0), (0, 350.0), (1, 350.0), (3, 350.0)]
    assert node.watts.words(2) == "as it was found: the plan is held no more"
    node.watts.ordered(_SLOWED, 2)
    node.read(2, 199.0)
    assert not node.set_all()


def test_what_ranks_draw_counts_where_it_is_more_than_was_planned() -> None:
    node = Node()
    node.watts.ordered(_SLOWED, 2)
    node.read(0, 300.0)
    node.read(2, 199.0)
    assert node.set_all() == [(1, 271.0), (3, 271.0), (0, 308.0), (2, 400.0)]


def test_a_straggler_of_another_node_is_that_ones() -> None:
    node = Node()
    away = NodeWatts(node.boards, first=4, budget_w=1250.0, chosen=_CHOSEN)
    away.ordered((_CHOSEN, _CHOSEN, _CHOSEN, _CHOSEN, 5, 5, 5, 5), 2)
    for rank, _ in itertools.product(range(4, 8), range(READINGS)):
        away.drew(rank, 350.0, capped=True)
    assert away.due() is None


@pytest.mark.parametrize("refuses", [0, 1, 2])
def test_where_a_limit_is_refused_all_go_back(refuses: int) -> None:
    node = Node()
    node.watts.ordered(_SLOWED, 2)
    node.read(2, 199.0)
    asked = 0
    while (due := node.watts.due()) is not None:
        node.watts.answered(due[0], "it may not be" if asked == refuses else "")
        asked += 1
        assert math.fsum(node.watts.limits_w) <= node.budget_w + _ROUNDING_W
    assert node.watts.limits_w == [each.limit_w for each in node.boards]
    assert (node.watts.over, asked) == ("it may not be", 2 * refuses + 1)


@given(nodes, st.data())
def test_whatever_is_refused_the_limits_never_add_up_to_more_than_the_budget(
    some: list[NodeGpu], data: st.DataObject
) -> None:
    sum_w = math.fsum(each.limit_w for each in some)
    node = Node(sum_w + data.draw(st.floats(0.0, 200.0)), some)
    count = len(some)
    points = st.lists(st.none() | st.integers(0, 6), min_size=count, max_size=count)
    raised = set()
    for _ in range(data.draw(st.integers(1, 4))):
        slow = data.draw(st.none() | st.integers(0, count - 1))
        node.watts.ordered(data.draw(points | st.just([5] * count)), slow)
        for rank in range(count):
            node.read(rank, some[rank].limit_w, capped=True)
        for _ in range(8 * count):
            due = node.watts.due()
            if due is None:
                break
            rank, limit_w = due
            assert some[rank].range_w[0] <= limit_w <= some[rank].range_w[1]
            refused = data.draw(st.booleans())
            if limit_w > some[rank].limit_w:
                raised.add(rank)
            node.watts.answered(rank, "no" if refused else "")
            assert math.fsum(node.watts.limits_w) <= node.budget_w + _ROUNDING_W
        assert node.watts.due() is None
    assert len(raised) <= 1
