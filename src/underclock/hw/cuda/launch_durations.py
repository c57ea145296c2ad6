"""How long each launch of a round took, from what a profiler saw of graphs launched over and over.

A profiler that looks on for a while sees some graphs in part: those under way when it began and
ended. Only graphs seen whole count.
"""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from underclock.records.launches import LaunchGroup, Node, NodeKind, TracedActivity

_OVERLAP = 0.1  # of a launch: an H200 shows 0.03 of launches in turn


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLaunch:
    """A graph that is launched over and over.

    Attributes:
        nodes: Its nodes, in launch order.
        places: Place in a round that each node serves, what serves a kernel that of the kernel;
            ``None`` for none.
        times: How often each place is launched in it.
    """

    nodes: tuple[Node, ...]
    places: tuple[int | None, ...]
    times: Mapping[int, int]

    @property
    def working(self) -> tuple[Node, ...]:
        """Those of its nodes that do work."""
        return tuple(node for node in self.nodes if node.kind is not NodeKind.OTHER)


Runs = tuple[tuple[GraphLaunch, ...], ...]
"""What is launched over and over, each a graph or several in turn: the parts of a step."""


def places_of(groups: Sequence[LaunchGroup]) -> dict[int, int]:
    """Return which launch each node serves; the first, where several."""
    places: dict[int, int] = {}
    for place, group in enumerate(groups):
        for node in group.nodes:
            places.setdefault(node, place)
    return places


def mean_durations(seen: Iterable[Sequence[TracedActivity]], runs: Runs) -> dict[int, float] | None:
    """Return the mean duration in s of a launch of each place, without the gaps between launches.

    A launch lasts until it ends or the next begins: on an H200 the timestamps of kernels that write
    much overlap those of their successors by up to 3 % of their duration, so that plain durations
    add up to more than the time they took. What overlaps by more runs side by side with its
    successor, and takes as long as it takes.

    Args:
        seen: What the GPU did for each launch of a graph, in order; also of other graphs.
        runs: What was launched.

    Returns:
        By place; ``None`` where some run was not seen whole.
    """
    took_s: dict[int, float] = defaultdict(float)
    times: Counter[int] = Counter()
    missing = set(range(len(runs)))
    every = [activities for activities in seen if activities]
    known = _alike(every, runs)
    begins_s = [activities[0].start_s for activities in every] + [math.inf]
    counted: set[int] = set()
    for number in range(len(every)):
        for index, graphs in enumerate(runs):
            launches = _whole(known, number, index, len(graphs)) if number not in counted else []
            counted.update(launches)
            for launch, graph in zip(launches, graphs, strict=False):
                places = _places(every[launch], graph)
                next_s = [*(one.start_s for one in every[launch][1:]), begins_s[launch + 1]]
                for activity, place, after_s in zip(every[launch], places, next_s, strict=True):
                    if place is not None:
                        took_s[place] += _lasted_s(activity, after_s)
                times.update(graph.times)
            if launches:
                missing.discard(index)
                break
    if missing:
        return None
    return {place: took_s[place] / count for place, count in times.items()}


def _lasted_s(activity: TracedActivity, next_s: float) -> float:
    """Return how long a launch lasted, of which the end may overlap the next one's begin."""
    until_next_s = next_s - activity.start_s
    over_s = activity.duration_s - until_next_s
    in_turn = over_s <= _OVERLAP * activity.duration_s
    return min(activity.duration_s, until_next_s) if in_turn else activity.duration_s


def _alike(every: Sequence[Sequence[TracedActivity]], runs: Runs) -> list[set[tuple[int, int]]]:
    """Return for each launch which graphs it may have been of: of which run, and which in that.

    Where a profiler writes functions in another way than the driver, launches of a graph are told
    by their number alone.
    """
    ran = [(key, [Counter(map(key, launch)) for launch in every]) for key in _KEYS]
    known: list[set[tuple[int, int]]] = [set() for _ in every]
    for run, graphs in enumerate(runs):
        for part, graph in enumerate(graphs):
            for key, counts in ran:
                wanted = Counter(map(key, graph.working))
                alike = [launch for launch, count in enumerate(counts) if count == wanted]
                for launch in alike:
                    known[launch].add((run, part))
                if alike:
                    break
    return known


def _whole(known: Sequence[set[tuple[int, int]]], number: int, run: int, parts: int) -> list[int]:
    """Return the launches of one run, from a launch on; none where it is not whole.

    Between its parts PyTorch launches what sets its random generator.
    """
    launches: list[int] = []
    for launch in range(number, len(known)):
        if (run, len(launches)) in known[launch]:
            launches.append(launch)
            if len(launches) == parts:
                return launches
        elif known[launch] or launch == number:
            break
    return []


def _places(activities: Sequence[TracedActivity], graph: GraphLaunch) -> list[int | None]:
    """Return the place of each activity of a graph's launch.

    Of equal launches the first seen is the first launched, whatever ran beside them.
    """
    for key in _KEYS:
        waiting: dict[tuple[NodeKind, str], deque[int | None]] = defaultdict(deque)
        for node, place in zip(graph.nodes, graph.places, strict=True):
            if node.kind is not NodeKind.OTHER:
                waiting[key(node)].append(place)
        if Counter(map(key, activities)) == {each: len(its) for each, its in waiting.items()}:
            break
    return [waiting[key(activity)].popleft() for activity in activities]


def _by_function(one: Node | TracedActivity) -> tuple[NodeKind, str]:
    return one.kind, one.function


def _by_kind(one: Node | TracedActivity) -> tuple[NodeKind, str]:
    return one.kind, ""


_KEYS = (_by_function, _by_kind)
