"""What could be achieved at other switching latencies, known hardware among them.

Shape letters: K kernels.
"""

import dataclasses
import math
from collections.abc import Sequence
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

CURVE: tuple[tuple[float, str], ...] = (
    (1e-3, "Ascend NPU"),
    (6e-3, "Hopper (as cited by arXiv 2601.08539)"),
    (0.15, "Quadro RTX 6000"),
)
"""Latencies that were reported, in s, from call to new clock, and of what hardware."""

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


def curve_latencies(own_s: float | None) -> tuple[float, ...]:
    """Return three latencies in s, ascending; a GPU's own takes the place of the nearest."""
    curve = [latency_s for latency_s, _ in CURVE]
    if own_s is not None and own_s > 0.0:
        nearest = min(curve, key=lambda each: abs(math.log(each / own_s)))
        curve[curve.index(nearest)] = own_s
    return tuple(curve)


def latency_curve(
    table: CostTable,
    order: Sequence[int],
    rules: Rules,
    per_kernel: Sequence[Ints],
    latencies_s: Sequence[float],
    own: Own | None = None,
    effort: Effort = Effort.PLAN,
) -> tuple[LatencyPoint, ...]:
    """Plan at several latencies, and within other budgets.

    Every change of either clock is taken to need the latency, and nothing else.

    Args:
        per_kernel: Choices to start from. Shapes (K,).
        latencies_s: Where to plan.
        own: What the plan holds, where its latency is one of these.
        effort: How far to look.
    """
    free = dataclasses.replace(rules, latencies=LatencyTable.free())
    problem = sequence_problem(table, order, free)
    points: list[LatencyPoint] = []
    starts = [choice[problem.order] for choice in per_kernel]
    # What cannot be done at the shortest latency cannot be at a longer one.
    shortest = solve(_at(problem, min(latencies_s)), effort, starts)
    schedule, kept = infeasible(), 0.0 if own is None else own.kept
    # From the slowest down: a schedule for a longer latency keeps the rules of a shorter one.
    for latency_s in sorted(latencies_s, reverse=True):
        mine, at = own is not None and latency_s == own.latency_s, _at(problem, latency_s)
        if own is not None and mine:
            schedule = own.schedule
        elif schedule.energy_j * (1.0 - effort.gap) <= shortest.bound_j:
            least_j = min(shortest.bound_j, schedule.energy_j)
            schedule = dataclasses.replace(schedule, bound_j=least_j)
        else:
            previous = [] if schedule.gap is None else [schedule.choice]
            schedule = solve(at, effort, [*starts, *previous])
        if own is not None and schedule.switches == 0 and own.schedule.switches == 0:
            mine, schedule = True, own.schedule  # without switches no latency matters
        cost = schedule_cost(table, problem, schedule)
        frontier = own.frontier if own is not None and mine else ()
        if cost is not None and not mine:
            frontier = budget_curve(table, at, cost, kept, [*starts, schedule.choice])
        points.append(
            LatencyPoint(
                latency_s=latency_s,
                time_change=cost.time_change if cost else None,
                energy_change=cost.energy_change if cost else None,
                switches=schedule.switches if cost else None,
                gap=own.arm.gap if own and schedule is own.schedule else schedule.gap,
                hardware=dict(CURVE).get(latency_s, ""),
                frontier=frontier,
            )
        )
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
        if np.isclose(problem.budget_s, (budget_s, budget_s - kept * table.auto_time_s)).any():
            continue  # the plan's own
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


def _at(problem: SequenceProblem, latency_s: float) -> SequenceProblem:
    """Return the problem with one latency for every change of either clock."""
    dwell_s = np.full(problem.dwell_s.shape, latency_s)
    np.fill_diagonal(dwell_s, 0.0)
    return dataclasses.replace(problem, dwell_s=dwell_s)
