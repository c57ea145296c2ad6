"""What others do about switches: simpler rules, to compare with.

Rules that choose kernel by kernel do not see what a switch costs, nor the budget of the whole
round; they are costed as they are, status ``GIVEN``, whether or not they keep the rules. The others
answer with the best schedule they met that keeps them. None has a bound but zero.

Shape letters: K kernels, n invocations, S settings, P population.
"""

import math
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.solvers import GeneticSearch, SequenceProblem, Solution, solution_of
from underclock.core.solvers.cyclic import Incumbent
from underclock.records import Status

_MOST_COMBINATIONS = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """Every kernel at its cheapest setting that is no slower than a reference."""

    reference: int
    """Setting that no kernel may be slower than."""

    def solve(self, problem: SequenceProblem, start: Items[Ints] = ()) -> Solution:  # noqa: ARG002
        """Return the kernels' own choices, with their switches."""
        limit_s = problem.time_s[:, [self.reference]]
        quick = problem.time_s <= np.where(np.isfinite(limit_s), limit_s, math.inf)
        choice = np.where(quick, problem.energy_j, np.inf).argmin(axis=1)
        return _given(problem, choice)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastProduct:
    """Every kernel at its least energy times a power of time: 1 for EDP, 2 for ED²P."""

    power: float = 1.0
    """Of time."""

    def solve(self, problem: SequenceProblem, start: Items[Ints] = ()) -> Solution:  # noqa: ARG002
        """Return the kernels' own choices, with their switches."""
        open_at = np.isfinite(problem.time_s)
        product = np.where(open_at, problem.energy_j, 1.0) * np.where(
            open_at, problem.time_s, 1.0
        ) ** (self.power)
        return _given(problem, np.where(open_at, product, np.inf).argmin(axis=1))


@dataclass(frozen=True, slots=True)
class FixedClock:
    """One setting for the whole step."""

    def solve(self, problem: SequenceProblem, start: Items[Ints] = ()) -> Solution:
        """Return the cheapest that keeps the rules."""
        best = Incumbent.among(problem, start)
        best.offer_constants()
        return best.answer(0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Genetic(GeneticSearch):
    """A genetic search over one setting per kernel, as Wang et al. did (ASPLOS 2025)."""

    def solve(self, problem: SequenceProblem, start: Items[Ints] = ()) -> Solution:
        """Return the best that was met and keeps the rules."""
        best = Incumbent.among(problem, start)
        best.offer_constants()
        first = np.stack([problem.energy_j.argmin(axis=1), problem.time_s.argmin(axis=1)])
        for people, time, energy in self.lives(
            lambda choices: _costs_of(problem, choices),
            np.isfinite(problem.time_s),
            first,
            problem.latest_s,
        ):
            in_time = time <= problem.latest_s
            for which in np.flatnonzero(in_time & (energy < best.energy)).tolist():
                best.offer(people[which][problem.order])
        return best.answer(0.0)


def _costs_of(problem: SequenceProblem, people: Ints) -> tuple[Floats, Floats]:
    """Return time and energy of every choice per kernel. Shapes (P,)."""
    choice = people[:, problem.order]
    changes = np.roll(choice, 1, axis=1), choice
    time = problem.time_s[problem.order, choice] + problem.switch_time_s[changes]
    energy = problem.energy_j[problem.order, choice] + problem.switch_energy_j[changes]
    return time.sum(axis=1), energy.sum(axis=1)


def _given(problem: SequenceProblem, per_kernel: Ints) -> Solution:
    return solution_of(problem, per_kernel[problem.order], status=Status.GIVEN, bound_j=0.0)
