"""What a choice promises: its spread, and that a budget is kept with confidence."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.arrays import Floats, Ints
from underclock.core.model.posterior import Posterior
from underclock.core.model.predicted_change import (
    ONE_SIDED,
    TWO_SIDED,
    Baseline,
    PredictedChange,
    TimeVariance,
    predicted_change,
    time_variance,
)
from underclock.core.model.rows import PER_KERNEL
from underclock.core.planning.goal import Goal
from underclock.core.planning.strategies import choose_kernels, compare_strategies
from underclock.core.step.table import CostTable
from underclock.records import AUTO, Aggregate, Clocks, Kernel, Objective, Status, Strategy

_K, _C, _S = 4, 5, 3


def _belief(seed: int, size: float = 0.02) -> Posterior:
    random = np.random.default_rng(seed)
    spread = random.normal(0.0, 1.0, (_K, PER_KERNEL, PER_KERNEL))
    common = random.normal(0.0, 1.0, (_S, _S))
    clock = np.linspace(0.5, 1.0, _C)
    return Posterior(
        settings=tuple(Clocks(core_mhz=round(1000 * share)) for share in clock.tolist()),
        log_s=random.uniform(-2, 0, (_K, 1)) - random.uniform(0, 1, (_K, 1)) * np.log(clock),
        log_w=5.0 + random.uniform(0.5, 2.5, (_K, 1)) * np.log(clock),
        by_shared=size * random.normal(0.0, 1.0, (2, _K, _C, _S)),
        by_kernel=size * random.normal(0.0, 1.0, (2, _K, _C, PER_KERNEL)),
        discrepancy=(size * random.uniform(0.0, 1.0, (2, _K, _C))) ** 2,
        shared_cov=common @ common.T / _S,
        kernel_cov=spread @ spread.swapaxes(1, 2) / PER_KERNEL,
        noise=np.full((2, _K), 0.01),
    )


def _counts() -> Floats:
    return np.array([1.0, 2.0, 3.0, 1.0])


def _baseline(
    posterior: Posterior, spread: tuple[float, float] = (0.0, 0.0), of_kernels: float = 0.0
) -> Baseline:
    time_s = np.exp(posterior.log_s[:, -1]) * _counts()
    return Baseline(
        time_s=time_s,
        energy_j=time_s * np.exp(posterior.log_w[:, -1]) * 1.05,
        spread=spread,
        of_kernels=np.full((2, _K), of_kernels),
    )


def _table(posterior: Posterior, baseline: Baseline) -> CostTable:
    time_s = np.exp(posterior.log_s) * _counts()[:, None]
    return CostTable(
        kernels=tuple(Kernel(name=f"k{k}", count=int(_counts()[k])) for k in range(_K)),
        settings=(*posterior.settings, AUTO),
        time_s=np.column_stack([time_s, baseline.time_s]),
        energy_j=np.column_stack([time_s * np.exp(posterior.log_w), baseline.energy_j]),
        baseline=_C,
    )


@dataclass(frozen=True)
class _Risk:
    """Judges choices by a posterior; the table's last setting is the baseline."""

    posterior: Posterior
    baseline: Baseline

    def predicted_change(self, setting: Ints) -> PredictedChange:
        columns = np.where(setting == _C, -1, setting)
        return predicted_change(self.posterior, _counts(), self.baseline, columns)

    def time_variance(self, setting: Ints) -> TimeVariance:
        columns = np.where(setting == _C, -1, setting)
        variance = self.predicted_change(setting).time_spread ** 2
        return time_variance(self.posterior, _counts(), self.baseline, columns, variance)


def test_staying_at_auto_is_certain() -> None:
    posterior = _belief(0)
    seen = predicted_change(posterior, _counts(), _baseline(posterior), np.full(_K, -1))

    assert (seen.time_change, seen.energy_change) == pytest.approx((0.0, 0.0))
    assert (seen.time_spread, seen.energy_spread) == (0.0, 0.0)


@given(st.integers(0, 50), st.lists(st.integers(-1, _C - 1), min_size=_K, max_size=_K))
def test_variance_is_shared_out_among_kernels(seed: int, picked: list[int]) -> None:
    posterior, columns = _belief(seed), np.array(picked)
    risk = _Risk(posterior, _baseline(posterior))
    here = np.where(columns < 0, _C, columns)
    variance = risk.predicted_change(here).time_spread ** 2
    shared = risk.time_variance(here)
    every = np.arange(_K)

    assert shared.rest + shared.of_entries[every, here].sum() == pytest.approx(variance)
    # Around another choice the tangent of what kernels share is no greater than that is; only how
    # much of auto is left as it is, and how much longer that is than auto, stand as they were.
    parted = (risk.baseline.of_kernels[0] ** 2).sum() + risk.baseline.spread[0] ** 2
    for other in np.random.default_rng(seed).integers(0, _C, (5, _K)):
        seen = shared.rest + shared.of_entries[every, other].sum()
        truth = risk.predicted_change(other).time_spread ** 2
        assert seen <= truth + 4.0 * parted + 1e-12


@settings(max_examples=15)
@given(st.integers(0, 1000), st.lists(st.integers(-1, _C - 1), min_size=_K, max_size=_K))
def test_spreads_are_those_of_draws(seed: int, picked: list[int]) -> None:
    posterior, columns = _belief(seed), np.array(picked)
    baseline = _baseline(posterior)
    seen = predicted_change(posterior, _counts(), baseline, columns)
    random = np.random.default_rng(seed)
    draws = 4000
    shared = random.multivariate_normal(np.zeros(_S), posterior.shared_cov, draws)
    time_s, energy_j = np.zeros(draws), np.zeros(draws)
    for k, c in enumerate(picked):
        if c < 0:
            time_s += baseline.time_s[k]
            energy_j += baseline.energy_j[k]
            continue
        own = random.multivariate_normal(np.zeros(PER_KERNEL), posterior.kernel_cov[k], draws)
        log = np.stack([posterior.log_s[k, c], posterior.log_w[k, c]])[:, None] + (
            posterior.by_shared[:, k, c] @ shared.T
            + posterior.by_kernel[:, k, c] @ own.T
            + random.normal(0.0, 1.0, (2, draws)) * np.sqrt(posterior.discrepancy[:, k, c])[:, None]
        )
        time_s += _counts()[k] * np.exp(log[0])
        energy_j += _counts()[k] * np.exp(log.sum(axis=0))

    assert seen.time_spread == pytest.approx(float(time_s.std()) / baseline.time_s.sum(), rel=0.12)
    expected = float(energy_j.std()) / baseline.energy_j.sum()
    assert seen.energy_spread == pytest.approx(expected, rel=0.12)


def test_an_unsure_baseline_makes_a_promise_unsure() -> None:
    posterior, columns = _belief(3), np.zeros(_K, dtype=np.int64)
    sure = predicted_change(posterior, _counts(), _baseline(posterior), columns)
    unsure = predicted_change(posterior, _counts(), _baseline(posterior, (0.02, 0.03)), columns)

    share = 1.0 + sure.time_change
    assert unsure.time_spread == pytest.approx(math.hypot(sure.time_spread, 0.02 * share))
    assert unsure.energy_spread > sure.energy_spread
    assert unsure.time_change == sure.time_change


def test_what_kernels_left_at_auto_take_of_the_step_is_unsure() -> None:
    posterior, columns = _belief(3), np.array([2, -1, 0, -1])
    baseline = _baseline(posterior, of_kernels=0.05)
    sure = predicted_change(posterior, _counts(), _baseline(posterior), columns)
    unsure = predicted_change(posterior, _counts(), baseline, columns)
    random = np.random.default_rng(0)
    parts = baseline.energy_j * random.normal(1.0, 0.05, (20_000, _K))
    kept = parts[:, columns < 0].sum(axis=1) / parts.sum(axis=1)

    expected = math.hypot(sure.energy_spread, float(kept.std()))
    assert unsure.energy_spread == pytest.approx(expected, rel=0.02)
    assert unsure.energy_change == sure.energy_change


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_every_arm_keeps_the_budget_with_confidence(seed: int) -> None:
    posterior = _belief(seed, 0.005)
    baseline = _baseline(posterior)
    table, risk = _table(posterior, baseline), _Risk(posterior, baseline)
    for budget in (0.0, 0.05):
        arms = compare_strategies(table, Goal(max_slowdown=budget), risk)
        certain = compare_strategies(table, Goal(max_slowdown=budget))
        for arm in arms.arms[1:]:
            seen = risk.predicted_change(arms.settings[arm.name])
            assert seen.time_change + ONE_SIDED * seen.time_spread <= budget + 1e-5
            assert arm.time_interval is not None
            assert arm.energy_interval is not None
            half = TWO_SIDED * seen.energy_spread
            assert arm.energy_interval == pytest.approx(
                (seen.energy_change - half, seen.energy_change + half)
            )
        best, taken = arms.arms[-1].energy_j, certain.arms[-1].energy_j
        assert best is not None
        assert taken is not None
        assert best >= taken - 1e-9
        kernels = choose_kernels(table, Goal(max_slowdown=budget), risk)
        assert kernels is not None
        assert kernels.tolist() == arms.settings[Strategy.KERNEL_GLOBAL].tolist()


def test_where_nothing_is_sure_enough_auto_stays() -> None:
    posterior = _belief(1, 0.5)
    baseline = _baseline(posterior)
    arms = compare_strategies(_table(posterior, baseline), Goal(), _Risk(posterior, baseline))

    assert all((at == _C).all() for at in arms.settings.values())
    assert arms.arms[-1].energy_change == 0.0


def test_a_budget_below_auto_may_have_no_answer() -> None:
    posterior = _belief(1)
    baseline = _baseline(posterior)
    table, risk = _table(posterior, baseline), _Risk(posterior, baseline)

    assert choose_kernels(table, Goal(max_slowdown=-0.9), risk) is None
    arms = compare_strategies(table, Goal(max_slowdown=-0.9), risk)
    assert [arm.status for arm in arms.arms[1:]] == [Status.INFEASIBLE] * (len(arms.arms) - 1)
    assert all(arm.time_interval is None for arm in arms.arms[1:])


@pytest.mark.parametrize(
    "goal", [Goal(objective=Objective.EDP), Goal(aggregate=Aggregate.LOCAL, max_slowdown=0.1)]
)
def test_other_goals_are_judged_too(goal: Goal) -> None:
    posterior = _belief(2)
    baseline = _baseline(posterior)
    arms = compare_strategies(_table(posterior, baseline), goal, _Risk(posterior, baseline))

    assert all(arm.energy_interval is not None for arm in arms.arms[1:])


def test_what_was_drawn_is_late_with_the_errors_beside_it() -> None:
    expected = PredictedChange(
        time_change=0.01, energy_change=-0.1, time_spread=0.003, energy_spread=0.004
    )
    away = np.random.default_rng(0).normal(0.0, 1.0, (4000, 2)) * np.array([0.004, 0.003])
    drawn = expected.among(away)
    assert drawn.time_spread == pytest.approx(0.005, rel=0.05)
    assert drawn.intervals[0] == pytest.approx((-1.96 * 0.005, 1.96 * 0.005), rel=0.06)
    assert drawn.energy_spread == pytest.approx(0.005, rel=0.05)
    # Where every draw is late, so is what is known.
    late = expected.among(np.abs(away))
    assert late.intervals[0][1] > -late.intervals[0][0]
