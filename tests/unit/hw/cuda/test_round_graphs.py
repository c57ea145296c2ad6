"""Nodes of a round's graphs, which launch each serves, and co-load that does not fit."""

from typing import Any

from underclock.hw.cuda.durations import GraphLaunch
from underclock.hw.cuda.graphs import GraphNode, cleared_before
from underclock.hw.cuda.round_graphs import step_graphs
from underclock.records.work import LaunchGroup, Node, NodeKind


def kernel(*words: int) -> GraphNode:
    return GraphNode(Node(kind=NodeKind.KERNEL, function="k"), None, words)


def memset(start: int, size: int) -> GraphNode:
    return GraphNode(Node(kind=NodeKind.MEMSET, bytes=size), None, (start,))


def test_a_kernel_finds_the_memsets_of_memory_it_is_given() -> None:
    nodes = [memset(100, 32), kernel(5, 131), kernel(132), memset(500, 8), kernel(100, 507)]
    assert cleared_before(nodes) == ((), (0,), (), (), (0, 3))


_KERNEL, _MEMSET, _EVENT = (
    Node(kind=kind) for kind in (NodeKind.KERNEL, NodeKind.MEMSET, NodeKind.OTHER)
)


def _handled(*nodes: Node) -> list[GraphNode]:
    handle: Any = None
    return [GraphNode(node, handle, ()) for node in nodes]


def _group(*nodes: int) -> LaunchGroup:
    return LaunchGroup(nodes=nodes, activity=None)


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
