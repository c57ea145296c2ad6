"""The problem every planner solves, and what a solver must answer.

Shape letters: G groups, S settings.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.records import Status

# Sums of integers below this are exact in a float64 too, with three bits to spare.
_LARGEST_SUM = 2.0**50
_MOST_DIGITS = 300  # a power of ten that a float64 still holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Pick one setting per group: least energy within a time budget.

    Attributes:
        time_s: ``inf`` where a setting is not available. Shape (G, S).
        energy_j: ``inf`` in the same places. Shape (G, S).
        budget_s: Most time all groups together may take; ``inf`` for no limit.
    """

    time_s: Floats
    energy_j: Floats
    budget_s: float = math.inf

    def __post_init__(self) -> None:
        """Reject mismatched tables and groups without a choice."""
        if self.time_s.shape != self.energy_j.shape or self.time_s.ndim != 2:  # noqa: PLR2004
            raise ValueError(
                f"need two (G, S) tables, got {self.time_s.shape} and {self.energy_j.shape}"
            )
        known = np.isfinite(self.time_s)
        chooses = known.size > 0 and known.any(axis=1).all()
        if (known != np.isfinite(self.energy_j)).any() or not chooses:
            raise ValueError("every group needs a setting with both a time and an energy")
        if (self.time_s < 0).any() or (self.energy_j < 0).any():
            raise ValueError("times and energies must not be negative")
        if not self.budget_s > -math.inf:
            raise ValueError(f"budget_s must be a number or inf, got {self.budget_s}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A choice per group and why the solver stopped.

    Attributes:
        status: Why the solver stopped.
        choice: Setting index per group, length G; empty when infeasible.
        time_s: Of the choice; ``inf`` when infeasible.
        energy_j: Of the choice; ``inf`` when infeasible.
        bound_j: No choice within the budget costs less; ``inf`` when infeasible.
    """

    status: Status
    choice: tuple[int, ...]
    time_s: float
    energy_j: float
    bound_j: float

    @property
    def gap(self) -> float | None:
        """How far the energy may be from the optimum, as a fraction; ``None`` if infeasible."""
        if self.status is Status.INFEASIBLE:
            return None
        return max(0.0, 1.0 - self.bound_j / self.energy_j) if self.energy_j > 0 else 0.0


INFEASIBLE = Solution(
    status=Status.INFEASIBLE, choice=(), time_s=math.inf, energy_j=math.inf, bound_j=math.inf
)


class Solver(Protocol):
    """Anything with a ``solve``; failure is a status, never an exception."""

    def solve(self, problem: Problem) -> Solution:
        """Return the best choice met."""
        ...


def solution_of(
    problem: Problem, choice: Ints, *, status: Status = Status.OPTIMAL, bound_j: float | None = None
) -> Solution:
    """Cost a choice; without a bound the choice is its own bound."""
    rows = np.arange(len(choice))
    energy_j = math.fsum(problem.energy_j[rows, choice])
    return Solution(
        status=status,
        choice=tuple(choice.tolist()),
        time_s=math.fsum(problem.time_s[rows, choice]),
        energy_j=energy_j,
        bound_j=energy_j if bound_j is None else min(bound_j, energy_j),
    )


@dataclass(frozen=True, slots=True)
class Quanta:
    """A problem in whole numbers, so that comparing two sums leaves nothing to rounding.

    A quantum is the least power of ten of a second or joule that keeps every sum exact: a
    picosecond for steps up to 1000 s, finer for shorter ones. (Nanoseconds would be a part in a
    thousand of a microsecond kernel.) Where a table is itself on a coarser grid, the quantum is the
    grid's: two choices that differ then differ by a whole step of it, which makes proofs shorter.

    Attributes:
        time: 0 where a setting is not available. Shape (G, S).
        energy: 0 in the same places. Shape (G, S).
        available: Shape (G, S).
        budget: In time quanta; -1 for any that is negative.
        per_joule: Energy quanta in a joule.
        rounding_j: What rounding can at most change the energy of a choice by.
    """

    time: Ints
    energy: Ints
    available: Bools
    budget: int
    per_joule: float
    rounding_j: float

    @classmethod
    def of(cls, problem: Problem) -> "Quanta":
        """Round a problem to whole quanta."""
        available = np.isfinite(problem.time_s)
        time, fine, coarse = _whole(np.where(available, problem.time_s, 0.0))
        # A budget that is the sum of rounded times must admit the rounded sum: half a quantum each.
        budget = (problem.budget_s * fine + 0.5 * len(time)) / coarse
        most = float(time.max(axis=1).sum())
        energy, per_joule, step = _whole(np.where(available, problem.energy_j, 0.0))
        return cls(
            time=time,
            energy=energy,
            available=available,
            budget=math.floor(max(-1.0, min(budget, most))),
            per_joule=per_joule / step,
            rounding_j=0.5 * len(time) / per_joule,
        )


def _whole(values: Floats) -> tuple[Ints, float, int]:
    """Return values in quanta, the fine quanta in a unit, and the fine quanta in a quantum."""
    most = float(values.max(axis=1).sum())
    digits = math.floor(math.log10(_LARGEST_SUM) - math.log10(most)) if most > 0 else 0
    fine = 10.0 ** min(digits, _MOST_DIGITS)
    whole = np.rint(values * fine).astype(np.int64)
    step = max(1, int(np.gcd.reduce(whole, axis=None)))
    return whole // step, fine, step
