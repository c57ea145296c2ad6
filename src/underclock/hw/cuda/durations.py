"""How long each launch of a round took, from what a profiler saw.

Graphs are launched over and over. A profiler that looks on for a while sees some in part: those
under way when it began and ended. Only graphs seen whole count.

Launches of a step that runs as it is written are not tied together, as those of a graph are. So a
mark is put before each round: a graph of three spins, which nothing else launches. There a launch
lasts until the next one begins, waiting for the host included: so launches add up to the step.
"""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache, partial
from itertools import pairwise

import numpy as np

from underclock.records.work import LaunchGroup, Node, NodeKind, TracedActivity, busy_s

MARKS = 3
"""Spins that a mark is made of."""
_SPIN = "spin"  # in the name of PyTorch's kernel that counts cycles
_LEAST_ALIKE = 0.9  # of the launches; a step that launches more than these otherwise is another
_OVERLAP = 0.1  # of a launch: an H200 shows 0.03 of launches in turn
_Key = tuple[NodeKind, str]
_Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLaunch:
    """A graph that is launched over and over."""

    nodes: tuple[Node, ...]  # its nodes, in launch order
    # Place in a round that each node serves, what serves a kernel that of the kernel; None for none
    places: tuple[int | None, ...]
    times: Mapping[int, int]  # how often each place is launched in it

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
    successor, and takes as long as it takes. It is ``None`` where some run was not seen whole.
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
                        lasted_s, until_s = activity.duration_s, after_s - activity.start_s
                        in_turn = lasted_s - until_s <= _OVERLAP * lasted_s
                        took_s[place] += min(lasted_s, until_s) if in_turn else lasted_s
                times.update(graph.times)
            if launches:
                missing.discard(index)
                break
    if missing:
        return None
    return {place: took_s[place] / count for place, count in times.items()}


def _alike(every: Sequence[Sequence[TracedActivity]], runs: Runs) -> list[set[tuple[int, int]]]:
    """Return for each launch which graphs it may have been of: of which run, and which in that."""
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
    """Return the launches of one run, from a launch on; none where it is not whole."""
    launches: list[int] = []
    for launch in range(number, len(known)):
        if (run, len(launches)) in known[launch]:
            launches.append(launch)
            if len(launches) == parts:
                return launches
        elif known[launch] or launch == number:  # else what sets PyTorch's random generator
            break
    return []


def _places(activities: Sequence[TracedActivity], graph: GraphLaunch) -> list[int | None]:
    """Return the place of each activity of a launch; of equal ones the first seen comes first."""
    for key in _KEYS:
        waiting: dict[tuple[NodeKind, str], deque[int | None]] = defaultdict(deque)
        for node, place in zip(graph.nodes, graph.places, strict=True):
            if node.kind is not NodeKind.OTHER:
                waiting[key(node)].append(place)
        if Counter(map(key, activities)) == {each: len(its) for each, its in waiting.items()}:
            break
    return [waiting[key(activity)].popleft() for activity in activities]


_KEYS: tuple[Callable[[Node | TracedActivity], _Key], ...] = (
    lambda one: (one.kind, one.function),
    lambda one: (one.kind, ""),  # where a profiler writes functions otherwise than the driver
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerRound:
    """What a round is made of: steps, then co-load in one graph."""

    nodes: tuple[Node, ...]  # what one step launches, in order
    places: tuple[int, ...]  # place in the round of each
    steps: int  # how many run in a round
    # Place of each node of the co-load's graph; empty where there is none
    coload: tuple[int, ...] = ()


def eager_durations(
    seen: Sequence[Sequence[TracedActivity]], round_: EagerRound
) -> tuple[dict[int, float], float] | None:
    """Return what launches took in the rounds that were seen whole; ``None`` without any.

    Returns:
        The mean duration of a launch of each place in s, and the part of the steps' time in which
        the GPU had nothing to do.
    """
    aligned = cache(partial(_pairs, round_))
    took_s: dict[int, float] = defaultdict(float)
    times: Counter[int] = Counter()
    step_s = idle_s = 0.0
    marks = [
        at
        for at, call in enumerate(seen)
        if len(call) == MARKS and all(_SPIN in one.function for one in call)
    ]
    for mark, following in pairwise(marks):
        calls, ended_s = seen[mark + 1 : following], seen[following][0].start_s
        begun_s = seen[mark][-1].start_s + seen[mark][-1].duration_s
        coload: Sequence[TracedActivity] = ()
        if round_.coload:
            coload = calls[-1] if calls else ()
            if len(coload) != len(round_.coload):
                continue
            calls, ended_s = calls[:-1], coload[0].start_s
        ran = sorted((one for call in calls for one in call), key=lambda one: one.start_s)
        lasted = [(at, one.duration_s) for at, one in zip(round_.coload, coload, strict=True)]
        if round_.steps:
            found = aligned(tuple((one.kind, one.function) for one in ran))
            if found is None:
                continue
            nodes = len(round_.nodes) * round_.steps
            at, starts = [0, *(n for n, _ in found if n), nodes], [begun_s]
            starts += [ran[a].start_s for n, a in found if n]
            edges = np.interp(np.arange(nodes + 1), at, [*starts, ended_s])
            lasted += zip(round_.places * round_.steps, np.diff(edges).tolist(), strict=True)
            times.update(dict.fromkeys(round_.places, round_.steps))
            step_s += ended_s - begun_s
            idle_s += max(0.0, ended_s - begun_s - busy_s(ran))
        elif ran:
            continue
        for place, one_s in lasted:
            took_s[place] += one_s
        times.update(round_.coload)
    if not times or min(took_s.values()) <= 0:
        return None
    mean_s = {place: took_s[place] / count for place, count in times.items()}
    return mean_s, idle_s / step_s if step_s else 0.0


def _pairs(round_: EagerRound, ran: tuple[_Key, ...]) -> _Pairs | None:
    """Return which activity each node is, as pairs; nodes that did not run are left out."""
    wanted = tuple((node.kind, node.function) for node in round_.nodes) * round_.steps
    if wanted == ran:
        return tuple((n, n) for n in range(len(ran)))
    blocks = SequenceMatcher(None, wanted, ran, autojunk=False).get_matching_blocks()
    pairs = tuple((a + i, b + i) for a, b, size in blocks for i in range(size))
    return pairs if len(pairs) >= _LEAST_ALIKE * max(len(wanted), len(ran)) else None
