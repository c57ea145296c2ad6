"""Which samples a campaign takes next, and whether its promise is sure enough."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.design.sample_value import (
    Candidates,
    expected_improvement_within,
    multiplier_within,
    value_of_information,
)
from underclock.core.inference.joint import TableFit
from underclock.core.model.cost_estimate import CostEstimate
from underclock.core.model.predicted_change import TWO_SIDED, PredictedChange
from underclock.core.planning.chance_constraint import RiskModel
from underclock.core.planning.goal import Goal
from underclock.core.planning.strategies import choose_kernels
from underclock.records import Clocks

_NEAR = 0.015  # of log core clock: a look there tells of both


KnownCosts = CostEstimate | TableFit
"""What a campaign knows so far, of a GPU or of rows of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What further samples are worth.

    Attributes:
        per_s: Of each entry, in J per step for each second that it takes. Shape (K, C).
        unsure: Standard deviation of the promised change of energy; the greatest of all goals.
        half_width: Half the width of the 95 % interval of what is promised; likewise.
    """

    per_s: Floats
    unsure: float
    half_width: float

    def best(self, most: int) -> list[tuple[int, int]]:
        """Return kernels and settings worth most, at most one setting a kernel."""
        at, value = self.per_s.argmax(axis=1), self.per_s.max(axis=1)
        return [(k, int(at[k])) for k in np.argsort(-value)[:most].tolist() if value[k] > 0]


def worth_of_samples(
    fit: KnownCosts,
    goals: Sequence[Goal],
    unused: Callable[[Sequence[Clocks]], Bools],
    takes_s: Callable[[float], float],
    taken: Mapping[tuple[str, Clocks], int],
) -> Worth:
    """Say what further samples are worth to plans.

    Args:
        unused: Returns where there is an answer that was not yet given. Shape (K, C).
        takes_s: Returns the GPU time of one sample, from that of a launch in s.
    """
    posterior = fit.posterior
    # A free core clock tells the fit nothing, however often it is asked.
    locked = np.array([clocks.core_mhz is not None for clocks in posterior.settings])
    candidates = Candidates(
        posterior=posterior,
        counts=fit.counts,
        auto_s=fit.baseline.time_s,
        auto_j=fit.baseline.own_j,
        measurable=fit.measurable
        if fit.exact
        else fit.measurable & locked & fit.holds_alone & unused(posterior.settings),
        looks=_looks(posterior.settings, [k.name for k in fit.table.kernels], taken),
    )
    plans = [choose_kernels(fit.table, goal, fit) for goal in goals]
    if fit.exact:
        gains = [expected_improvement_within(candidates, goal.max_slowdown) for goal in goals]
    else:
        gains = [
            _information(fit, candidates, goal, plan)
            for goal, plan in zip(goals, plans, strict=True)
        ]
    known = fit.without_step_error()
    made = [known.predicted_change(plan) for plan in plans if plan is not None]
    return Worth(
        per_s=sum(gains, start=np.zeros_like(posterior.log_s))
        / np.vectorize(takes_s)(np.exp(posterior.log_s)),
        unsure=max([change.energy_spread for change in made], default=0.0),
        half_width=TWO_SIDED * promise_spread(fit, goals, plans),
    )


def _looks(
    settings: Sequence[Clocks], names: Sequence[str], taken: Mapping[tuple[str, Clocks], int]
) -> Floats:
    """Return how often each kernel was looked at near each setting. Shape (K, C)."""
    place = {name: k for k, name in enumerate(names)}
    core = np.log([float(clocks.core_mhz or np.inf) for clocks in settings])
    mem = np.array([clocks.mem_mhz or 0 for clocks in settings])
    looks = np.zeros((len(names), len(settings)))
    for (name, clocks), times in taken.items():
        if name in place and clocks.core_mhz is not None:
            away = (core - np.log(clocks.core_mhz)) / _NEAR
            near = np.exp(-0.5 * np.minimum(away, 1e3) ** 2) * (mem == (clocks.mem_mhz or 0))
            looks[place[name]] += times * near
    return looks


def _information(fit: KnownCosts, candidates: Candidates, goal: Goal, plan: Ints | None) -> Floats:
    """Return what a sample of each entry tells of the plan and its promise, in J. (K, C)."""
    planned = np.full(len(fit.counts), -1) if plan is None else plan.copy()
    planned[planned == fit.table.baseline] = -1
    limit_s = fit.table.auto_time_s * (1.0 + goal.max_slowdown)
    second_j = multiplier_within(fit.table.time_s, fit.table.energy_j, limit_s)
    return value_of_information(candidates, second_j, planned).total


def promise_spread(fit: KnownCosts, goals: Sequence[Goal], plans: Sequence[Ints | None]) -> float:
    """Return the standard deviation of what is promised; the greatest of all goals.

    That a step at auto changes nothing is sure without a sample. So where every plan is auto, it is
    the plans expected to gain something that have to be sharp, in time and in energy: they are what
    is not yet sure to keep the budget.
    """
    known = fit.without_step_error()
    all_auto = all(plan is None or (plan == fit.table.baseline).all() for plan in plans)
    if all_auto:
        plans = [choose_kernels(fit.table, goal, _CertainOfTime(fit)) for goal in goals]
    spreads = []
    for plan in plans:
        if plan is not None:
            change = known.predicted_change(plan)
            spreads += [change.energy_spread] + [change.time_spread] * all_auto
    return max(spreads, default=np.inf)


@dataclass(frozen=True, slots=True)
class _CertainOfTime:
    """A risk model that takes expected times for certain."""

    model: RiskModel

    def predicted_change(self, setting: Ints) -> PredictedChange:
        """Say what a choice is expected to change."""
        return dataclasses.replace(self.model.predicted_change(setting), time_spread=0.0)

    def time_variance(self, setting: Ints) -> None:
        """Return nothing: there is none."""
