"""Traces of all ranks of a job, as one job: who does what, and who waits for whom.

Ranks run their pieces in the order that was seen. A forward of a stage waits for that of the stage
before it, a backward for that of the stage after it, each of the same microbatch; `rank_waits` says
what else waits, and for how long.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from underclock.core.tracing.rank_passes import HOW_TO_MARK
from underclock.core.tracing.rank_places import PlacedRank, placed_ranks, shared_indices
from underclock.core.tracing.rank_trace import UNKNOWN_GPU, WHOLE, RankHead, RankTrace
from underclock.core.tracing.rank_waits import Transfers, meetings, transfers
from underclock.errors import DataError
from underclock.records import Evidence, GpuInfo
from underclock.records.job import (
    Instruction,
    InstructionKind,
    Job,
    Profile,
    ProfileRow,
    Rank,
    Wait,
    Waiting,
    part_of,
)

_SHORTEST_S = 1e-9  # a profile has no row of no time
_DEVIATIONS = 1.4826  # median absolute ones in a normal distribution's standard deviation


def traced_job(
    traces: Sequence[RankTrace], *, workload: str, waiting_w: float | None = None
) -> tuple[Job, float]:
    """Make a job of the traces of all its ranks; only times are known of it.

    Args:
        traces: One of each rank. The last step that all of them have says the order, and every such
            step how long things take.
        waiting_w: What a rank draws while it waits; ``None`` where that is not known.

    Returns:
        The job, and how long its iteration took in the last step, in s.

    Raises:
        DataError: Ranks are missing or of different jobs, did not take the same microbatches, or
            one receives what none sends.
    """
    check_ranks(traces)
    said = [note for each in traces for note in each.notes]
    if len(traces) == 1:
        (one,) = traces
        if (one.world or 1) > 1:
            said.append(
                f"of {one.world} ranks only the trace of rank {one.rank} is given: the job is that "
                "rank alone, and its collectives take as long as it waited in them"
            )
        steps_alone = tuple(replace(step, messages=()) for step in one.steps)
        traces = [replace(one, rank=0, world=1, groups={}, steps=steps_alone)]
    traces = sorted(traces, key=lambda each: each.rank or 0)
    numbers = set.intersection(*({step.number for step in each.steps} for each in traces))
    if not numbers:
        bare = [each.name for each in traces if each.steps[0].number == WHOLE]
        error = f"{bare[0]} has no step" if bare else "the ranks' traces have no step in common"
        calls = "call step() of torch.profiler.profile, which marks them ProfilerStep#n"
        raise DataError(error, hint=calls if bare else "profile the same steps on every rank")
    steps = [placed_ranks(traces, number) for number in sorted(numbers)]
    met_s = [meetings(step) for step in steps]
    lags = [transfers(step) for step in steps]
    # The order is that of the last step that was seen whole.
    whole = [all(piece.whole for each in step for piece in each.pieces) for step in steps]
    at = max((i for i, each in enumerate(whole) if each), default=len(steps) - 1)
    last, met_s[-1], lags[-1] = steps[at], met_s[at], lags[at]
    if lags[-1].unpaired and all(piece.stage is None for each in last for piece in each.pieces):
        raise DataError(
            "ranks send beyond their neighbours, and no range names their stages",
            hint=f"where ranks have several stages each, {HOW_TO_MARK}",
        )
    profiles = _profiles(steps, last)
    places = shared_indices(last)
    gpus = {each.gpu: GpuInfo(name=each.gpu or "CPU") for each in traces}
    job = Job(
        evidence=Evidence.MEASURED,
        gpu=gpus.pop(traces[0].gpu),  # a rank says which where it has another
        workload=workload,
        schedule="traced",
        microbatches=1 + max(task[2] for each in last for task in each.tasks if task),
        ranks=tuple(
            Rank(
                stage=each.stage,
                data=data,
                tensor=tensor,
                sequence=sequence,
                gpu=gpus.get(each.trace.gpu),
                waiting=(Waiting(power_w=waiting_w or 0.0),),
                instructions=tuple(_instructions(each, met_s[-1], alone=len(last) == 1)),
            )
            for each, (data, tensor, sequence) in zip(last, places, strict=True)
        ),
        waits=tuple(_waits(last, lags)),
        profiles=profiles,
        warnings=(*_warnings(last, lags[-1], len(steps), waiting_w), *said),
    )
    begun_s = [each.begins_s[0] for each in last]
    ended_s = [max([*each.ends_s, *(one.ends_s for one in each.step.gatherings)]) for each in last]
    if lags[-1].common:
        return job, max(ended_s) - min(begun_s)
    return job, max(end - begin for begin, end in zip(begun_s, ended_s, strict=True))


def check_ranks(heads: Sequence[RankHead]) -> None:
    """Refuse traces that are not all of one job, one of each rank; a lone one may be any rank's.

    Raises:
        DataError: They are not.
    """
    if len(heads) == 1:
        return
    same = "give the traces of one run, one of each rank"
    for head in heads:
        if head.rank is None:
            raise DataError(
                f"{head.name} does not say which rank it is of",
                hint='trace with torch.distributed initialised, or write `"distributedInfo": '
                '{"rank": 0}` into it',
            )
    ranks = sorted(head.rank or 0 for head in heads)
    twice = [rank for rank, following in pairwise(ranks) if rank == following]
    if twice:
        raise DataError(f"two traces are of rank {twice[0]}", hint=same)
    for one, other in pairwise(heads):
        facts = {"world size": str(one.world), **one.identity}
        theirs = {"world size": str(other.world), **other.identity}
        for name in (*facts, *theirs):
            if facts.get(name) != theirs.get(name):
                raise DataError(
                    f"ranks {one.rank} and {other.rank} are of different jobs: the {name} is "
                    f"{facts.get(name)} and {theirs.get(name)}",
                    hint=same,
                )
    world = max(ranks[-1] + 1, heads[0].world or 0)
    gaps = [(a + 1, b - 1) for a, b in pairwise([-1, *ranks, world]) if b - a > 1]
    if gaps:
        missing = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in gaps)
        raise DataError(f"of {world} ranks, the traces of {missing} are missing", hint=same)


def _waits(last: Sequence[PlacedRank], steps: Sequence[Transfers]) -> Iterator[Wait]:
    found: dict[tuple[tuple[int, int], tuple[int, int]], float] = {}
    for of, on, key in steps[-1].waits:
        lag_s = min(each.least_s.get(key, 0.0) for each in steps)
        if of[0] != on[0] or lag_s > 0.0:
            found[of, on] = max(lag_s, found.get((of, on), 0.0))
    for ((rank, at), (on_rank, on_at)), lag_s in found.items():
        yield Wait(rank, last[rank].places[at][0], on_rank, last[on_rank].places[on_at][1], lag_s)
    for r, each in enumerate(last):
        for i, item in enumerate(each.items):
            if item.overlap is None:
                continue
            done = [j for j in each.parts.values() if j < i]
            if done:
                yield Wait(r, i, r, done[-1])
            follower = each.follower(item.overlap)
            if follower is not None:
                yield Wait(r, follower, r, i)


def _profiles(
    steps: Sequence[Sequence[PlacedRank]], last: Sequence[PlacedRank]
) -> dict[str, Profile]:
    """Return what pieces cost, by name: the median of all that are alike, and how they scatter."""
    times_s: dict[str, list[float]] = {}
    for step in steps:
        for rank in step:
            for name, time_s, piece in zip(rank.profiles, rank.time_s, rank.pieces, strict=True):
                some = times_s.setdefault(name, [])
                if piece.whole or piece.kind is InstructionKind.OTHER:
                    some.append(max(time_s, _SHORTEST_S))
    found = {}
    for name, some in sorted(times_s.items()):
        if not some:
            raise DataError(
                f"the profiler did not see when {name} begins or ends, in no step: kernels there "
                "have no time that can be",
                hint="profile several steps anew, and wait for the GPU before the profiler ends: "
                "torch.cuda.synchronize()",
            )
        middle_s = statistics.median(some)
        scatter_s = _DEVIATIONS * statistics.median(abs(each - middle_s) for each in some)
        row = ProfileRow(time_s=middle_s, energy_j=None, time_error_s=scatter_s)
        found[name] = Profile(rows=(row,), auto=0)
    for rank in last:
        for item in rank.items:
            if item.share < 1.0:
                name = rank.profiles[item.at]
                part = found[name].rows[0].scaled(item.share)
                found[part_of(name, item.share)] = Profile(rows=(part,), auto=0)
    return found


def _instructions(
    rank: PlacedRank, met_s: Sequence[float], *, alone: bool
) -> Iterator[Instruction]:
    """Yield a rank's instructions, in order; collectives of one alone take as long as they did."""
    for at, share, done, meeting, overlap in rank.items:
        number = meeting if overlap is None else overlap.meeting
        if number is not None:
            meets = not alone and (overlap is None or overlap.meets)
            yield Instruction(
                kind=InstructionKind.COLLECTIVE if meets else InstructionKind.COPY,
                time_s=met_s[number],
                meeting=number if meets else None,
                stream=0 if overlap is None else overlap.stream,
            )
            continue
        task, name = rank.tasks[at], rank.profiles[at]
        yield Instruction(
            kind=InstructionKind.REST if done else rank.pieces[at].kind,
            microbatch=task[2] if task else None,
            chunk=rank.chunks[at],
            profile=part_of(name, share) if share < 1.0 else name,
        )


def _warnings(
    ranks: Sequence[PlacedRank], transfers: Transfers, steps: int, waiting_w: float | None
) -> tuple[str, ...]:
    source = f"traces of {steps} steps have" if steps > 1 else "the trace of one step has"
    words = [f"time only: {source} no energy, and times at the clocks that ran alone"]
    if waiting_w is None:
        words.append("what waiting draws is not known and counts as nothing: --blocked-power")
    gpus = {rank.trace.gpu for rank in ranks}
    if gpus == {""}:
        words.append("no GPU was seen: these are times of CPUs")
    if UNKNOWN_GPU in gpus:
        words.append("the traces do not name their GPU: --gpu-name")
    if transfers.waits and not transfers.least_s:
        words.append("the traces have no transfers between stages: they count as no time")
    if transfers.unpaired:
        words.append(
            f"{transfers.unpaired} transfers carry nothing that a pass waits for, and are left out"
        )
    return tuple(words)
