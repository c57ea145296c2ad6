"""What one more sample is worth."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.arrays import Floats
from underclock.core.model.posterior import Posterior
from underclock.core.model.rows import PER_KERNEL
from underclock.core.sampling.acquisition import (
    Candidates,
    ValueOfInformation,
    expected_improvement,
    expected_improvement_within_own_budget,
    multipliers,
    value_of_information,
)
from underclock.records import Clocks

_K, _C, _S = 3, 4, 2


def _posterior(seed: int, size: float = 0.05) -> Posterior:
    random = np.random.default_rng(seed)
    return Posterior(
        settings=tuple(Clocks(core_mhz=500 + 100 * c) for c in range(_C)),
        log_s=random.uniform(-2.0, 0.0, (_K, _C)),
        log_w=random.uniform(4.0, 6.0, (_K, _C)),
        by_shared=size * random.normal(0.0, 1.0, (2, _K, _C, _S)),
        by_kernel=size * random.normal(0.0, 1.0, (2, _K, _C, PER_KERNEL)),
        discrepancy=(size * random.uniform(0.0, 1.0, (2, _K, _C))) ** 2,
        shared_cov=np.eye(_S),
        kernel_cov=np.tile(np.eye(PER_KERNEL), (_K, 1, 1)),
        noise=np.full((2, _K), 0.01),
    )


def _known(posterior: Posterior) -> Posterior:
    return dataclasses.replace(
        posterior,
        by_shared=0 * posterior.by_shared,
        by_kernel=0 * posterior.by_kernel,
        discrepancy=0 * posterior.discrepancy,
    )


_CAN = np.arange(_C) + np.zeros((_K, 1)) > 0


def _candidates(posterior: Posterior) -> Candidates:
    auto_s = np.exp(posterior.log_s[:, -1])
    return Candidates(
        posterior=posterior,
        counts=np.ones(_K),
        auto_s=auto_s,
        auto_j=1.02 * auto_s * np.exp(posterior.log_w[:, -1]),
        measurable=_CAN,
    )


def _value(
    posterior: Posterior, *, planned: int = 0, multiplier: float = 50.0
) -> ValueOfInformation:
    return value_of_information(_candidates(posterior), multiplier, np.full(_K, planned))


def _improvement(posterior: Posterior, *, multiplier: float = 50.0) -> Floats:
    return expected_improvement(_candidates(posterior), multiplier)


@given(st.integers(0, 1000), st.integers(-1, _C - 1), st.floats(0.0, 1000.0))
def test_worth_is_never_negative_and_only_where_one_can_measure(
    seed: int, planned: int, multiplier: float
) -> None:
    worth = _value(_posterior(seed), planned=planned, multiplier=multiplier)

    for value in (
        worth.choice,
        worth.promise,
        worth.total,
        _improvement(_posterior(seed), multiplier=multiplier),
    ):
        assert value.shape == (_K, _C)
        assert np.isfinite(value).all()
        assert (value >= 0).all()
        assert (value[:, 0] == 0).all()


@given(st.integers(0, 1000))
def test_what_is_known_is_worth_nothing(seed: int) -> None:
    known = _known(_posterior(seed))

    assert _value(known, planned=2).total == pytest.approx(0.0, abs=1e-12)
    assert (_improvement(known) == 0).all()


@given(st.integers(0, 1000))
def test_a_better_row_known_leaves_less_to_improve(seed: int) -> None:
    posterior = _posterior(seed)
    open_ = np.arange(_C) != 2  # what column 2 costs is known
    told = dataclasses.replace(
        posterior,
        by_shared=posterior.by_shared * open_[:, None],
        by_kernel=posterior.by_kernel * open_[:, None],
        discrepancy=posterior.discrepancy * open_,
    )
    better = dataclasses.replace(told, log_w=np.where(open_, told.log_w, told.log_w - 1.0))

    assert (_improvement(told)[:, 2] == 0).all()
    assert (_improvement(better) <= _improvement(told) + 1e-12).all()


@given(st.integers(0, 1000), st.floats(0.0, 0.2))
def test_a_looser_budget_leaves_no_less_to_improve(seed: int, budget: float) -> None:
    posterior = _posterior(seed)
    tight, loose = (
        expected_improvement_within_own_budget(_candidates(posterior), b)
        for b in (budget, budget + 0.1)
    )
    known = expected_improvement_within_own_budget(_candidates(_known(posterior)), budget)

    assert (tight >= 0).all()
    assert (tight[:, 0] == 0).all()
    assert (loose >= tight - 1e-12).all()
    assert (known == 0).all()


def test_a_row_too_slow_to_keep_the_budget_alone_is_worth_nothing() -> None:
    posterior = _posterior(5)
    slow = dataclasses.replace(posterior, log_s=posterior.log_s + np.array([0.0, 5.0, 0.0, 0.0]))
    candidates = dataclasses.replace(
        _candidates(posterior), posterior=slow, auto_j=np.full(_K, 1e3)
    )
    gain = expected_improvement_within_own_budget(candidates, 0.01)

    assert gain[:, 1] == pytest.approx(0.0, abs=1e-9)


def test_expected_improvement_is_the_mean_of_what_a_row_may_save() -> None:
    posterior = _known(_posterior(3))
    discrepancy = np.zeros((2, _K, _C))
    discrepancy[1, :, 1] = 0.02**2  # of power, at one setting
    posterior = dataclasses.replace(
        posterior, log_s=np.zeros((_K, _C)), log_w=np.full((_K, _C), 4.0), discrepancy=discrepancy
    )
    candidates = dataclasses.replace(
        _candidates(posterior), auto_s=np.ones(_K), auto_j=np.full(_K, math.exp(4.0))
    )
    drawn_j = math.exp(4.0) * (1.0 + 0.02 * np.random.default_rng(0).normal(size=400_000))
    expected_j = np.maximum(math.exp(4.0) - drawn_j, 0.0).mean()

    gain = expected_improvement(candidates, 0.0)

    assert gain[:, 1] == pytest.approx(expected_j, rel=0.01)
    assert (np.delete(gain, 1, axis=1) == 0).all()


def test_a_promise_rests_on_what_is_planned_only() -> None:
    promise = _value(_posterior(0), planned=2).promise

    assert (promise[:, 2] > 0).all()
    assert (np.delete(promise, 2, axis=1) == 0).all()
    assert (_value(_posterior(0), planned=-1).promise == 0).all()


def test_of_two_settings_the_one_that_may_turn_out_better_is_worth_more() -> None:
    posterior = _known(_posterior(1))
    log_w = np.tile([5.0, 4.0, 4.02, 4.9], (_K, 1))
    discrepancy = np.full((2, _K, _C), 0.0004)
    close = dataclasses.replace(
        posterior, log_s=np.zeros((_K, _C)), log_w=log_w, discrepancy=discrepancy
    )
    choice = _value(close, planned=-1).choice

    assert (choice[:, 2] > 100 * choice[:, 3]).all()


_COSTS = st.lists(st.tuples(st.floats(0.1, 10.0), st.floats(1.0, 100.0)), min_size=_C, max_size=_C)


@given(st.lists(_COSTS, min_size=_K, max_size=_K), st.floats(0.0, 0.5))
def test_a_multiplier_is_that_at_which_the_budget_is_kept(
    table: list[list[tuple[float, float]]], slack: float
) -> None:
    time_s, energy_j = (np.array(table)[:, :, i] for i in range(2))
    baseline_s = float(time_s.min(axis=1).sum()) * 1.01
    tight, loose = multipliers(time_s, energy_j, baseline_s, [slack, slack + 0.2]).tolist()

    assert tight >= loose - 1e-9
    assert loose >= 0
