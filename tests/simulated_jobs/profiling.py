"""What instructions take at each clock, measured in the job that they belong to.

All ranks hold one clock, then the next, as training goes on (as Perseus profiles, arXiv
2312.06902). What the power limit lets a board do depends on what it waits for in between, so what
work takes alone at high clocks, or at auto, is not what it takes in a job.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from simulated_jobs.job import Iteration, SimulatedJob
from underclock.arrays import Bools, Floats
from underclock.records import Clocks
from underclock.records.job import Job, Profile, ProfileRow, Waiting

_SETTLING = 3  # iterations at a clock before it is looked at
_LEAST_REPEATS = 2  # of which a scatter is known


def profiled_in(running: SimulatedJob, clocks_mhz: Sequence[int], *, repeats: int = 6) -> Job:
    """Measure a job at core clocks, one for all ranks, and at auto.

    Energies are those of the boards' counters, and errors what repeats scatter. A profile that
    several ranks share is the mean of theirs. Heat is that of the job at each clock.

    Args:
        running: The job, which is left at auto.
        clocks_mhz: Core clocks, ascending; auto is measured too.
        repeats: Iterations at each clock.

    Returns:
        The job with profiles measured in it, and with what its ranks draw while they wait.

    Raises:
        ValueError: Fewer than two repeats have no scatter.
    """
    if repeats < _LEAST_REPEATS:
        raise ValueError(f"{repeats} repeats have no scatter")
    job, boards = running.job, running.boards
    every = [each for rank in job.ranks for each in rank.instructions]
    rank_of = np.repeat(np.arange(len(job.ranks)), [len(rank.instructions) for rank in job.ranks])
    names = np.array([each.profile or "" for each in every])
    rows: dict[str, list[ProfileRow]] = {name: [] for name in job.profiles}
    waiting: list[list[Waiting]] = [[] for _ in boards]
    for core_mhz in (*clocks_mhz, None):
        running.hold(Clocks(core_mhz=core_mhz))
        settled(running, _SETTLING)
        seen = [running.iterate() for _ in range(repeats)]
        time_s = np.array([each.ends_s - each.begins_s for each in seen])
        energy_j = np.array([each.ran_j for each in seen])
        for name, some in rows.items():
            of = names == name
            some.append(_row(core_mhz, time_s[:, of].mean(axis=1), energy_j[:, of].mean(axis=1)))
        for rank, drawn in enumerate(waiting):
            runs = (rank_of == rank) & (names != "")
            drawn.append(Waiting(core_mhz=core_mhz, power_w=_waited_w(seen, rank, runs)))
    return msgspec.structs.replace(
        job,
        profiles={n: Profile(rows=tuple(some), auto=len(some) - 1) for n, some in rows.items()},
        ranks=tuple(
            msgspec.structs.replace(rank, waiting=tuple(some))
            for rank, some in zip(job.ranks, waiting, strict=True)
        ),
    )


def settled(running: SimulatedJob, iterations: int) -> None:
    """Run some iterations, and have each board as warm as they would make it in time."""
    for _ in range(iterations):
        each = running.iterate()
        for board, energy_j in zip(running.boards, each.energy_j, strict=True):
            board.settle_heat(energy_j / each.time_s)


def _row(core_mhz: int | None, time_s: Floats, energy_j: Floats) -> ProfileRow:
    root = math.sqrt(len(time_s))
    return ProfileRow(
        core_mhz=core_mhz,
        time_s=float(time_s.mean()),
        energy_j=float(energy_j.mean()),
        time_error_s=float(time_s.std(ddof=1)) / root,
        energy_error_j=float(energy_j.std(ddof=1)) / root,
    )


def _waited_w(seen: Sequence[Iteration], rank: int, runs: Bools) -> float:
    """Return what a rank drew in all of its time in which nothing with a profile ran."""
    waited_j = sum(float(each.counted_j[rank] - each.ran_j[runs].sum()) for each in seen)
    ran_s = sum(float((each.ends_s - each.begins_s)[runs].sum()) for each in seen)
    return waited_j / (sum(each.time_s for each in seen) - ran_s)
