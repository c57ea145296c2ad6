"""A genetic search for one setting per group, as Wang et al. did for operators (ASPLOS 2025).

They search a core clock for each stretch of an accelerator's operators: clocks are genes, scored by
a model's energy with a penalty where it says that performance is lost. It proves nothing, and is
here to be compared with.

Shape letters: G groups, S settings, P population.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints

_EITHER = 0.5  # parents give as many genes each


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
