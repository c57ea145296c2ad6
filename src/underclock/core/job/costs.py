"""What instructions of a job take with given clocks."""

from underclock.arrays import Floats
from underclock.core.job.tables import RowChoice, table_of, taken
from underclock.records.job import Held, Job, RankClocks


def auto_clocks(job: Job) -> tuple[RankClocks, ...]:
    """Return what runs where nothing is set."""
    return tuple(
        tuple(
            None if each.profile is None else Held(job.profiles[each.profile].auto)
            for each in rank.instructions
        )
        for rank in job.ranks
    )


def instruction_costs(
    job: Job, clocks: tuple[RankClocks, ...], latency_s: float = 0.0
) -> tuple[Floats, Floats]:
    """Return time in s and energy in J of every instruction. Shapes (n,).

    What runs beside a rank's first stream takes what it adds to waiting.

    Args:
        job: What is run.
        clocks: Of each rank.
        latency_s: How late a change of clocks comes.

    Raises:
        DataError: Ranks wait in a circle.
    """
    each = taken(table_of(job), RowChoice.held(clocks), latency_s)
    return each.time_s, each.energy_j
