"""What a round launches as nodes of graphs, and which launch each node serves."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from underclock.hw.cuda.graphs import GraphNode
from underclock.hw.cuda.launch_durations import GraphLaunch, places_of
from underclock.hw.rounds import Round, Turn
from underclock.records.launches import LaunchGroup

Places = dict[int, list[GraphNode]]
"""Nodes of a launch of each place of a round."""
Parts = list[tuple[int, list[GraphNode]]]
"""Of a round in turn: the place of each, and its nodes."""


def parts_of(turns: Sequence[Turn], places: Places) -> Parts:
    """Return what turns launch, one by one."""
    return [(turn.place, places[turn.place]) for turn in turns for _ in range(turn.times)]


def flat(parts: Parts) -> list[GraphNode]:
    """Return the nodes of parts in turn."""
    return [node for _, nodes in parts for node in nodes]


def step_graphs(
    nodes: Sequence[GraphNode], ends: Sequence[int], groups: Sequence[LaunchGroup]
) -> tuple[GraphLaunch, ...]:
    """Describe the graphs of a whole step; those that do no work are left out.

    Args:
        nodes: Of all of them.
        ends: Where each graph ends in them.
        groups: Those of each launch; a memset may serve several, but runs once.
    """
    places = places_of(groups)
    graphs = []
    for begin, end in pairwise([0, *ends]):
        graph = GraphLaunch(
            nodes=tuple(node.node for node in nodes[begin:end]),
            places=tuple(places.get(index) for index in range(begin, end)),
            times={
                place: 1 for place, group in enumerate(groups) if begin <= group.nodes[-1] < end
            },
        )
        if graph.working:
            graphs.append(graph)
    return tuple(graphs)


def in_pieces(
    nodes: Sequence[GraphNode],
    groups: Sequence[LaunchGroup],
    round_: Round,
    company: Places,
) -> tuple[list[GraphNode], GraphLaunch]:
    """Put company between the launches of a step; return what runs, and what tells it apart.

    Args:
        nodes: Of the step's graph.
        groups: Those of each launch.
        round_: After which launches company runs.
        company: What runs there.
    """
    places = places_of(groups)
    step = [(node, places.get(index)) for index, node in enumerate(nodes)]
    launches = step * round_.mix.launches
    runs: list[tuple[GraphNode, int | None]] = []
    begin = 0
    for piece, after in enumerate(round_.mix.after):
        steps, launch = divmod(after - 1, len(groups))
        end = max(begin, len(nodes) * steps + groups[launch].nodes[-1] + 1)
        runs += launches[begin:end]
        for place, each in parts_of(round_.company(piece), company):
            runs += [(node, place) for node in each]
        begin = end
    runs += launches[begin:]
    graph = GraphLaunch(
        nodes=tuple(node.node for node, _ in runs),
        places=tuple(place for _, place in runs),
        times=round_.launches(),
    )
    return [node for node, _ in runs], graph


def graph_of(parts: Parts) -> GraphLaunch:
    """Describe a graph that launches parts of a round in turn, each with its place."""
    return GraphLaunch(
        nodes=tuple(node.node for node in flat(parts)),
        places=tuple(place for place, nodes in parts for _ in nodes),
        times=Counter(place for place, _ in parts),
    )
