"""Symmetry reduction of a job: equal ranks are planned once, with a weight.

Colour refinement splits activities by content, predecessors and successors until no split is found.
Costs are convex, so durations averaged over activities of one colour cost no more and stay
feasible: each has as many predecessors of another colour as every other of its own. A plan with
equal durations in a colour is therefore optimal among all plans (Grohe, Kersting, Mladenov and
Selman 2014, arXiv 1307.5697), and activities of a colour begin at the same time.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from underclock.arrays import Ints
from underclock.core.job.network import Network
from underclock.core.job.tables import JobTable
from underclock.records.job import Job, Rank


def shared(job: Job, table: JobTable) -> tuple[JobTable, Ints]:
    """Return the table of one rank of each kind, and what each instruction is there.

    Returns:
        The table, and for each instruction of the job the one that stands for it. Shape (n,).
    """
    network = table.network
    firsts = np.cumsum([0, *(len(rank.instructions) for rank in job.ranks)])
    colour, kind = _colours(job, network, firsts)
    _, ranks, of, weight = np.unique(
        kind, return_index=True, return_inverse=True, return_counts=True
    )
    if len(ranks) == len(job.ranks):
        return table, np.arange(len(table.pair))
    ranks_at = np.argsort(np.argsort(ranks))  # kinds in the order of their first ranks
    ranks, weight, of = np.sort(ranks), weight[np.argsort(ranks)], ranks_at[of]
    kept = np.concatenate([np.arange(firsts[rank], firsts[rank + 1]) for rank in ranks])
    begins = np.cumsum([0, *(firsts[rank + 1] - firsts[rank] for rank in ranks)])
    stands = np.concatenate(
        [np.arange(begins[of[r]], begins[of[r] + 1]) for r in range(len(job.ranks))]
    )
    pair_at = {pair: at for at, pair in enumerate(table.pairs)}
    pairs = [each for each in table.pairs if each[0] in set(ranks.tolist())]
    picked = np.array([pair_at[each] for each in pairs], dtype=np.int64)
    number = np.full(len(table.pairs) + 1, -1)
    number[picked] = np.arange(len(picked))
    new_rank = {int(rank): at for at, rank in enumerate(ranks)}
    return replace(
        table,
        network=_quotient(network, colour, kept, ranks),
        rank_weight=weight,
        pair=number[table.pair[kept]],
        auto_wait_w=table.auto_wait_w[ranks],
        pairs=tuple((new_rank[rank], name) for rank, name in pairs),
        **{name: getattr(table, name)[kept] for name in _OF_INSTRUCTIONS},
        **{name: getattr(table, name)[picked] for name in _OF_PAIRS},
    ), stands


_OF_INSTRUCTIONS = ("fixed_s", "power_w", "talks", "rest", "quiet")
_OF_PAIRS = (
    *("auto", "time_s", "energy_j", "time_error_s", "energy_error_j"),
    *("wait_w", "first", "last", "inside", "at_clocks"),
)


def _quotient(network: Network, colour: Ints, kept: Ints, ranks: Ints) -> Network:
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


def _colours(job: Job, network: Network, firsts: Ints) -> tuple[Ints, Ints]:
    """Return the colour of each activity and the kind of each rank."""
    followers: list[list[tuple[int, float]]] = [[] for _ in network.waits]
    for at, waits in enumerate(network.waits):
        for on, lag_s in waits:
            followers[on].append((at, lag_s))
    members: list[list[int]] = [[] for _ in network.waits]
    for instruction, activity in enumerate(network.activity.tolist()):
        members[activity].append(instruction)
    kind = _numbered([_content(rank) for rank in job.ranks])
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


def _content(rank: Rank) -> Hashable:
    """Return a rank's content without places and numbers of meetings, equal for equal ranks."""
    return rank.waiting, tuple(
        (
            *(each.kind, each.microbatch, each.chunk, each.stream),
            *(each.profile, each.time_s, each.power_w, each.meeting is None),
        )
        for each in rank.instructions
    )
