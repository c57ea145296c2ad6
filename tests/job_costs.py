"""What a job takes with given clocks, and how much longer its instructions could take."""

import numpy as np

from underclock.arrays import Floats
from underclock.core.job.network import Network
from underclock.core.job.tables import RowChoice, auto_clocks, table_of, taken, total
from underclock.records.choices import Cost
from underclock.records.job import Job, RankClocks


def slack_s(network: Network, duration_s: Floats) -> Floats:
    """Return how much longer each instruction alone could take for nothing. Shape (n,)."""
    due_s = network.due_s(network.taken_s(duration_s), float(network.iteration_s(duration_s)))
    slack: Floats = due_s[network.activity] - network.begins_s(duration_s) - duration_s
    return np.maximum(slack, 0.0)


def job_cost(job: Job, clocks: tuple[RankClocks, ...], latency_s: float = 0.0) -> Cost:
    """Return what an iteration takes of time and energy, all ranks together, against auto.

    Ranks draw what waiting draws, at the clock held there, until the iteration ends.

    Args:
        job: What is run.
        clocks: Of each rank.
        latency_s: How late a change of clocks comes.

    Raises:
        DataError: Ranks wait in a circle.
    """
    table = table_of(job)
    auto_s, auto_j = total(table, taken(table, RowChoice.held(auto_clocks(job))))
    time_s, energy_j = total(table, taken(table, RowChoice.held(clocks), latency_s))
    return Cost(
        time_s=float(time_s),
        energy_j=float(energy_j),
        time_change=float(time_s / auto_s) - 1.0,
        energy_change=float(energy_j / auto_j) - 1.0,
    )
