"""The cheapest schedule whose mean power stays below a limit, window by window.

Shape letters: n invocations, S settings.
"""

import math
from collections.abc import Sequence as Items
from dataclasses import replace

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.knapsack.windows import Met, PowerWindows, WindowSearch, multiplied
from underclock.core.switching.incumbent import PROVEN
from underclock.core.switching.problem import SequenceProblem
from underclock.core.switching.schedule import (
    Schedule,
    Scheduler,
    infeasible,
    schedule_of,
    violations,
)
from underclock.records import Status


def launch_costs(problem: SequenceProblem, choice: Ints) -> tuple[Floats, Floats]:
    """Return time in s and energy in J of every invocation and the change before it. Shapes (n,).

    Args:
        problem: The problem.
        choice: Setting of every invocation. Shape (n,).
    """
    change = np.roll(choice, 1), choice
    return (
        problem.time_s[problem.order, choice] + problem.switch_time_s[change],
        problem.energy_j[problem.order, choice] + problem.switch_energy_j[change],
    )


def within_power(
    problem: SequenceProblem,
    solver: Scheduler,
    windows: PowerWindows,
    start: Items[Ints] = (),
    *,
    rounds: int = 12,
) -> Schedule:
    """Find the cheapest schedule that keeps the rules and that no window exceeds the limit with.

    Args:
        problem: The problem.
        solver: Finds the best schedule at given multipliers.
        windows: What to keep.
        start: Schedules to do no worse than, where they keep all. Shapes (n,).
        rounds: Most schedules to look for, before some that only seek to keep the limit.

    Returns:
        The best schedule met, with a bound; or the status ``INFEASIBLE``, with a finite bound where
        none was found and there may be one.
    """

    def met(choice: Ints, bound_j: float) -> Met:
        time_s, energy_j = launch_costs(problem, choice)
        return Met(choice=choice, time_s=time_s, energy_j=energy_j, bound_j=bound_j)

    def solve(each: Floats) -> Met | float:
        changed, added_j = _multiplied(problem, each, windows.limit_w)
        schedule = solver.solve(changed, start)
        if schedule.status is Status.INFEASIBLE:
            # Only what it says of every schedule holds for those within the limit too.
            return schedule.bound_j if not each.any() else -math.inf
        return met(schedule.choice, schedule.bound_j - added_j)

    search = WindowSearch(
        windows=windows,
        solve=solve,
        launches=len(problem.order),
        rounds=rounds,
        latest_s=problem.latest_s,
    )
    for choice in start:
        if not violations(problem, choice):
            search.offer(met(choice, -math.inf))
    search.run()
    bound_j = max(0.0, search.bound_j)
    if search.best is None:
        return infeasible(bound_j)
    found = schedule_of(problem, search.best.choice, status=Status.BOUNDED, bound_j=bound_j)
    proven = found.bound_j >= found.energy_j * (1.0 - PROVEN)
    return replace(found, status=Status.OPTIMAL) if proven else found


def _multiplied(
    problem: SequenceProblem, each: Floats, limit_w: float
) -> tuple[SequenceProblem, float]:
    """Return the problem with what launches draw beyond the limit, multiplied.

    Args:
        problem: The problem.
        each: Multiplier of every invocation. Shape (n,).
        limit_w: The limit.

    Returns:
        The problem, and by how much its energy may exceed what it stands for.
    """
    if not each.any():
        return problem, 0.0
    time_s = problem.time_s[problem.order]
    energy_j, added_j = multiplied(time_s, problem.energy_j[problem.order], each, limit_w)
    # A change belongs to no invocation: it counts with the mean of their multipliers.
    beyond_j = problem.switch_energy_j - limit_w * problem.switch_time_s
    change_j = problem.switch_energy_j + float(each.mean()) * beyond_j
    most = len(problem.order) if problem.max_switches is None else problem.max_switches
    added_j += most * max(0.0, -float(change_j.min()))
    changed = replace(
        problem,
        time_s=time_s,
        energy_j=energy_j,
        order=np.arange(len(problem.order)),
        switch_energy_j=np.maximum(change_j, 0.0),
    )
    return changed, added_j
