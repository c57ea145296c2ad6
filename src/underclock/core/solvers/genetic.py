"""A genetic search for one setting per group, as Wang et al. did for operators (ASPLOS 2025).

They search a core clock for each stretch of an accelerator's operators: clocks are genes, scored by
a model's energy with a penalty where it says that performance is lost. It proves nothing, and is
here to be compared with.

Shape letters: G groups, S settings, P population.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.solvers.problems import Problem, SequenceProblem

_EITHER = 0.5  # parents give as many genes each
_POPULATION, _GENERATIONS = 200, 400  # with a third of each it falls behind by points


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneticSearch:
    """How a population lives."""

    seed: int = 0
    """Of its random numbers."""
    generations: int = 200
    """How often the population is replaced."""
    population: int = 64
    """How many choices live at a time."""
    mutation: float = 0.02
    """Share of the groups that get a random setting."""
    penalty: float = 10.0
    """Added fraction of the energy per fraction of the budget overrun."""

    def lives(
        self,
        costs: Callable[[Ints], tuple[Floats, Floats]],
        offered: Bools,
        first: Ints,
        latest_s: float,
    ) -> Iterator[tuple[Ints, Floats, Floats]]:
        """Yield every generation with its times and energies.

        Args:
            costs: Of choices, shape (P, G), in s and J.
            offered: Which settings a group has. Shape (G, S).
            first: Choices to begin with, of which each group has the last. Shape (F, G).
            latest_s: The time budget.
        """
        random = np.random.default_rng(self.seed)
        groups, settings = offered.shape
        people = random.integers(0, settings, (self.population, groups))
        people[: len(first)] = first
        people = np.where(offered[np.arange(groups), people], people, first[-1])
        for _ in range(self.generations):
            time_s, energy_j = costs(people)
            yield people, time_s, energy_j
            over = np.maximum(0.0, time_s / max(latest_s, 1e-300) - 1.0)
            fitness = energy_j * (1.0 + self.penalty * over)
            people = self._next(offered, people[np.argsort(fitness, kind="stable")], random)

    def _next(self, offered: Bools, people: Ints, random: np.random.Generator) -> Ints:
        """Keep the best tenth, and cross and mutate winners of pairs for the rest."""
        size, groups = people.shape
        parents = random.integers(0, size, (2, 2, size)).min(axis=0)  # sorted: the lower is fitter
        either = random.random(people.shape) < _EITHER
        mixed = np.where(either, people[parents[0]], people[parents[1]])
        changes = random.random(people.shape) < self.mutation
        other = random.integers(0, offered.shape[1], people.shape)
        changes &= offered[np.arange(groups), other]
        children = np.where(changes, other, mixed)
        kept = max(1, size // 10)
        children[:kept] = people[:kept]
        return children


def searched(problem: Problem, seed: int, steps: SequenceProblem | None = None) -> Ints | None:
    """Return the best choice that a genetic search meets within the budget; ``None`` for none.

    Args:
        steps: Says what changing clocks from one group to the next costs, if anything.
    """
    at = np.arange(len(problem.time_s))

    def costs(people: Ints) -> tuple[Floats, Floats]:
        time_s = problem.time_s[at, people].sum(axis=1)
        energy_j = problem.energy_j[at, people].sum(axis=1)
        if steps is not None:
            changes = np.roll(people, 1, axis=1), people
            time_s = time_s + steps.switch_time_s[changes].sum(axis=1)
            energy_j = energy_j + steps.switch_energy_j[changes].sum(axis=1)
        return time_s, energy_j

    first = np.stack([problem.energy_j.argmin(axis=1), problem.time_s.argmin(axis=1)])
    best, least_j = None, math.inf
    offered = np.isfinite(problem.time_s)
    search = GeneticSearch(seed=seed, population=_POPULATION, generations=_GENERATIONS)
    for people, time_s, energy_j in search.lives(costs, offered, first, problem.budget_s):
        in_time_j = np.where(time_s <= problem.budget_s, energy_j, math.inf)
        if in_time_j.min() < least_j:
            best, least_j = people[in_time_j.argmin()], float(in_time_j.min())
    return best
