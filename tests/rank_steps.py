"""How long a step takes ranks that train together, where hosts are ahead of their GPUs.

A collective begins when the last of them is there. What a profile says that it took includes
waiting for the others, so the least of the ranks is what it takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats
from underclock.core.tracing.streams import GAP_S, Streams
from underclock.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """What one rank does in a step.

    Attributes:
        streams: Its launches, and what waits for what.
        collectives: Which of them are collectives, in the order in which they are asked for; all
            ranks have the same.
    """

    streams: Streams
    collectives: tuple[int, ...]


def steps_s(ranks: Sequence[RankStep], *, gap_s: float = GAP_S) -> tuple[float, ...]:
    """Predict how long a step takes each of some ranks, where hosts are ahead of their GPUs.

    Raises:
        DataError: They have not the same number of collectives, or wait for one another in a ring.
    """
    counts = [len(rank.collectives) for rank in ranks]
    if len(set(counts)) > 1:
        raise DataError(
            f"ranks that train together have as many collectives, these have {counts}",
            hint="profile the same step on every rank",
        )
    taken_s = _taken_s(ranks)
    numbers = [{at: n for n, at in enumerate(rank.collectives)} for rank in ranks]
    ends_s: list[Floats] = [np.zeros(len(each)) for each in taken_s]
    there: list[dict[int, float]] = [{} for _ in range(counts[0])]  # when each rank is, by rank
    done = [0] * len(ranks)
    total = [len(rank.streams.order) for rank in ranks]
    while done != total:
        before = list(done)
        for number, rank in enumerate(ranks):
            streams, ends = rank.streams, ends_s[number]
            for i in streams.order[done[number] :]:
                begins_s = max((float(ends[j]) for j in streams.waits[i]), default=0.0)
                begins_s += min(float(streams.lag_s[i]), gap_s)
                if i in numbers[number]:
                    arrived = there[numbers[number][i]]
                    arrived[number] = begins_s
                    if len(arrived) < len(ranks):
                        break
                    begins_s = max(arrived.values())
                ends[i] = begins_s + taken_s[number][i]
                done[number] += 1
        if done == before:
            raise DataError(
                "the ranks ask for their collectives in different orders, and wait for ever",
                hint="profile the same step on every rank",
            )
    return tuple(float(each.max(initial=0.0)) for each in ends_s)


def _taken_s(ranks: Sequence[RankStep]) -> list[Floats]:
    """Return what launches take, and collectives once every rank is there."""
    taken_s = [rank.streams.duration_s.copy() for rank in ranks]
    for places in zip(*(rank.collectives for rank in ranks), strict=True):
        least_s = min(each[at] for each, at in zip(taken_s, places, strict=True))
        for each, at in zip(taken_s, places, strict=True):
            each[at] = least_s
    return taken_s
