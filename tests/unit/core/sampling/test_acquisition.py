"""What one more sample is worth, and where to begin."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.arrays import Floats
from underclock.core.model.posterior import Posterior
from underclock.core.model.rows import PER_KERNEL
from underclock.core.model.start import unknown_gpu
from underclock.core.sampling.acquisition import (
    ValueOfInformation,
    expected_improvement,
    expected_improvement_within_own_budget,
    initial_design,
    multipliers,
    value_of_information,
)
from underclock.records import Clocks

_K, _C, _S = 3, 4, 2


def _belief(seed: int, size: float = 0.05) -> Posterior:
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


def _auto(posterior: Posterior) -> tuple[Floats, Floats]:
    auto_s = np.exp(posterior.log_s[:, -1])
    return auto_s, 1.02 * auto_s * np.exp(posterior.log_w[:, -1])


def _worth(
    posterior: Posterior, *, planned: int = 0, multiplier: float = 50.0
) -> ValueOfInformation:
    return value_of_information(
        posterior, np.ones(_K), _auto(posterior), multiplier, np.full(_K, planned), _CAN
    )


def _hope(posterior: Posterior, *, multiplier: float = 50.0) -> Floats:
    return expected_improvement(posterior, np.ones(_K), _auto(posterior), multiplier, _CAN)


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(-1, _C - 1), st.floats(0.0, 1000.0))
def test_worth_is_never_negative_and_only_where_one_can_measure(
    seed: int, planned: int, multiplier: float
) -> None:
    found = _worth(_belief(seed), planned=planned, multiplier=multiplier)

    for value in (
        found.choice,
        found.promise,
        found.total,
        _hope(_belief(seed), multiplier=multiplier),
    ):
        assert value.shape == (_K, _C)
        assert np.isfinite(value).all()
        assert (value >= 0).all()
        assert (value[:, 0] == 0).all()


@given(st.integers(0, 1000))
def test_what_is_known_is_worth_nothing(seed: int) -> None:
    known = _known(_belief(seed))

    assert _worth(known, planned=2).total == pytest.approx(0.0, abs=1e-12)
    assert (_hope(known) == 0).all()


@given(st.integers(0, 1000))
def test_a_better_row_known_leaves_less_to_hope_for(seed: int) -> None:
    posterior = _belief(seed)
    open_ = np.arange(_C) != 2  # what column 2 costs is known
    told = dataclasses.replace(
        posterior,
        by_shared=posterior.by_shared * open_[:, None],
        by_kernel=posterior.by_kernel * open_[:, None],
        discrepancy=posterior.discrepancy * open_,
    )
    better = dataclasses.replace(told, log_w=np.where(open_, told.log_w, told.log_w - 1.0))

    assert (_hope(told)[:, 2] == 0).all()
    assert (_hope(better) <= _hope(told) + 1e-12).all()


@settings(deadline=None)
@given(st.integers(0, 1000), st.floats(0.0, 0.2))
def test_a_looser_budget_leaves_no_less_to_hope_for(seed: int, budget: float) -> None:
    posterior = _belief(seed)
    args = posterior, np.ones(_K), _auto(posterior)
    tight, loose = (
        expected_improvement_within_own_budget(*args, b, _CAN) for b in (budget, budget + 0.1)
    )

    assert (tight >= 0).all()
    assert (tight[:, 0] == 0).all()
    assert (loose >= tight - 1e-12).all()
    assert (
        expected_improvement_within_own_budget(
            _known(posterior), np.ones(_K), _auto(posterior), budget, _CAN
        )
        == 0
    ).all()


def test_a_row_too_slow_to_keep_the_budget_alone_is_worth_nothing() -> None:
    posterior = _belief(5)
    slow = dataclasses.replace(posterior, log_s=posterior.log_s + np.array([0.0, 5.0, 0.0, 0.0]))
    auto = np.exp(posterior.log_s[:, -1]), np.full(_K, 1e3)

    found = expected_improvement_within_own_budget(slow, np.ones(_K), auto, 0.01, _CAN)

    assert found[:, 1] == pytest.approx(0.0, abs=1e-9)


def test_hope_is_the_mean_of_what_a_row_may_save() -> None:
    posterior = _known(_belief(3))
    discrepancy = np.zeros((2, _K, _C))
    discrepancy[1, :, 1] = 0.02**2  # of power, at one setting
    posterior = dataclasses.replace(
        posterior, log_s=np.zeros((_K, _C)), log_w=np.full((_K, _C), 4.0), discrepancy=discrepancy
    )
    auto = np.ones(_K), np.full(_K, math.exp(4.0))
    drawn_j = math.exp(4.0) * (1.0 + 0.02 * np.random.default_rng(0).normal(size=400_000))
    expected_j = np.maximum(math.exp(4.0) - drawn_j, 0.0).mean()

    found = expected_improvement(posterior, np.ones(_K), auto, 0.0, _CAN)

    assert found[:, 1] == pytest.approx(expected_j, rel=0.01)
    assert (np.delete(found, 1, axis=1) == 0).all()


def test_a_promise_rests_on_what_is_planned_only() -> None:
    found = _worth(_belief(0), planned=2)

    assert (found.promise[:, 2] > 0).all()
    assert (np.delete(found.promise, 2, axis=1) == 0).all()
    assert (_worth(_belief(0), planned=-1).promise == 0).all()


def test_of_two_settings_the_one_that_may_turn_out_better_is_worth_more() -> None:
    posterior = _known(_belief(1))
    log_w = np.tile([5.0, 4.0, 4.02, 4.9], (_K, 1))
    discrepancy = np.full((2, _K, _C), 0.0004)
    close = dataclasses.replace(
        posterior, log_s=np.zeros((_K, _C)), log_w=log_w, discrepancy=discrepancy
    )
    found = _worth(close, planned=-1).choice

    assert (found[:, 2] > 100 * found[:, 3]).all()


_COSTS = st.lists(st.tuples(st.floats(0.1, 10.0), st.floats(1.0, 100.0)), min_size=_C, max_size=_C)


@settings(deadline=None)
@given(st.lists(_COSTS, min_size=_K, max_size=_K), st.floats(0.0, 0.5))
def test_a_price_is_that_at_which_the_budget_is_kept(
    table: list[list[tuple[float, float]]], slack: float
) -> None:
    time_s, energy_j = (np.array(table)[:, :, i] for i in range(2))
    baseline_s = float(time_s.min(axis=1).sum()) * 1.01
    found = multipliers(time_s, energy_j, baseline_s, [slack, slack + 0.2])

    assert found.shape == (2,)
    assert found[0] >= found[1] - 1e-9
    assert (found >= 0).all()


def _grid() -> tuple[Floats, Floats]:
    core, mem = np.meshgrid(np.linspace(300.0, 2100.0, 13), np.array([405.0, 5001.0, 9501.0]))
    return core.ravel(), mem.ravel()


@pytest.mark.parametrize("points", [1, 3, 5, 8])
def test_anchors_are_distinct_and_plausible(points: int) -> None:
    core, mem = _grid()
    base = unknown_gpu([405.0, 5001.0, 9501.0], fastest_mhz=2100.0, most_w=350.0)
    found = initial_design(base, core, mem, points)

    assert len(set(found.tolist())) == len(found) == points
    assert (core[found] >= 0.4 * 2100.0).all()
    assert (mem[found] >= 0.4 * 9501.0).all()
    if points > 1:
        assert len(set(mem[found].tolist())) > 1
        assert len(set(core[found].tolist())) > 1


def test_there_are_no_more_anchors_than_plausible_settings() -> None:
    base = unknown_gpu([9501.0], fastest_mhz=2100.0, most_w=350.0)
    found = initial_design(base, np.array([300.0, 1800.0, 2100.0]), np.full(3, 9501.0), 5)

    assert sorted(found.tolist()) == [1, 2]
    assert math.isclose(base.boost_mhz, 2100.0)
