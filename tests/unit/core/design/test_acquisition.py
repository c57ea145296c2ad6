"""What one more sample is worth."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.arrays import Floats
from underclock.core.design.sample_value import (
    Candidates,
    ValueOfInformation,
    expected_gain,
    value_of_information,
)
from underclock.core.model.posterior import Posterior
from underclock.core.model.rows import PER_KERNEL
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


def _candidates(posterior: Posterior, looks: Floats | None = None) -> Candidates:
    auto_s = np.exp(posterior.log_s[:, -1])
    return Candidates(
        posterior=posterior,
        counts=np.ones(_K),
        auto_s=auto_s,
        auto_j=1.02 * auto_s * np.exp(posterior.log_w[:, -1]),
        measurable=_CAN,
        looks=np.zeros((_K, _C)) if looks is None else looks,
    )


def _value(
    posterior: Posterior, *, planned: int = 0, multiplier: float = 50.0
) -> ValueOfInformation:
    return value_of_information(_candidates(posterior), multiplier, np.full(_K, planned))


@given(st.integers(0, 1000), st.integers(-1, _C - 1), st.floats(0.0, 1000.0))
def test_worth_is_never_negative_and_only_where_one_can_measure(
    seed: int, planned: int, multiplier: float
) -> None:
    worth = _value(_posterior(seed), planned=planned, multiplier=multiplier)

    for value in (worth.choice, worth.promise, worth.total):
        assert value.shape == (_K, _C)
        assert np.isfinite(value).all()
        assert (value >= 0).all()
        assert (value[:, 0] == 0).all()


@given(st.integers(0, 1000))
def test_what_is_known_is_worth_nothing(seed: int) -> None:
    known = _known(_posterior(seed))

    assert _value(known, planned=2).total == pytest.approx(0.0, abs=1e-12)


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


def test_what_is_surely_ahead_gains_all_that_it_is_ahead_by() -> None:
    behind, spread = np.array([-1.0, -1.0, 0.0, 1.0]), np.array([0.0, 1e-6, 0.1, 1e-6])

    assert expected_gain(behind, spread) == pytest.approx(
        [0.0, 1.0, 0.1 / math.sqrt(2.0 * math.pi), 0.0]
    )


def test_where_looks_left_something_open_another_one_tells_little() -> None:
    posterior = _posterior(3)
    looks = np.zeros((_K, _C))
    before = value_of_information(_candidates(posterior), 50.0, np.full(_K, -1)).total
    k, c = np.unravel_index(int(before.argmax()), before.shape)
    looks[k, c] = 100.0
    after = value_of_information(_candidates(posterior, looks), 50.0, np.full(_K, -1)).total

    assert after[k, c] < 0.2 * before[k, c]
    untouched = looks == 0.0
    assert after[untouched] == pytest.approx(before[untouched])
