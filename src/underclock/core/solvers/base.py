"""The problem every planner solves, and what a solver must answer.

Shape letters: G groups, S settings.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from underclock.records import Status

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Sums of integers below this are exact in a float64 too, with three bits to spare.
_LARGEST_SUM = 2.0**50


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
        if (known != np.isfinite(self.energy_j)).any() or not known.any(axis=1).all():
            raise ValueError("every group needs a setting with both a time and an energy")
        if (self.time_s < 0).any() or (self.energy_j < 0).any() or math.isnan(self.budget_s):
            raise ValueError("times and energies must not be negative, nor the budget nan")


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
        """Return the best choice found."""
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
    thousand of a microsecond kernel.)

    Attributes:
        time: 0 where a setting is not available. Shape (G, S).
        energy: Likewise. Shape (G, S).
        available: Shape (G, S).
        budget: In time quanta.
        per_joule: Energy quanta in a joule.
    """

    time: Ints
    energy: Ints
    available: NDArray[np.bool_]
    budget: int
    per_joule: float

    @classmethod
    def of(cls, problem: Problem) -> "Quanta":
        """Round a problem to whole quanta."""
        available = np.isfinite(problem.time_s)
        per_second = _quanta_per_unit(problem.time_s, available)
        per_joule = _quanta_per_unit(problem.energy_j, available)
        time = np.rint(np.where(available, problem.time_s, 0.0) * per_second)
        energy = np.rint(np.where(available, problem.energy_j, 0.0) * per_joule)
        # A budget that is the sum of rounded times must admit the rounded sum: half a quantum each.
        slack = 0.5 * len(time)
        most = float(time.max(axis=1).sum())
        budget = min(problem.budget_s * per_second + slack, most)
        return cls(
            time.astype(np.int64), energy.astype(np.int64), available, math.floor(budget), per_joule
        )


def _quanta_per_unit(values: Floats, available: NDArray[np.bool_]) -> float:
    most = float(np.where(available, values, 0.0).max(axis=1).sum())
    return 10.0 ** math.floor(math.log10(_LARGEST_SUM / most)) if most > 0 else 1.0
