"""The precedence network of a job: activities, when each begins and ends, and which are equal.

Instructions of all ranks are numbered through: rank 0's first, in its order. Instructions that meet
(a collective, both ends of a transfer) are one activity, as long as the longest of them; every
other instruction is an activity of its own. An activity begins when all its predecessors have
ended, each after its lag.

Equal ranks are planned once, with a weight. Colour refinement splits activities by content,
predecessors and successors until no split is found. Costs are convex, so durations averaged over
activities of one colour cost no more and stay feasible: each has as many predecessors of another
colour as every other of its own. A plan with equal durations in a colour is therefore optimal among
all plans (Grohe, Kersting, Mladenov and Selman 2014, arXiv 1307.5697), and activities of a colour
begin at the same time.

Shape letters: n instructions, A activities, D draws of durations (any leading shape).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.solvers import Sweep
from underclock.errors import DataError
from underclock.records.job import Job


@dataclass(frozen=True, kw_only=True)
class Network:
    """The activities of a job's iteration."""

    rank: Ints  # of each instruction, (n,)
    stream: Ints  # of its rank, (n,)
    activity: Ints  # of each instruction, (n,)
    # for each activity those that it waits for, and the lag after each in s
    waits: tuple[tuple[tuple[int, float], ...], ...]

    @cached_property
    def _members(self) -> tuple[Ints, Ints]:
        """Instructions sorted by activity, and where each activity's begin among them."""
        by_activity = np.argsort(self.activity, kind="stable")
        firsts = np.searchsorted(self.activity[by_activity], np.arange(len(self.waits)))
        return by_activity, firsts

    def taken_s(self, duration_s: Floats) -> Floats:
        """Return what activities take, (..., A): the longest instruction, (..., n), that meets."""
        by_activity, firsts = self._members
        return np.maximum.reduceat(duration_s[..., by_activity], firsts, axis=-1)

    def begins_s(self, duration_s: Floats) -> Floats:
        """Return when instructions begin, the iteration at 0. Shapes (..., n)."""
        return self._run(duration_s)[0][..., self.activity]

    def ends_s(self, duration_s: Floats) -> Floats:
        """Return when instructions end: what meets ends together. Shapes (..., n)."""
        return self._run(duration_s)[1][..., self.activity]

    def iteration_s(self, duration_s: Floats) -> Floats:
        """Return how long the iteration takes, of instructions (..., n): the longest path."""
        last: Floats = self._run(duration_s)[1].max(axis=-1)
        return last

    @cached_property
    def _links(self) -> tuple[Sweep, Ints, Floats]:
        """Activities in steps, whom each link waits for, and how long after."""
        links = [(of, on, lag_s) for of, each in enumerate(self.waits) for on, lag_s in each]
        of, on = (np.array([each[at] for each in links], dtype=np.int64) for at in (0, 1))
        return Sweep(len(self.waits), of, on), on, np.array([each[2] for each in links])

    @cached_property
    def order(self) -> list[int]:
        """Activities, each after all that it waits for; those in a circle are left out."""
        return [at for step, _, _ in self._links[0].steps for at in step.tolist()]

    def _run(self, duration_s: Floats) -> tuple[Floats, Floats]:
        taken_s = np.moveaxis(self.taken_s(duration_s), -1, 0)
        sweep, on, lag_s = self._links
        begins = sweep.begins(taken_s, on, lag_s)
        return np.moveaxis(begins, 0, -1), np.moveaxis(begins + taken_s, 0, -1)

    def due_s(self, taken_s: Floats, budget_s: float) -> Floats:
        """Return when activities that take so long, (A,), have to end for all to end in time."""
        due = np.full(len(taken_s), budget_s)
        for at in reversed(self.order):
            for on, lag_s in self.waits[at]:
                due[on] = min(due[on], due[at] - taken_s[at] - lag_s)
        return due

    def longest_path(self, duration_s: Floats) -> list[int]:
        """Return the activities of a longest path, the last first; of instructions, (n,)."""
        begins, ends = self._run(duration_s)
        path = [int(ends.argmax())]
        while begins[path[-1]] > 0.0:
            path.append(max(self.waits[path[-1]], key=lambda wait: ends[wait[0]] + wait[1])[0])
        return path

    def blocked_s(self, duration_s: Floats) -> Floats:
        """Return how long each rank's first stream does nothing. Shape (..., ranks).

        What meets counts as done for as long as its instruction, (..., n), takes by itself.
        """
        ranks = np.arange(int(self.rank.max()) + 1)
        firsts = np.searchsorted(self.rank, ranks)
        busy_s = np.add.reduceat(np.where(self.stream == 0, duration_s, 0.0), firsts, axis=-1)
        return self.iteration_s(duration_s)[..., None] - busy_s


def network_of(job: Job) -> Network:
    """Number a job's instructions and say what waits for what.

    Raises:
        DataError: Instructions wait for one another in a circle.
    """
    firsts = np.cumsum([0, *(len(rank.instructions) for rank in job.ranks)])
    every = [each for rank in job.ranks for each in rank.instructions]
    numbers: dict[tuple[str, int], int] = {}
    keys = (
        ("alone", i) if each.meeting is None else ("meets", each.meeting)
        for i, each in enumerate(every)
    )
    activity = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    waits: list[dict[int, float]] = [{} for _ in range(int(activity.max()) + 1)]

    def wait(of: int, on: int, lag_s: float = 0.0) -> None:
        lags = waits[activity[of]]
        lags[activity[on]] = max(lag_s, lags.get(activity[on], 0.0))

    for at, rank in enumerate(job.ranks):
        last: dict[int, int] = {}
        for i, each in enumerate(rank.instructions, start=int(firsts[at])):
            if each.stream in last:
                wait(i, last[each.stream])
            last[each.stream] = i
    for link in job.waits:
        wait(
            int(firsts[link.rank]) + link.instruction,
            int(firsts[link.on_rank]) + link.on_instruction,
            link.lag_s,
        )
    links = tuple(tuple((int(on), lag_s) for on, lag_s in lags.items()) for lags in waits)
    network = Network(
        rank=np.repeat(np.arange(len(job.ranks)), np.diff(firsts)),
        stream=np.asarray([each.stream for each in every], dtype=np.int64),
        activity=activity,
        waits=links,
    )
    if len(network.order) < len(links):
        waiting = set(range(len(network.waits))) - set(network.order)
        place, seen = min(waiting), set[int]()
        while place not in seen:
            seen.add(place)
            place = next(on for on, _ in network.waits[place] if on in waiting)
        stuck = int(np.flatnonzero(activity == place)[0])
        at = int(np.searchsorted(firsts, stuck, side="right")) - 1
        raise DataError(
            f"ranks wait for one another in a circle: the {every[stuck]} of rank {at} is in it",
            hint="a send must come before what its receive is waited for by; look at the order of "
            "that rank's instructions",
        )
    return network


def quotient(network: Network, colour: Ints, kept: Ints, ranks: Ints) -> Network:
    """Return the network of one activity of each colour."""
    _, places, activity = np.unique(
        colour[network.activity[kept]], return_index=True, return_inverse=True
    )
    member = network.activity[kept[places]]
    at = {int(colour[each]): number for number, each in enumerate(member)}
    waits: list[tuple[tuple[int, float], ...]] = []
    for each in member:
        lags: dict[int, float] = {}
        for on, lag_s in network.waits[each]:
            number = at[int(colour[on])]
            lags[number] = max(lag_s, lags.get(number, 0.0))
        waits.append(tuple(lags.items()))
    return Network(
        rank=np.searchsorted(ranks, network.rank[kept]),
        stream=network.stream[kept],
        activity=activity,
        waits=tuple(waits),
    )


def colours(job: Job, network: Network, firsts: Ints) -> tuple[Ints, Ints]:
    """Return the colour of each activity and the kind of each rank."""
    followers: list[list[tuple[int, float]]] = [[] for _ in network.waits]
    for at, waits in enumerate(network.waits):
        for on, lag_s in waits:
            followers[on].append((at, lag_s))
    members: list[list[int]] = [[] for _ in network.waits]
    for instruction, activity in enumerate(network.activity.tolist()):
        members[activity].append(instruction)
    # What a rank does without its place and numbers of meetings: equal for equal ranks.
    kind = _numbered(
        [
            (
                rank.waiting,
                *(
                    (
                        *(each.kind, each.microbatch, each.chunk, each.stream),
                        *(each.profile, each.time_s, each.power_w, each.meeting is None),
                    )
                    for each in rank.instructions
                ),
            )
            for rank in job.ranks
        ]
    )
    colour, found = [0] * len(members), (0, 0)
    while True:
        keys: list[Hashable] = []
        for at, own in enumerate(members):
            does = sorted((kind[r], i - int(firsts[r])) for i in own for r in [network.rank[i]])
            waits_on = sorted((colour[on], lag_s) for on, lag_s in network.waits[at])
            waited = sorted((colour[by], lag_s) for by, lag_s in followers[at])
            keys.append((colour[at], tuple(does), tuple(waits_on), tuple(waited)))
        colour = _numbered(keys)
        of = np.array(colour)[network.activity].tolist()
        kind = _numbered([tuple(of[a:b]) for a, b in pairwise(firsts)])
        if (max(colour), max(kind)) == found:
            return np.array(colour), np.array(kind)
        found = max(colour), max(kind)


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]
