"""A genetic search for one setting per group, as Wang et al. did for operators (ASPLOS 2025).

They search a core clock for each stretch of an accelerator's operators: clocks are genes, scored by
a model's energy with a penalty where it says that performance is lost. It proves nothing.

Shape letters: G groups, S settings, P population.
"""

import math

import numpy as np

from underclock.arrays import Bools, Ints
from underclock.core.solvers import Problem, SequenceProblem

_EITHER = 0.5  # parents give as many genes each
_POPULATION, _GENERATIONS = 200, 400  # with a third of each it falls behind by points
_MUTATION = 0.02  # share of the groups that get a random setting
_PENALTY = 10.0  # added fraction of the energy per fraction of the budget overrun


def searched(problem: Problem, seed: int, steps: SequenceProblem | None = None) -> Ints | None:
    """Return the best choice that a genetic search meets within the budget; ``None`` for none.

    Args:
        steps: Says what changing clocks from one group to the next costs, if anything.
    """
    at, random = np.arange(len(problem.time_s)), np.random.default_rng(seed)
    offered = np.isfinite(problem.time_s)
    first = np.stack([problem.energy_j.argmin(axis=1), problem.time_s.argmin(axis=1)])
    people = random.integers(0, offered.shape[1], (_POPULATION, len(at)))
    people[: len(first)] = first
    people = np.where(offered[at, people], people, first[-1])
    best, least_j = None, math.inf
    for _ in range(_GENERATIONS):
        time_s = problem.time_s[at, people].sum(axis=1)
        energy_j = problem.energy_j[at, people].sum(axis=1)
        if steps is not None:
            changes = np.roll(people, 1, axis=1), people
            time_s = time_s + steps.switch_time_s[changes].sum(axis=1)
            energy_j = energy_j + steps.switch_energy_j[changes].sum(axis=1)
        in_time_j = np.where(time_s <= problem.budget_s, energy_j, math.inf)
        if in_time_j.min() < least_j:
            best, least_j = people[in_time_j.argmin()], float(in_time_j.min())
        over = np.maximum(0.0, time_s / max(problem.budget_s, 1e-300) - 1.0)
        fitness = energy_j * (1.0 + _PENALTY * over)
        people = _next(offered, people[np.argsort(fitness, kind="stable")], random)
    return best


def _next(offered: Bools, people: Ints, random: np.random.Generator) -> Ints:
    """Keep the best tenth, and cross and mutate winners of pairs for the rest. Shape (P, G)."""
    size, groups = people.shape
    parents = random.integers(0, size, (2, 2, size)).min(axis=0)  # sorted: the lower is fitter
    either = random.random(people.shape) < _EITHER
    mixed = np.where(either, people[parents[0]], people[parents[1]])
    changes = random.random(people.shape) < _MUTATION
    mutant = random.integers(0, offered.shape[1], people.shape)
    changes &= offered[np.arange(groups), mutant]
    children = np.where(changes, mutant, mixed)
    kept = max(1, size // 10)
    children[:kept] = people[:kept]
    return children
