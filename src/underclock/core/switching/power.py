"""The cheapest schedule whose mean power stays below a limit, window by window.

Shape letters: n invocations, S settings.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.knapsack.windows import (
    Judge,
    Met,
    PowerWindows,
    WindowSearch,
    beyond_limit,
    multiplied,
)
from underclock.core.switching.problem import SequenceProblem
from underclock.core.switching.schedule import Scheduler, cost_of
from underclock.records import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedSequence:
    """A step under a power limit.

    Attributes:
        problem: Costs, rules and the time budget.
        windows: What to keep.
        judge: Says which schedule is the best.
    """

    problem: SequenceProblem
    windows: PowerWindows
    judge: Judge

    def cheapest(
        self, solver: Scheduler, start: Items[Ints] = (), *, first: Floats, rounds: int
    ) -> Ints | None:
        """Find the best schedule that keeps the rules; ``None`` where none met was allowed.

        Args:
            solver: Finds the best schedule at given multipliers.
            start: Schedules for it to begin with. Shapes (n,).
            first: Multiplier of every invocation to begin with. Shape (n,).
            rounds: Most schedules to look for, before some that only seek to keep the limit.
        """

        def solve(each: Floats) -> Met | float:
            changed, added_j = _multiplied(self.problem, each, self.windows.limit_w)
            schedule = solver.solve(changed, start)
            if schedule.status is Status.INFEASIBLE:
                return schedule.bound_j
            time_s, energy_j = launch_costs(self.problem, schedule.choice)
            return Met(
                choice=schedule.choice,
                time_s=time_s,
                energy_j=energy_j,
                cost_j=cost_of(self.problem, schedule.choice).energy_j,
                bound_j=schedule.bound_j - added_j,
            )

        search = WindowSearch(
            windows=self.windows,
            solve=solve,
            judge=self.judge,
            launches=len(self.problem.order),
            rounds=rounds,
            first=first,
        )
        search.run()
        return None if search.best is None else search.best.choice


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
    time_s, own_j = problem.time_s[problem.order], problem.energy_j[problem.order]
    energy_j, added_j = multiplied(own_j, beyond_limit(time_s, own_j, limit_w), each)
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
