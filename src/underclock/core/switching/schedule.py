"""Schedules: what answers the planning problem when clocks take time and energy to change.

Shape letters: n invocations.
"""

import math
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from underclock.arrays import Ints
from underclock.core.switching.problem import DWELL_SLACK, SequenceProblem
from underclock.records import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCost:
    """What one round of a schedule takes."""

    time_s: float
    energy_j: float
    switches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A setting per invocation and why the solver stopped.

    Attributes:
        status: Why the solver stopped.
        choice: Setting per invocation; empty when infeasible. Shape (n,).
        time_s: Of a round, switches included; ``inf`` when infeasible.
        energy_j: Of a round, switches included; ``inf`` when infeasible.
        bound_j: No schedule that keeps the rules costs less; ``inf`` when it is proven that there
            is none, finite when merely none was found.
        switches: Changes of setting in a round, the wrap-around included.
    """

    status: Status
    choice: Ints
    time_s: float
    energy_j: float
    bound_j: float
    switches: int

    @property
    def gap(self) -> float | None:
        """How far the energy may be from the optimum, as a fraction; ``None`` if infeasible."""
        if self.status is Status.INFEASIBLE:
            return None
        return max(0.0, float(1.0 - self.bound_j / self.energy_j)) if self.energy_j > 0 else 0.0


class Scheduler(Protocol):
    """Anything with a ``solve``; failure is a status, never an exception."""

    def solve(self, problem: SequenceProblem, start: Items[Ints] = ()) -> Schedule:
        """Return the best schedule met, no worse than any of ``start`` that keeps the rules."""
        ...


def infeasible(bound_j: float = math.inf) -> Schedule:
    """Return the answer to a problem that no schedule solves, or none that was found."""
    return Schedule(
        status=Status.INFEASIBLE,
        choice=np.zeros(0, dtype=np.int64),
        time_s=math.inf,
        energy_j=math.inf,
        bound_j=bound_j,
        switches=0,
    )


def schedule_of(
    problem: SequenceProblem, choice: Ints, *, status: Status, bound_j: float
) -> Schedule:
    """Cost a choice; its own energy caps the bound."""
    cost = cost_of(problem, choice)
    return Schedule(
        status=status,
        choice=choice,
        time_s=cost.time_s,
        energy_j=cost.energy_j,
        bound_j=min(bound_j, cost.energy_j),
        switches=cost.switches,
    )


def cost_of(problem: SequenceProblem, choice: Ints) -> RoundCost:
    """Add up a round: every invocation, every change of setting."""
    before = np.roll(choice, 1)
    at = np.flatnonzero(choice != before)
    changes = before[at], choice[at]
    times = problem.time_s[problem.order, choice], problem.switch_time_s[changes]
    energies = problem.energy_j[problem.order, choice], problem.switch_energy_j[changes]
    return RoundCost(
        time_s=math.fsum(np.concatenate(times)),
        energy_j=math.fsum(np.concatenate(energies)),
        switches=len(at),
    )


def violations(problem: SequenceProblem, choice: Ints) -> list[str]:
    """Return a sentence for each rule that a choice breaks; none if it keeps them all."""
    if choice.shape != problem.order.shape:
        return [f"{len(problem.order)} invocations need as many settings, got {choice.shape}"]
    if choice.min() < 0 or choice.max() >= problem.time_s.shape[1]:
        return [f"settings run from 0 to {problem.time_s.shape[1] - 1}, got others"]
    cost = cost_of(problem, choice)
    if not math.isfinite(cost.time_s):
        return ["an invocation runs at a setting that its kernel has not got"]
    broken = []
    if cost.time_s > problem.latest_s:
        broken.append(f"a round takes {cost.time_s} s, the budget is {problem.budget_s} s")
    if problem.max_switches is not None and cost.switches > problem.max_switches:
        broken.append(f"{cost.switches} switches, the most allowed is {problem.max_switches}")
    at = np.flatnonzero(choice != np.roll(choice, 1))
    if problem.blocked[at].any():
        broken.append(f"switches at {problem.blocked[at].sum()} blocked boundaries")
    if len(at):
        # Starting at the first switch, no segment wraps.
        times_s = np.roll(problem.time_s[problem.order, choice], -at[0])
        lasts_s = np.add.reduceat(times_s, at - at[0])
        needs_s = problem.dwell_s[choice[at], choice[np.roll(at, -1)]]
        short = int((lasts_s < needs_s * (1.0 - DWELL_SLACK)).sum())
        if short:
            broken.append(f"{short} segments are shorter than their dwell")
    return broken
