"""How long each launch of a step took that runs as it is written, from what a profiler saw.

Launches of such a step are not tied together, as those of a graph are. So a mark is put before
each round: a graph of three spins, which nothing else launches. A launch lasts until the next one
begins, waiting for the host included: so launches add up to the step.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cache

import numpy as np

from underclock.records.launches import Node, NodeKind, TracedActivity

MARKS = 3
"""Spins that a mark is made of."""
_SPIN = "spin"  # in the name of PyTorch's kernel that counts cycles
_LEAST_ALIKE = 0.9  # of the launches; a step that launches more than these otherwise is another
_Key = tuple[NodeKind, str]
_Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerRound:
    """What a round is made of: steps, then company in one graph.

    Attributes:
        nodes: What one step launches, in order.
        places: Place in the round of each.
        steps: How many run in a round.
        company: Place of each node of the company's graph; empty where there is none.
    """

    nodes: tuple[Node, ...]
    places: tuple[int, ...]
    steps: int
    company: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerDurations:
    """What rounds took.

    Attributes:
        mean_s: Mean duration of a launch of each place.
        waited: Part of the steps' time in which the GPU had nothing to do.
    """

    mean_s: dict[int, float]
    waited: float


@dataclass(slots=True)
class _Sums:
    took_s: dict[int, float] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)
    step_s: float = 0.0
    idle_s: float = 0.0

    def add(self, places: Sequence[int], each_s: Iterable[float]) -> None:
        for place, one_s in zip(places, each_s, strict=True):
            self.took_s[place] = self.took_s.get(place, 0.0) + one_s

    def count(self, places: Iterable[int], times: int = 1) -> None:
        for place in places:
            self.times[place] = self.times.get(place, 0) + times


def eager_durations(
    seen: Iterable[Sequence[TracedActivity]], round_: EagerRound
) -> EagerDurations | None:
    """Return what launches took in the rounds that were seen whole.

    Args:
        seen: What the GPU did for each call that launches, in order.
        round_: What a round is made of.

    Returns:
        ``None`` where no round was seen whole, or none launched what it should.
    """

    @cache
    def aligned(keys: tuple[_Key, ...]) -> _Pairs | None:
        return _pairs(round_, keys)

    sums = _Sums()
    inside: list[Sequence[TracedActivity]] | None = None
    begun_s = 0.0
    for call in seen:
        if not _is_mark(call):
            if inside is not None:
                inside.append(call)
            continue
        if inside is not None:
            _add(sums, round_, inside, (begun_s, call[0].start_s), aligned)
        inside, begun_s = [], call[-1].start_s + call[-1].duration_s
    if not sums.times or min(sums.took_s.values()) <= 0:
        return None
    return EagerDurations(
        mean_s={place: took_s / sums.times[place] for place, took_s in sums.took_s.items()},
        waited=sums.idle_s / sums.step_s if sums.step_s else 0.0,
    )


def _is_mark(call: Sequence[TracedActivity]) -> bool:
    return len(call) == MARKS and all(_SPIN in one.function for one in call)


def _add(
    sums: _Sums,
    round_: EagerRound,
    calls: list[Sequence[TracedActivity]],
    span_s: tuple[float, float],
    aligned: Callable[[tuple[_Key, ...]], _Pairs | None],
) -> None:
    """Add a round; one that is not what it should be is passed over."""
    begun_s, ended_s = span_s
    company: Sequence[TracedActivity] = ()
    if round_.company:
        company = calls[-1] if calls else ()
        if len(company) != len(round_.company):
            return
        calls, ended_s = calls[:-1], company[0].start_s
    ran = sorted((one for call in calls for one in call), key=lambda one: one.start_s)
    if round_.steps:
        found = aligned(tuple((one.kind, one.function) for one in ran))
        if found is None:
            return
        nodes = len(round_.nodes) * round_.steps
        at, starts = [0, *(n for n, _ in found if n), nodes], [begun_s]
        starts += [ran[a].start_s for n, a in found if n]
        edges = np.interp(np.arange(nodes + 1), at, [*starts, ended_s])
        sums.add(round_.places * round_.steps, np.diff(edges).tolist())
        sums.count(set(round_.places), round_.steps)
        sums.step_s += ended_s - begun_s
        sums.idle_s += _idle_s(ran, begun_s, ended_s)
    elif ran:
        return
    sums.add(round_.company, (one.duration_s for one in company))
    sums.count(round_.company)


def _pairs(round_: EagerRound, ran: tuple[_Key, ...]) -> _Pairs | None:
    """Return which activity each node is, as pairs; nodes that did not run are left out.

    Returns:
        ``None`` where too few ran.
    """
    wanted = tuple((node.kind, node.function) for node in round_.nodes) * round_.steps
    if wanted == ran:
        return tuple((n, n) for n in range(len(ran)))
    blocks = SequenceMatcher(None, wanted, ran, autojunk=False).get_matching_blocks()
    pairs = tuple((a + i, b + i) for a, b, size in blocks for i in range(size))
    return pairs if len(pairs) >= _LEAST_ALIKE * max(len(wanted), len(ran)) else None


def _idle_s(ran: Sequence[TracedActivity], begun_s: float, ended_s: float) -> float:
    """Return for how long nothing ran between two moments."""
    idle_s, until_s = 0.0, begun_s
    for one in ran:
        idle_s += max(0.0, one.start_s - until_s)
        until_s = max(until_s, one.start_s + one.duration_s)
    return idle_s + max(0.0, ended_s - until_s)
