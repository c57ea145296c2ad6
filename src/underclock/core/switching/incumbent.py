"""The best schedule known so far, and the answer it makes with a bound.

Shape letters: n invocations, S settings.
"""

import math
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Ints
from underclock.core.switching.problem import SequenceProblem
from underclock.core.switching.schedule import (
    Schedule,
    cost_of,
    infeasible,
    schedule_of,
    violations,
)
from underclock.records import Status

PROVEN = 1e-9
"""Gap, as a fraction, at which a schedule counts as optimal."""


@dataclass(slots=True)
class Incumbent:
    """The best schedule known that keeps every rule."""

    problem: SequenceProblem
    choice: Ints | None = None
    energy: float = math.inf

    @classmethod
    def among(cls, problem: SequenceProblem, choices: Items[Ints]) -> "Incumbent":
        """Return the best of some choices, if any keeps the rules."""
        best = cls(problem)
        for choice in choices:
            best.offer(choice)
        return best

    def offer(self, choice: Ints) -> None:
        """Take a schedule if it is better and keeps the rules."""
        if violations(self.problem, choice):
            return
        energy = cost_of(self.problem, choice).energy_j
        if energy < self.energy:
            self.choice, self.energy = choice.astype(np.int64), energy

    def offer_constants(self) -> None:
        """Take the best single setting, if better."""
        n = len(self.problem.order)
        count = np.bincount(self.problem.order, minlength=len(self.problem.time_s))
        used = count > 0
        time = count[used] @ self.problem.time_s[used]
        energy = count[used] @ self.problem.energy_j[used]
        # Judged one by one: a sum near the budget or near the best is only nearly right.
        better = (time <= self.problem.latest_s * (1 + 1e-9)) & (energy < self.energy)
        for s in np.flatnonzero(better)[np.argsort(energy[better])].tolist():
            self.offer(np.full(n, s))
            if self.choice is not None and self.energy <= energy[s]:
                break

    def answer(self, bound: float) -> Schedule:
        """Return the schedule with its status."""
        bound = max(0.0, bound)
        if self.choice is None:
            return infeasible(bound)
        proven = bound >= self.energy * (1.0 - PROVEN)
        status = Status.OPTIMAL if proven else Status.BOUNDED
        return schedule_of(self.problem, self.choice, status=status, bound_j=bound)
