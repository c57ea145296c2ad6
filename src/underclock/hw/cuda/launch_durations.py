"""How long each launch of a round took, from what a profiler saw of graphs launched over and over.

A profiler that looks on for a while sees some graphs in part: those under way when it began and
ended. Only graphs seen whole count.
"""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from underclock.records.launches import Node, NodeKind, TracedActivity

_OVERLAP = 0.1  # of a launch: an H200 shows 0.03 of launches in turn


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLaunch:
    """A graph that is launched over and over.

    Attributes:
        nodes: Its nodes, in launch order.
        places: Place in a round that each node serves, memsets and copies that of their kernel;
            ``None`` for none.
        times: How often each place is launched in it.
    """

    nodes: tuple[Node, ...]
    places: tuple[int | None, ...]
    times: Mapping[int, int]


def mean_durations(
    seen: Iterable[Sequence[TracedActivity]], graphs: Sequence[GraphLaunch]
) -> dict[int, float] | None:
    """Return the mean duration in s of a launch of each place, without the gaps between launches.

    A launch lasts until it ends or the next begins: on an H200 the timestamps of kernels that write
    much overlap those of their successors by up to 3 % of their duration, so that plain durations
    add up to more than the time they took. What overlaps by more runs side by side with its
    successor, and takes as long as it takes.

    Args:
        seen: What the GPU did for each launch of a graph, in order; also of other graphs.
        graphs: Those that were launched.

    Returns:
        By place; ``None`` where some graph was not seen whole.
    """
    took_s: dict[int, float] = defaultdict(float)
    times: Counter[int] = Counter()
    missing = set(range(len(graphs)))
    every = list(seen)
    for number, activities in enumerate(every):
        found = _found(activities, graphs)
        if found is None:
            continue
        index, places = found
        after = every[number + 1][0].start_s if number + 1 < len(every) else math.inf
        begins_s = [*(activity.start_s for activity in activities[1:]), after]
        for activity, place, next_s in zip(activities, places, begins_s, strict=True):
            if place is not None:
                took_s[place] += _lasted_s(activity, next_s)
        times.update(graphs[index].times)
        missing.discard(index)
    if missing:
        return None
    return {place: took_s[place] / count for place, count in times.items()}


def _lasted_s(activity: TracedActivity, next_s: float) -> float:
    """Return how long a launch lasted, of which the end may overlap the next one's begin."""
    until_next_s = next_s - activity.start_s
    over_s = activity.duration_s - until_next_s
    in_turn = over_s <= _OVERLAP * activity.duration_s
    return min(activity.duration_s, until_next_s) if in_turn else activity.duration_s


def _found(
    activities: Sequence[TracedActivity], graphs: Sequence[GraphLaunch]
) -> tuple[int, list[int | None]] | None:
    """Return which graph ran, and the place of each activity; ``None`` where none ran whole.

    Of equal launches the first seen is the first launched, whatever ran beside them. Where a
    profiler writes functions in another way than the driver, launches go by their order alone.
    """
    for key in (_by_function, _by_kind):
        seen = Counter(map(key, activities))
        for index, graph in enumerate(graphs):
            waiting: dict[tuple[NodeKind, str], deque[int | None]] = defaultdict(deque)
            for node, place in zip(graph.nodes, graph.places, strict=True):
                if node.kind is not NodeKind.OTHER:
                    waiting[key(node)].append(place)
            if seen == {each: len(places) for each, places in waiting.items()}:
                return index, [waiting[key(activity)].popleft() for activity in activities]
    return None


def _by_function(one: Node | TracedActivity) -> tuple[NodeKind, str]:
    return one.kind, one.function


def _by_kind(one: Node | TracedActivity) -> tuple[NodeKind, str]:
    return one.kind, ""
