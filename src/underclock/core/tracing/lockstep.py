"""Ranks that train together: a collective begins when the last of them is there.

What a profile says that a collective took includes waiting for the others, so the least of the
ranks is what it takes. And what lies between two launches of a profiled step is mostly the host,
which a profiler slows; in training it is ahead of its GPU.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats
from underclock.core.tracing.streams import Streams, Wait, streams
from underclock.errors import DataError
from underclock.records import Pass
from underclock.records.launches import TracedActivity

GAP_S = 1.7e-6
"""Between two launches of one stream, where the host is ahead: median over 656 launches of a GPT-3
step on two H200s (docs/evidence/h200/parallel.md)."""
_BESIDE = 0.01  # of the time that collectives take: less beside other launches is nothing


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

    Args:
        ranks: At least one.
        gap_s: Between launches, at most.

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


def told_of_collectives(
    launches: Sequence[TracedActivity], waits: Iterable[Wait] = ()
) -> str | None:
    """Say how much of a step's collectives runs off its critical path; ``None`` without any.

    Args:
        launches: As for `streams.streams`.
        waits: Likewise.
    """
    collective = np.array([one.pass_ is Pass.COMMUNICATION for one in launches], dtype=bool)
    if not collective.any():
        return None
    rank = RankStep(streams=streams(launches, waits), collectives=tuple(np.flatnonzero(collective)))
    slack_s = rank.streams.slack_s()
    taken_s = rank.streams.duration_s
    all_s = float(taken_s[collective].sum())
    step = f"; where the host keeps ahead, it takes {1e3 * steps_s([rank])[0]:.3g} ms"
    free = collective & (slack_s > _BESIDE * all_s)
    if not free.any():
        return f"the step waits for all of its collectives{step}"
    return (
        f"collectives take {1e3 * all_s:.3g} ms of the step, {1e3 * taken_s[free].sum():.3g} ms of "
        f"these off its critical path: they could take {1e3 * slack_s[free].max():.3g} ms longer "
        f"at most{step}"
    )
