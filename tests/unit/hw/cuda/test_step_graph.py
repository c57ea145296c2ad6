"""Which node of a graph serves which launch of a round."""

from typing import Any

from underclock.hw.cuda.durations import GraphLaunch
from underclock.hw.cuda.graphs import GraphNode
from underclock.hw.cuda.round_graphs import graph_of, step_graphs
from underclock.records.launches import LaunchGroup, Node, NodeKind

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
