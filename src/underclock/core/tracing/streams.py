"""Launches on several streams: what waits for what, and which could take longer for nothing.

A stream runs its launches one after another. The profile lists
waits of a stream for another, except those of its first launch. Where it lists none, waits are
inferred from times: its stream stood idle, and in that time the other
launch ended. A wait that was over before its stream came to it is seen by no clock, so without a
list of waits slack is an upper bound.

What lies between two launches of a profiled step is mostly the host, which a profiler
slows; in training it is ahead of its GPU. Of a rank by itself, the step does not wait for the
part of its collectives that overlaps other launches.

Shape letters: n launches, in the order in which the host asked for them.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from underclock.arrays import Bools, Floats
from underclock.records import Pass
from underclock.records.work import NodeKind, TracedActivity

Wait = tuple[int, int]
"""A launch, and another that it waits for."""
_SAME = 1e-9  # of times in s, which profiles round
GAP_S = 1.7e-6
"""Between two launches of one stream, where the host is ahead: median over 656 launches of a GPT-3
step on two H200s (docs/evidence/h200/parallel.md)."""
_DIGITS = 4  # of a share: more is rounding of a profile
_BESIDE = 0.01  # of the time that they take: less overlap with other launches counts as none
_LEAST_COPY_S = 1e-4  # shorter ones cut a pass for nothing


@dataclass(frozen=True, slots=True)
class Streams:
    """What waits for what."""

    duration_s: Floats  # of each launch, (n,)
    waits: tuple[tuple[int, ...], ...]  # for each launch those that must have ended
    lag_s: Floats  # how long after the last of these it began, (n,)
    order: tuple[int, ...]  # launches, each after all that it waits for

    def ends_s(self) -> Floats:
        """Return when launches end. Shape (n,)."""
        ends: Floats = np.zeros(len(self.duration_s))
        for i in self.order:
            begun_s = max((float(ends[j]) for j in self.waits[i]), default=0.0)
            ends[i] = begun_s + self.lag_s[i] + self.duration_s[i]
        return ends

    def step_s(self) -> float:
        """Return how long all of it takes: the longest path."""
        return float(self.ends_s().max(initial=0.0))

    def kept_fed(self) -> "Streams":
        """Return the same where the host keeps ahead, as it does while no profiler looks on."""
        return dataclasses.replace(self, lag_s=np.minimum(self.lag_s, GAP_S))

    def slack_s(self) -> Floats:
        """Return by how much each launch alone may lengthen at no cost in time. Shape (n,)."""
        ends = self.ends_s()
        latest: Floats = np.full(len(ends), ends.max(initial=0.0))
        for i in reversed(self.order):
            begins_s = latest[i] - self.duration_s[i] - self.lag_s[i]
            for j in self.waits[i]:
                latest[j] = min(latest[j], begins_s)
        slack: Floats = np.maximum(latest - ends, 0.0)
        return slack

    def waited_by(self, main: Bools) -> tuple[int | None, ...]:
        """Return the first of some launches that waits for each other; ``None`` where none does.

        Be it for what waits for that in turn.

        Args:
            main: Which launches. Shape (n,).
        """
        place = {i: at for at, i in enumerate(self.order)}
        found: list[int | None] = [None] * len(self.order)
        for i in reversed(self.order):
            first = i if main[i] else found[i]
            for j in self.waits[i]:
                known = found[j]
                if first is None or main[j] or (known is not None and place[known] < place[first]):
                    continue
                found[j] = first
        return tuple(found)

    def exposed_s(self, apart: Bools) -> Floats:
        """Return by how much the step shortens as some launches come to take no time. Shape (n,).

        The last of them first: of two side by side, what the other hides is the other's, and of a
        chain that outlasts the launches it overlaps only its end. So what is exposed adds
        up to what the step would be shorter by without any of them.

        Args:
            apart: Which launches. Shape (n,).
        """
        rest_s = np.where(apart, 0.0, self.duration_s)
        after_s = np.zeros(len(rest_s))  # from the end of each launch, the longest path without
        step_s = 0.0  # without any of them
        for i in reversed(self.order):
            path_s = self.lag_s[i] + rest_s[i] + after_s[i]
            for j in self.waits[i]:
                after_s[j] = max(after_s[j], path_s)
            if not self.waits[i]:
                step_s = max(step_s, path_s)
        # A step whose launches up to one are as they are and those after it without any of them.
        through_s = self.ends_s() + after_s
        exposed: Floats = np.zeros(len(rest_s))
        for i in self.order:
            if apart[i]:
                exposed[i] = max(0.0, through_s[i] - step_s)
            step_s = max(step_s, float(through_s[i]))
        return exposed


def streams(launches: Sequence[TracedActivity], waits: Iterable[Wait] = ()) -> Streams:
    """Say what waits for what.

    Args:
        launches: Of one GPU, as a profile saw them.
        waits: Those that the profile lists; none where it lists none.
    """
    start_s = np.array([one.start_s for one in launches], dtype=np.float64)
    start_s -= start_s.min(initial=np.inf) if len(launches) else 0.0
    duration_s = np.array([one.duration_s for one in launches], dtype=np.float64)
    end_s = start_s + duration_s
    order = sorted(range(len(launches)), key=lambda i: (start_s[i], end_s[i], i))
    waits = tuple(waits)
    listed = {launches[later].stream for later, _ in waits}
    of_stream: dict[int, list[int]] = {}
    found: list[set[int]] = [set() for _ in launches]
    for i in order:
        mine = of_stream.setdefault(launches[i].stream, [])
        free_s = end_s[mine[-1]] if mine else -np.inf
        found[i].update(mine[-1:])
        is_told = bool(mine) and launches[i].stream in listed
        for stream, its in of_stream.items():
            if is_told or stream == launches[i].stream:
                continue
            ended = next((j for j in reversed(its) if end_s[j] <= start_s[i] + _SAME), None)
            if ended is not None and end_s[ended] > free_s:
                found[i].add(ended)
        mine.append(i)
    place = {i: at for at, i in enumerate(order)}
    for later, earlier in waits:
        if place[earlier] < place[later] and end_s[earlier] <= start_s[later] + _SAME:
            found[later].add(earlier)
    ready_s = np.array([max((end_s[j] for j in mine), default=0.0) for mine in found])
    ordered = tuple(tuple(sorted(mine)) for mine in found)
    return Streams(duration_s, ordered, start_s - ready_s, tuple(order))


def with_shares(
    launches: Sequence[TracedActivity], waits: Iterable[Wait] = ()
) -> tuple[tuple[TracedActivity, ...], str | None]:
    """Return launches of one rank, collectives and copies with the share its step waits for.

    A step waits for the part of them that outlasts overlapped launches if the host is ahead. Other
    launches count in full although some run side by side: they run at one clock at one time, and
    the step's closure has how much less than their sum it takes.

    Returns:
        The launches, and a note of how far collectives and copies overlap them; ``None`` without
        any.
    """
    main = main_stream(launches)
    collective = np.array([one.pass_ is Pass.COMMUNICATION for one in launches], dtype=bool)
    copied: Bools = np.array([is_copied_beside(one, main) for one in launches], dtype=bool)
    apart = collective | copied
    if not apart.any():
        return tuple(launches), None
    seen = streams(launches, waits)
    # What launches take, and collectives what the quickest of the same takes.
    taken_s = seen.duration_s.copy()
    alike: dict[tuple[str, str, str], list[int]] = {}
    for i, one in enumerate(launches):
        if one.pass_ is Pass.COMMUNICATION and one.shapes:  # else what it sends is unknown
            alike.setdefault((one.function, one.operator, one.shapes), []).append(i)
    for places in alike.values():
        taken_s[places] = seen.duration_s[places].min()
    exposed_s = dataclasses.replace(seen.kept_fed(), duration_s=taken_s).exposed_s(apart)
    shares = np.divide(exposed_s, taken_s, out=np.ones_like(taken_s), where=taken_s > 0.0)
    shares = shares.round(_DIGITS)
    counted = tuple(
        msgspec.structs.replace(one, waited_for=share) if one_of_them else one
        for one, share, one_of_them in zip(launches, shares.tolist(), apart.tolist(), strict=True)
    )
    kinds = (("collectives", collective.any()), ("copies", (copied & ~collective).any()))
    what = " and ".join(name for name, some in kinds if some)
    beside_s = seen.duration_s * [1.0 - one.waited_for for one in counted]
    all_s = float(seen.duration_s[apart].sum())
    step = f"; where the host keeps ahead, it takes {1e3 * seen.kept_fed().step_s():.3g} ms"
    if beside_s.sum() <= _BESIDE * all_s:
        return counted, f"the step waits for all of its {what}{step}"
    return counted, (
        f"{what} take {1e3 * all_s:.3g} ms of the step, {1e3 * beside_s.sum():.3g} ms of "
        "these under other launches, for which it does not wait: they could take "
        f"{1e3 * seen.slack_s()[apart].max():.3g} ms longer at most{step}"
    )


def main_stream(launches: Sequence[TracedActivity]) -> int:
    """Return the stream of a GPU that computes longest; -1 where nothing does."""
    taken_s: dict[int, float] = {}
    for one in launches:
        if one.kind is NodeKind.KERNEL and one.pass_ is not Pass.COMMUNICATION:
            taken_s[one.stream] = taken_s.get(one.stream, 0.0) + one.duration_s
    return max(taken_s, key=lambda stream: taken_s[stream], default=-1)


def is_copied_beside(one: TracedActivity, main: int) -> bool:
    """Whether a launch is a copy, long enough to count, in another stream than the main one.

    Between host and GPU, or within one, it takes no clock of the core.
    """
    apart = one.kind is NodeKind.COPY and one.stream != main >= 0
    return apart and one.duration_s >= _LEAST_COPY_S
