"""Launches on several streams: what waits for what, and which could take longer for nothing.

A stream runs its launches one after another. That a launch also waits for one of another stream is
told by the profile where it lists waits of that stream; else, and for a stream's first launch,
whose waits profiles leave out, by the times: its stream stood idle, and in that time the other
launch ended. A wait that was over before its stream came to it is seen by no clock, so without a
list of waits slack is an upper bound.

Shape letters: n launches, in the order in which the host asked for them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats
from underclock.records.launches import TracedActivity

Wait = tuple[int, int]
"""A launch, and another that it waits for."""
_SAME = 1e-9  # of times in s, which profiles round


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """What waits for what.

    Attributes:
        duration_s: Of each launch. Shape (n,).
        waits: For each launch those that must have ended.
        lag_s: How long after the last of these it began. Shape (n,).
        order: Launches, each after all that it waits for.
    """

    duration_s: Floats
    waits: tuple[tuple[int, ...], ...]
    lag_s: Floats
    order: tuple[int, ...]

    def ends_s(self, duration_s: Floats | None = None) -> Floats:
        """Return when launches end. Shape (n,).

        Args:
            duration_s: How long they take; by default as in the profile. Shape (n,).
        """
        taken_s = self.duration_s if duration_s is None else duration_s
        ends: Floats = np.zeros(len(taken_s))
        for i in self.order:
            begun_s = max((float(ends[j]) for j in self.waits[i]), default=0.0)
            ends[i] = begun_s + self.lag_s[i] + taken_s[i]
        return ends

    def step_s(self, duration_s: Floats | None = None) -> float:
        """Return how long all of it takes: the longest path.

        Args:
            duration_s: As for `ends_s`.
        """
        return float(self.ends_s(duration_s).max(initial=0.0))

    def slack_s(self) -> Floats:
        """Return how much longer each launch could take, others as they are. Shape (n,)."""
        ends = self.ends_s()
        latest: Floats = np.full(len(ends), ends.max(initial=0.0))
        for i in reversed(self.order):
            begins_s = latest[i] - self.duration_s[i] - self.lag_s[i]
            for j in self.waits[i]:
                latest[j] = min(latest[j], begins_s)
        slack: Floats = np.maximum(latest - ends, 0.0)
        return slack

    def exposed_s(self, apart: Bools) -> Floats:
        """Return by how much the step shortens as some launches come to take no time. Shape (n,).

        The last of them first: of two side by side, what the other hides is the other's, and of a
        chain that outlasts what it runs beside only what comes after that. So what is exposed adds
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
        for stream, others in of_stream.items():
            if is_told or stream == launches[i].stream:
                continue
            ended = [j for j in others if free_s < end_s[j] <= start_s[i] + _SAME]
            found[i].update(ended[-1:])
        mine.append(i)
    place = {i: at for at, i in enumerate(order)}
    for later, earlier in waits:
        if place[earlier] < place[later] and end_s[earlier] <= start_s[later] + _SAME:
            found[later].add(earlier)
    ready_s = np.array([max((end_s[j] for j in mine), default=0.0) for mine in found])
    return Streams(
        duration_s=duration_s,
        waits=tuple(tuple(sorted(mine)) for mine in found),
        lag_s=start_s - ready_s,
        order=tuple(order),
    )
