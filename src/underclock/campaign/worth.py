"""Which samples a campaign takes next, and whether its promise is sure enough."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.design.acquisition import (
    Looks,
    improvement,
    improvement_of_table,
    price_within,
)
from underclock.core.model.costs import TWO_SIDED, Costs, PredictedChange
from underclock.core.model.estimate import Estimate
from underclock.core.planning.goal import Goal
from underclock.core.planning.strategies import choose_kernels
from underclock.core.step.table import CostTable
from underclock.records import Clocks

_NEAR = 0.015  # of log core clock: a look there says something of both


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What further samples are worth.

    Attributes:
        per_s: Of each entry, in J per step for each second that it takes. Shape (K, S).
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
    fit: Estimate,
    goals: Sequence[Goal],
    unused: Callable[[Sequence[Clocks]], Bools],
    takes_s: Callable[[float], float],
    taken: Mapping[tuple[str, Clocks], int],
) -> Worth:
    """Say what further samples of a GPU, or of rows with repeats, are worth to plans.

    Args:
        unused: Returns where there is an answer that was not yet given. Shape (K, S).
        takes_s: Returns the GPU time of one sample, from that of a launch in s.
    """
    costs, table = fit.costs, fit.costs.table
    # A free core clock says nothing to the fit, however often it is asked.
    locked = np.array([clocks.core_mhz is not None for clocks in table.settings])
    time2, power2 = fit.posterior.noise**2
    looks = Looks(
        measurable=fit.measurable & locked & fit.holds_alone & unused(table.settings),
        count=_looks(table.settings, [k.name for k in table.kernels], taken),
        noise=np.sqrt([time2, time2 + power2]),
    )
    plans = [choose_kernels(table, goal, costs) for goal in goals]
    gains = np.zeros(table.time_s.shape)
    for goal, plan in zip(goals, plans, strict=True):
        planned = np.full(len(table.kernels), table.baseline) if plan is None else plan
        limit_s = table.auto_time_s * (1.0 + goal.max_slowdown)
        price_w = price_within(table.time_s, table.energy_j, limit_s)
        gains += improvement(costs, looks, price_w, planned)
    known = dataclasses.replace(costs, step_error=(0.0, 0.0))
    made = [known.predicted_change(plan) for plan in plans if plan is not None]
    launch_s = np.where(np.isfinite(table.time_s), table.launches.time_s, np.inf)
    return Worth(
        per_s=gains / np.vectorize(takes_s)(launch_s),
        unsure=max([change.energy_spread for change in made], default=0.0),
        half_width=TWO_SIDED * promise_spread(known, goals, plans),
    )


def worth_of_rows(fit: Estimate, known: CostTable, goals: Sequence[Goal]) -> Worth:
    """Say what further rows of a table without repeats are worth to plans.

    Args:
        known: Costs of the rows that were looked at.
    """
    table = fit.costs.table
    columns = [table.settings.index(clocks) for clocks in known.settings]
    time_s, energy_j = np.full((2, *table.time_s.shape), np.inf)
    time_s[:, columns], energy_j[:, columns] = known.time_s, known.energy_j
    looked_at = dataclasses.replace(table, time_s=time_s, energy_j=energy_j)
    seen = np.isfinite(time_s)
    gains = sum(
        (
            improvement_of_table(fit.costs, looked_at, seen, fit.measurable, goal.max_slowdown)
            for goal in goals
        ),
        start=np.zeros(time_s.shape),
    )
    return Worth(per_s=gains, unsure=0.0, half_width=0.0)


def _looks(
    settings: Sequence[Clocks], names: Sequence[str], taken: Mapping[tuple[str, Clocks], int]
) -> Floats:
    """Return how often each kernel was looked at near each setting. Shape (K, S)."""
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


def promise_spread(costs: Costs, goals: Sequence[Goal], plans: Sequence[Ints | None]) -> float:
    """Return the standard deviation of what is promised; the greatest of all goals.

    That a step at auto changes nothing is sure without a sample. So where every plan is auto, it is
    the plans expected to gain something that have to be sharp, in time and in energy: they are what
    is not yet sure to keep the budget.
    """
    baseline = costs.table.baseline
    all_auto = all(plan is None or (plan == baseline).all() for plan in plans)
    if all_auto:
        plans = [choose_kernels(costs.table, goal, _CertainOfTime(costs)) for goal in goals]
    spreads = []
    for plan in plans:
        if plan is not None:
            change = costs.predicted_change(plan)
            spreads += [change.energy_spread] + [change.time_spread] * all_auto
    return max(spreads, default=np.inf)


@dataclass(frozen=True, slots=True)
class _CertainOfTime:
    """A risk model that takes expected times for certain."""

    costs: Costs

    def predicted_change(self, setting: Ints) -> PredictedChange:
        """Say what a choice is expected to change."""
        return dataclasses.replace(self.costs.predicted_change(setting), time_spread=0.0)

    def time_variance(self, setting: Ints) -> None:
        """Return nothing: there is none."""
