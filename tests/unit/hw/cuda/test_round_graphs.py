"""Nodes of a round's graphs, which launch each serves, and co-load that does not fit."""

import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from underclock.errors import NoRoomError
from underclock.hw.cuda.durations import GraphLaunch
from underclock.hw.cuda.graphs import GraphNode, cleared_before
from underclock.hw.cuda.round_graphs import first_that_fits, graph_of, step_graphs
from underclock.records.work import LaunchGroup, Node, NodeKind


def kernel(*words: int) -> GraphNode:
    return GraphNode(Node(kind=NodeKind.KERNEL, function="k"), None, words)


def memset(start: int, size: int) -> GraphNode:
    return GraphNode(Node(kind=NodeKind.MEMSET, bytes=size), None, (start,))


def test_a_kernel_finds_the_memsets_of_memory_it_is_given() -> None:
    nodes = [memset(100, 32), kernel(5, 131), kernel(132), memset(500, 8), kernel(100, 507)]
    assert cleared_before(nodes) == ((), (0,), (), (), (0, 3))


def test_the_last_memset_of_the_same_memory_counts() -> None:
    nodes = [memset(100, 32), memset(100, 32), kernel(101)]
    assert cleared_before(nodes) == ((), (), (1,))


def test_a_memset_that_comes_later_serves_nobody_before_it() -> None:
    assert cleared_before([kernel(100), memset(100, 4)]) == ((), ())


_KERNEL, _MEMSET, _EVENT = (
    Node(kind=kind) for kind in (NodeKind.KERNEL, NodeKind.MEMSET, NodeKind.OTHER)
)


def _handled(*nodes: Node) -> list[GraphNode]:
    handle: Any = None
    return [GraphNode(node, handle, ()) for node in nodes]


def _group(*nodes: int) -> LaunchGroup:
    return LaunchGroup(nodes=nodes, activity=None)


def test_parts_of_a_round_keep_their_place_in_a_graph() -> None:
    served, hot, idle = _handled(_MEMSET, _KERNEL), _handled(_KERNEL), _handled(_KERNEL)
    parts = [(0, served), (0, served), (1, hot), (2, idle)]

    assert graph_of(parts * 2) == GraphLaunch(
        nodes=(_MEMSET, _KERNEL, _MEMSET, _KERNEL, _KERNEL, _KERNEL) * 2,
        places=(0, 0, 0, 0, 1, 2) * 2,
        times={0: 4, 1: 2, 2: 2},
    )


def test_a_memset_far_before_its_kernel_serves_it_and_counts_once() -> None:
    nodes = _handled(_MEMSET, _EVENT, _KERNEL, _KERNEL, _KERNEL)
    groups = (_group(2), _group(0, 3), _group(0, 4))

    assert step_graphs(nodes, [5], groups) == (
        GraphLaunch(
            nodes=(_MEMSET, _EVENT, _KERNEL, _KERNEL, _KERNEL),
            places=(1, None, 0, 1, 2),
            times={0: 1, 1: 1, 2: 1},
        ),
    )


def test_each_part_of_a_step_that_does_something_is_a_graph() -> None:
    nodes = _handled(_MEMSET, _KERNEL, _EVENT, _KERNEL, _KERNEL)
    groups = (_group(1), _group(0, 3), _group(4))

    assert step_graphs(nodes, [2, 2, 3, 5], groups) == (
        GraphLaunch(nodes=(_MEMSET, _KERNEL), places=(1, 0), times={0: 1}),
        GraphLaunch(nodes=(_KERNEL, _KERNEL), places=(1, 2), times={1: 1, 2: 1}),
    )


class FakeOutOfMemoryError(Exception):
    pass


class Operand:
    pass


class FakeTorch:
    """A GPU with so many MiB free."""

    OutOfMemoryError = FakeOutOfMemoryError

    def __init__(self, free_mib: int) -> None:
        self.free = free_mib * 2**20
        self.emptied = 0
        self.first: weakref.ref[Operand] | None = None
        self.cuda = SimpleNamespace(
            empty_cache=self._empty, mem_get_info=lambda: (self.free, 80 * 2**30)
        )

    def _empty(self) -> None:
        assert self.first is None or self.first() is None  # nothing is left of what did not fit
        self.emptied += 1

    def product(self, side: int) -> Callable[[], object]:
        operand = Operand()
        self.first = weakref.ref(operand)
        if 6 * side**2 > self.free:
            raise FakeOutOfMemoryError(side)
        return lambda: (operand, side)[1]


@pytest.mark.parametrize(("free_mib", "side"), [(1000, 8192), (384, 8192), (383, 4096)])
def test_the_largest_product_that_fits_is_taken(free_mib: int, side: int) -> None:
    torch = FakeTorch(free_mib)
    taken, work = first_that_fits(torch, (8192, 4096), torch.product)

    assert taken == work() == side
    assert torch.emptied == (side == 4096)


def test_where_none_fits_the_sizes_are_told() -> None:
    torch = FakeTorch(50)
    with pytest.raises(
        NoRoomError, match=r"takes 96 MiB beside the step, and 50 of 81920 MiB are free"
    ) as caught:
        first_that_fits(torch, (8192, 4096), torch.product)
    assert "lower the batch" in caught.value.hint
