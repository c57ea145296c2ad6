"""When instructions of a job run with given clocks: what pages and traces draw."""

from underclock.core.job.tables import RowChoice, table_of, taken
from underclock.records.job import Held, Instruction, Job, RankClocks, Span


def auto_clocks(job: Job) -> tuple[RankClocks, ...]:
    """Return what runs where nothing is set."""
    return tuple(
        tuple(
            None if each.profile is None else Held(job.profiles[each.profile].auto)
            for each in rank.instructions
        )
        for rank in job.ranks
    )


def timeline(job: Job, clocks: tuple[RankClocks, ...], latency_s: float = 0.0) -> tuple[Span, ...]:
    """Return what every rank does in an iteration; an instruction at two clocks is two spans.

    What meets other ranks is drawn from where the last of them is there.

    Args:
        job: What is run.
        clocks: Of each rank.
        latency_s: How late a change of clocks comes.

    Raises:
        DataError: Ranks wait in a circle.
    """
    table = table_of(job)
    taken_s = taken(table, RowChoice.held(clocks), latency_s).time_s
    begins_s, ends_s = (
        of(taken_s).tolist() for of in (table.network.begins_s, table.network.ends_s)
    )
    spans = []
    at = 0
    for rank, held in enumerate(clocks):
        for each, how in zip(job.ranks[rank].instructions, held, strict=True):
            spans += _spans(job, rank, each, how, (begins_s[at], ends_s[at]))
            at += 1
    return tuple(spans)


def _spans(
    job: Job, rank: int, each: Instruction, how: Held | None, when: tuple[float, float]
) -> list[Span]:
    begins_s, ends_s = when

    def span(core_mhz: int | None, from_s: float, to_s: float) -> Span:
        return Span(
            rank=rank,
            stream=each.stream,
            what=str(each),
            has_profile=how is not None,
            core_mhz=core_mhz,
            begins_s=from_s,
            ends_s=to_s,
        )

    if how is None or each.profile is None:
        return [span(None, begins_s, ends_s)]
    rows = job.profiles[each.profile].rows
    first = rows[how.row]
    if how.then is None:
        return [span(first.clocks.core_mhz, begins_s, ends_s)]
    second = rows[how.then]
    first_s, second_s = how.share * first.time_s, (1.0 - how.share) * second.time_s
    turn_s = begins_s + (ends_s - begins_s) * first_s / (first_s + second_s)
    return [
        span(first.clocks.core_mhz, begins_s, turn_s),
        span(second.clocks.core_mhz, turn_s, ends_s),
    ]
