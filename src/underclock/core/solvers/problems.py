"""The problems that plans come down to, and what answers them.

`Problem` picks one setting per group. `SequenceProblem` picks one per launch of a step that
repeats, where changing clocks takes time and energy: its launches form a ring, the last is followed
by the first. Boundary i lies before launch i; boundary 0 is the wrap. A segment is a longest run of
launches at one setting, round the wrap too.

Shape letters: G groups, K kernels, n launches (invocations), S settings.
"""

import math
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Self

import numpy as np

from underclock.arrays import Bools, Floats, Ints, turned
from underclock.records import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Pick one setting per group: least energy within a time budget."""

    time_s: Floats  # ``inf`` where a setting is not available; each group has one, (G, S)
    energy_j: Floats  # ``inf`` in the same places, (G, S)
    budget_s: float = math.inf  # most time all groups together may take; ``inf`` for no limit


class Effort(Enum):
    """How far a solver looks before it states a gap.

    Attributes:
        labels: Most labels kept in one search of a knapsack.
        gap: Fraction of the energy between a schedule and its bound at which looking ends.
        mixes: Most times that a schedule is mixed with another.
    """

    QUICK = 20_000, 1e-3, 40
    """To choose what to look at next."""
    PLAN = 200_000, 1e-4, 150
    """To plan on expected costs, of which a proof to the last joule proves nothing."""
    PROOF = 50_000_000, 1e-9, 1_000
    """To the optimum."""

    def __init__(self, labels: int, gap: float, mixes: int) -> None:
        self.labels, self.gap, self.mixes = labels, gap, mixes


# Sums are floats: a budget that is the exact time of a choice must admit the choice, and a dwell
# that is the exact length of a segment must let go of it.
SLACK = 1e-12
DWELL_SLACK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceProblem:
    """Pick one setting per invocation: least energy within a time budget, switches included."""

    time_s: Floats  # of one invocation; ``inf`` where a setting is not available, (K, S)
    energy_j: Floats  # of one invocation; ``inf`` in the same places, (K, S)
    order: Ints  # which kernel each invocation is, (n,)
    switch_time_s: Floats  # time lost by changing setting, row to column; zero diagonal, (S, S)
    switch_energy_j: Floats  # energy of the change, row to column; zero diagonal, (S, S)
    # least length of a segment at the row's setting before the column's can follow, for the change
    # is asked for ahead and takes that long; nothing dwells in a schedule that never switches
    dwell_s: Floats  # (S, S)
    # standard deviation of when a change happens, row to column. No solver looks here, nor at the
    # two that follow
    jitter_s: Floats  # (S, S)
    # of `switch_time_s`, what stands for changes that come early or late at a usual boundary
    miss_time_s: Floats  # (S, S)
    miss_energy_j: Floats  # the same of `switch_energy_j`, (S, S)
    # where no change may happen: boundary i lies before invocation i, the first after the last
    blocked: Bools  # (n,)
    max_switches: int | None = None  # most changes in one round; ``None`` for no limit
    budget_s: float = math.inf  # most time one round may take; ``inf`` for no limit
    # what solvers made of all but the budget, by where the round is cut
    laid_out: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def within(self, budget_s: float) -> Self:
        """Return the same problem within another budget; what solvers made of it is shared."""
        other = replace(self, budget_s=budget_s)
        object.__setattr__(other, "laid_out", self.laid_out)
        return other

    @property
    def latest_s(self) -> float:
        """Return the budget with what rounding may add to a sum that meets it exactly."""
        return self.budget_s + SLACK * abs(self.budget_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A choice of settings, and why the solver stopped."""

    status: Status
    # setting of each group, or of each launch; empty when infeasible. Shape (G,) or (n,)
    choice: Ints
    time_s: float  # of the choice, changes of setting included; ``inf`` when infeasible
    energy_j: float
    # no choice that keeps the rules costs less; ``inf`` when it is proven that there is none,
    # finite when merely none was found
    bound_j: float
    switches: int = 0  # changes of setting in a round, the wrap included

    @property
    def gap(self) -> float | None:
        """How far the energy may be from the optimum, as a fraction; ``None`` if infeasible."""
        if self.status is Status.INFEASIBLE:
            return None
        return max(0.0, float(1.0 - self.bound_j / self.energy_j)) if self.energy_j > 0 else 0.0


def infeasible(bound_j: float = math.inf) -> Solution:
    """Return the answer to a problem that no choice solves, or for which none was found."""
    none = np.zeros(0, dtype=np.int64)
    return Solution(
        status=Status.INFEASIBLE, choice=none, time_s=math.inf, energy_j=math.inf, bound_j=bound_j
    )


def costed(
    problem: Problem | SequenceProblem,
    choice: Ints,
    status: Status = Status.GIVEN,
    bound_j: float = math.inf,
) -> Solution:
    """Add up every group, or every launch and every change of setting.

    Args:
        bound_j: No choice costs less; the energy of the choice caps it.
    """
    if isinstance(problem, Problem):
        at, switches = (np.arange(len(choice)), choice), 0
        times_s, energies_j = problem.time_s[at], problem.energy_j[at]
    else:
        before = turned(choice, 1)
        changed = np.flatnonzero(choice != before)
        changes, at = (before[changed], choice[changed]), (problem.order, choice)
        switches = len(changed)
        times_s = np.concatenate([problem.time_s[at], problem.switch_time_s[changes]])
        energies_j = np.concatenate([problem.energy_j[at], problem.switch_energy_j[changes]])
    energy_j = math.fsum(energies_j.tolist())
    return Solution(
        status=status,
        choice=choice,
        time_s=math.fsum(times_s.tolist()),
        energy_j=energy_j,
        bound_j=min(bound_j, energy_j),
        switches=switches,
    )


def violations(problem: SequenceProblem, choice: Ints) -> list[str]:
    """Return a sentence for each rule that a choice breaks; none if it keeps them all."""
    if choice.shape != problem.order.shape:
        return [f"{len(problem.order)} invocations need as many settings, got {choice.shape}"]
    if choice.min() < 0 or choice.max() >= problem.time_s.shape[1]:
        return [f"settings run from 0 to {problem.time_s.shape[1] - 1}; a choice is outside"]
    cost = costed(problem, choice)
    if not math.isfinite(cost.time_s):
        return ["an invocation runs at a setting that its kernel has not got"]
    broken = []
    if cost.time_s > problem.latest_s:
        broken.append(f"a round takes {cost.time_s} s, the budget is {problem.budget_s} s")
    if problem.max_switches is not None and cost.switches > problem.max_switches:
        broken.append(f"{cost.switches} switches, the most allowed is {problem.max_switches}")
    at = np.flatnonzero(choice != turned(choice, 1))
    if problem.blocked[at].any():
        broken.append(f"switches at {problem.blocked[at].sum()} blocked boundaries")
    if len(at):
        # Starting at the first switch, no segment wraps.
        times_s = turned(problem.time_s[problem.order, choice], -at[0])
        lasts_s = np.add.reduceat(times_s, at - at[0])
        needs_s = problem.dwell_s[choice[at], choice[turned(at, -1)]]
        short = int((lasts_s < needs_s * (1.0 - DWELL_SLACK)).sum())
        if short:
            broken.append(f"{short} segments are shorter than their dwell")
    return broken
