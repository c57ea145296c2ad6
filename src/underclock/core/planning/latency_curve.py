"""What could be achieved at other switching latencies, known hardware among them.

Shape letters: K kernels.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from underclock.arrays import Ints
from underclock.core.planning.achievable import schedule_cost
from underclock.core.planning.chance_constraint import BUDGETS
from underclock.core.planning.sequence import Rules, sequence_problem
from underclock.core.solvers import Effort, SequenceProblem, Solution, infeasible, solve
from underclock.core.step.table import CostTable
from underclock.records import Arm, Cost, LatencyPoint
from underclock.records.latencies import LatencyTable
from underclock.units import format_duration

Progress = Callable[[int, int, str], None]
"""Told of work as it goes on: how many parts are done, of how many, and what is done next."""

KNOWN_HARDWARE: tuple[tuple[float, str], ...] = (
    (50e-6, "Blackwell, 10-100 µs (unpublished)"),
    (1e-3, "Ascend NPU"),
    (6e-3, "Hopper (as cited by arXiv 2601.08539)"),
    (24.5e-3, "V100, call and settling"),
    (0.15, "Quadro RTX 6000"),
)
"""Latencies that were reported, in s, from call to new clock; FACTS says how sure each is."""

CURVE_S = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 5e-2, 0.5)
_ROUNDING = 1e-9  # of auto's time or energy


class Own(NamedTuple):
    """What a plan holds, which stands on its curve as it is: one latency has one number.

    Attributes:
        kept: How much more time the solver was given than the plan's budget, to keep that.
        frontier: As of `budget_curve`.
    """

    latency_s: float
    arm: Arm
    schedule: Solution
    kept: float
    frontier: tuple[Cost, ...]


def latency_curve(
    table: CostTable,
    order: Sequence[int],
    rules: Rules,
    per_kernel: Sequence[Ints],
    progress: Progress | None = None,
    *,
    latencies_s: Sequence[float] = (),
    own: Own | None = None,
) -> tuple[LatencyPoint, ...]:
    """Plan at every latency of a curve; at those of known hardware within other budgets as well.

    Every change of either clock is taken to need the latency, and nothing else.

    Args:
        per_kernel: Choices to start from. Shapes (K,).
        latencies_s: Where to plan, looking less far; by default everywhere.
        own: What the plan holds, where its latency is one of this kind.
    """
    hardware = dict(KNOWN_HARDWARE)
    tell = progress or (lambda _done, _total, _doing: None)
    free = dataclasses.replace(rules, latencies=LatencyTable.free())
    problem = sequence_problem(table, order, free)
    points: list[LatencyPoint] = []
    starts = [choice[problem.order] for choice in per_kernel]
    effort = Effort.QUICK if latencies_s else Effort.PLAN
    told = latencies_s or (*hardware,)
    latencies_s = latencies_s or (*CURVE_S, *hardware)
    downwards_s = sorted({*latencies_s, *(() if own is None else (own.latency_s,))}, reverse=True)
    # What cannot be done at the shortest latency cannot be at a longer one.
    shortest = solve(_at(problem, rules, downwards_s[-1]), effort, starts)
    schedule, kept = infeasible(), 0.0 if own is None else own.kept
    # From the slowest down: a schedule for a longer latency keeps the rules of a shorter one.
    for latency_s in downwards_s:
        tell(len(points), len(downwards_s), f"plans at a latency of {format_duration(latency_s)}")
        mine, at = own is not None and latency_s == own.latency_s, _at(problem, rules, latency_s)
        if own is not None and mine:
            schedule = own.schedule
        elif schedule.energy_j * (1.0 - effort.gap) <= shortest.bound_j:
            least_j = min(shortest.bound_j, schedule.energy_j)
            schedule = dataclasses.replace(schedule, bound_j=least_j)
        else:
            previous = [] if schedule.gap is None else [schedule.choice]
            schedule = solve(at, effort, [*starts, *previous])
        cost = schedule_cost(table, problem, schedule)
        frontier = own.frontier if own is not None and mine else ()
        if cost is not None and not mine and latency_s in told:
            frontier = budget_curve(table, at, cost, kept, [*starts, schedule.choice])
        points.append(
            LatencyPoint(
                latency_s=latency_s,
                time_change=cost.time_change if cost else None,
                energy_change=cost.energy_change if cost else None,
                switches=schedule.switches if cost else None,
                gap=own.arm.gap if own and schedule is own.schedule else schedule.gap,
                hardware=hardware.get(latency_s, ""),
                frontier=frontier,
            )
        )
    tell(len(points), len(points), "plans at other latencies")
    return tuple(reversed(points))


def budget_curve(
    table: CostTable, problem: SequenceProblem, own: Cost, kept: float, starts: Sequence[Ints]
) -> tuple[Cost, ...]:
    """Plan at other time budgets, under the same latency.

    Args:
        kept: How much more time the solver was given than the plan's own budget, to keep that.
        starts: Solutions to start from. Shapes (n,).

    Returns:
        What schedules cost, fastest first, the plan's own among them; energy falls.
    """
    found = []
    tried = list(starts)
    for budget in BUDGETS:
        budget_s = table.auto_time_s * (1.0 + budget + kept)
        schedule = solve(dataclasses.replace(problem, budget_s=budget_s), Effort.QUICK, tried)
        cost = schedule_cost(table, problem, schedule)
        if cost is not None:
            found.append(cost)
            tried = [*starts, schedule.choice]
    beside = [
        cost
        for cost in found
        if (cost.time_change - own.time_change) * (cost.energy_change - own.energy_change) < 0.0
    ]
    falling: list[Cost] = []
    for cost in sorted([own, *beside], key=lambda cost: (cost.time_change, cost.energy_change)):
        if not falling or cost.energy_change < falling[-1].energy_change - _ROUNDING:
            falling.append(cost)
    return tuple(falling)


def _at(problem: SequenceProblem, rules: Rules, latency_s: float) -> SequenceProblem:
    """Return the problem with one latency for every change of either clock."""
    dwell_s = np.full(problem.dwell_s.shape, max(latency_s, rules.min_dwell_s))
    np.fill_diagonal(dwell_s, 0.0)
    return dataclasses.replace(problem, dwell_s=dwell_s)
