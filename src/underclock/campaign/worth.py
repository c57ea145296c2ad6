"""Which samples a campaign takes next, and whether its promise is sure enough."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.design.sample_value import (
    Candidates,
    Promised,
    expected_improvement,
    expected_improvement_within,
    multiplier_under,
    multiplier_within,
    value_of_information,
)
from underclock.core.inference.joint import TableFit
from underclock.core.model.cost_estimate import CostEstimate
from underclock.core.model.predicted_change import TWO_SIDED, PredictedChange
from underclock.core.planning.best_choice import TIME_POWER
from underclock.core.planning.chance_constraint import RiskModel
from underclock.core.planning.goal import Goal
from underclock.core.planning.strategies import choose_kernels
from underclock.records import Clocks, Objective

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
    candidates = candidates_of(fit, taken, unused)
    plans = [planned_for(fit, goal) for goal in goals]
    value = _improvement if fit.exact else _information
    worth = sum(
        (value(fit, candidates, goal, plan) for goal, plan in zip(goals, plans, strict=True)),
        start=np.zeros_like(posterior.log_s),
    )
    known = fit.without_step_error()
    made = [known.predicted_change(plan) for plan in plans if plan is not None]
    return Worth(
        per_s=worth / np.vectorize(takes_s)(np.exp(posterior.log_s)),
        unsure=max([change.energy_spread for change in made], default=0.0),
        half_width=TWO_SIDED * promise_spread(fit, goals, plans),
    )


def candidates_of(
    fit: KnownCosts,
    taken: Mapping[tuple[str, Clocks], int],
    unused: Callable[[Sequence[Clocks]], Bools],
) -> Candidates:
    """Return what may be measured next, and what is known of it."""
    posterior = fit.posterior
    # A free core clock tells the fit nothing, however often it is asked.
    locked = np.array([clocks.core_mhz is not None for clocks in posterior.settings])
    return Candidates(
        posterior=posterior,
        counts=fit.counts,
        auto_s=fit.baseline.time_s,
        auto_j=fit.baseline.own_j,
        measurable=fit.measurable
        if fit.exact
        else fit.measurable & locked & fit.holds_alone & unused(posterior.settings),
        looks=_looks(posterior.settings, [k.name for k in fit.table.kernels], taken),
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


def planned_for(fit: KnownCosts, goal: Goal) -> Ints | None:
    """Return the best plan as far as is known; ``None`` where there is none."""
    if goal.objective is Objective.TIME and fit.table.power_cap is None:
        return None  # what the cap makes of the step is not known yet
    return choose_kernels(fit.table, goal, fit)


def multiplier_of(fit: KnownCosts, goal: Goal, plan: Ints | None) -> float:
    """Return what a second is worth to a goal, in J.

    Args:
        plan: The best plan for it; ``None`` where there is none.
    """
    table = fit.table
    time_s, energy_j = table.time_s, table.energy_j
    if goal.objective is Objective.WASTE:
        return multiplier_within(time_s, energy_j, table.auto_time_s * (1.0 + goal.max_slowdown))
    if goal.objective is Objective.TIME and table.power_cap is not None:
        return multiplier_under(time_s, energy_j, table.power_cap.limit_w)
    if goal.objective is Objective.ENERGY:
        return 0.0
    # d(E·T^p) is T^p times dE + (p·E/T) dT. Where no plan is known, auto stands for it.
    columns = np.full(len(time_s), table.baseline) if plan is None else plan
    at = np.arange(len(time_s)), columns
    return TIME_POWER.get(goal.objective, 1) * float(energy_j[at].sum() / time_s[at].sum())


def _improvement(fit: KnownCosts, candidates: Candidates, goal: Goal, plan: Ints | None) -> Floats:
    """Return what a look at each entry of a table is expected to gain, in J. Shape (K, C)."""
    if goal.objective is Objective.WASTE:
        return expected_improvement_within(candidates, goal.max_slowdown)
    return expected_improvement(candidates, multiplier_of(fit, goal, plan))


def _information(fit: KnownCosts, candidates: Candidates, goal: Goal, plan: Ints | None) -> Floats:
    """Return what a sample of each entry tells of the plan and its promise, in J. (K, C)."""
    planned = np.full(len(fit.counts), -1) if plan is None else plan.copy()
    planned[planned == fit.table.baseline] = -1
    multiplier = multiplier_of(fit, goal, plan)
    promised = Promised(
        energy=0.0 if goal.objective is Objective.TIME else 1.0,
        time_w=0.0 if goal.objective in {Objective.WASTE, Objective.ENERGY} else multiplier,
    )
    return value_of_information(candidates, multiplier, planned, promised).total


def promise_spread(fit: KnownCosts, goals: Sequence[Goal], plans: Sequence[Ints | None]) -> float:
    """Return the standard deviation of what is promised; the greatest of all goals.

    That a step at auto changes nothing is sure without a sample. So where every plan is auto, it is
    the plans expected to gain something that have to be sharp, in time and in energy: they are what
    is not yet sure to keep the budget.
    """
    known = fit.without_step_error()
    all_auto = all(plan is None or (plan == fit.table.baseline).all() for plan in plans)
    if all_auto:
        plans = [
            _expected_to_gain(fit, goal, plan) for goal, plan in zip(goals, plans, strict=True)
        ]
    spreads = []
    for goal, plan in zip(goals, plans, strict=True):
        if plan is None:
            continue
        change = known.predicted_change(plan)
        of_energy = goal.objective is not Objective.TIME
        of_time = all_auto or goal.objective not in {Objective.WASTE, Objective.ENERGY}
        spreads += [change.energy_spread] * of_energy + [change.time_spread] * of_time
    return max(spreads, default=np.inf)


def _expected_to_gain(fit: KnownCosts, goal: Goal, plan: Ints | None) -> Ints | None:
    """Return the choice that gains most as expected, however unsure it is."""
    if goal.objective is Objective.WASTE:
        return choose_kernels(fit.table, goal, _CertainOfTime(fit))
    cost = fit.table.energy_j + multiplier_of(fit, goal, plan) * fit.table.time_s
    cost[:, fit.table.baseline] = np.inf
    return None if np.isinf(cost.min(axis=1)).any() else cost.argmin(axis=1)


@dataclass(frozen=True, slots=True)
class _CertainOfTime:
    """A risk model that takes expected times for certain."""

    model: RiskModel

    def predicted_change(self, setting: Ints) -> PredictedChange:
        """Say what a choice is expected to change."""
        return dataclasses.replace(self.model.predicted_change(setting), time_spread=0.0)

    def time_variance(self, setting: Ints) -> None:
        """Return nothing: there is none."""
