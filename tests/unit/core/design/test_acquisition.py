"""What one more sample is worth, and where a campaign begins."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.arrays import Floats, Ints
from underclock.core.design import (
    expected_gain,
    improvement,
    improvement_of_table,
    price_within,
    spread_out,
)
from underclock.core.model.costs import Costs
from underclock.core.step.cost_table import CostTable
from underclock.records import AUTO, Clocks, Kernel

_K, _S, _SHARED = 3, 5, 2


def _costs(time_s: Floats, energy_j: Floats, moves: Floats, shared: int = 0) -> Costs:
    """Return costs whose errors are columns of log time and log energy, (2, K, S, E)."""
    kernels, settings = time_s.shape
    table = CostTable(
        kernels=tuple(Kernel(name=f"k{k}") for k in range(kernels)),
        settings=(*(Clocks(core_mhz=500 + 100 * s) for s in range(settings - 1)), AUTO),
        time_s=time_s,
        energy_j=energy_j,
        baseline=settings - 1,
    )
    return Costs(table=table, moves=moves, shared=shared)


def _own(spread: Floats) -> Floats:
    """Return columns of entries that are each off by themselves, time and energy alike."""
    columns = np.eye(spread.size).reshape(*spread.shape, -1)
    return np.tile(spread[..., None] * columns, (2, 1, 1, 1))


def _some(seed: int, size: float = 0.05) -> Costs:
    random = np.random.default_rng(seed)
    time_s = random.uniform(0.1, 1.0, (_K, _S))
    moves = size * random.normal(0.0, 0.5, (2, _K, _S, 6))
    return _costs(time_s, random.uniform(50.0, 400.0, (_K, _S)) * time_s, moves, _SHARED)


_LOOKED, _NOISE = np.zeros((_K, _S)), np.full((2, _K), 0.01)


@pytest.mark.parametrize("points", [1, 3, 5, 8])
def test_the_first_settings_are_distinct_and_over_all_memory_clocks(points: int) -> None:
    core, mem = (
        grid.ravel()
        for grid in np.meshgrid(np.linspace(300.0, 2100.0, 13), [405.0, 5001.0, 9501.0])
    )
    chosen = spread_out(core, mem, points)

    assert len(set(chosen.tolist())) == len(chosen) == points
    assert (core[chosen[0]], mem[chosen[0]]) == (2100.0, 9501.0)
    assert (core[chosen] >= 0.4 * 2100.0).all()
    assert points == 1 or 405.0 in mem[chosen]
    assert spread_out(core, mem, points + 1)[:points].tolist() == chosen.tolist()
    assert len(spread_out(core, mem, 99)) == (core >= 0.4 * 2100.0).sum()


@given(st.floats(-3.0, 3.0), st.floats(0.01, 2.0))
def test_an_expected_gain_is_that_of_draws(behind: float, spread: float) -> None:
    quantiles = np.random.default_rng(0).normal(behind, spread, 20_000)
    gain = expected_gain(np.array([behind]), np.array([spread]))[0]

    assert gain == pytest.approx(np.maximum(-quantiles, 0.0).mean(), abs=0.04 * spread)
    sure = expected_gain(np.array([behind]), np.zeros(1))[0]
    assert sure == 0.0  # nothing is learned of it


_PAIRS = st.lists(st.tuples(st.floats(0.1, 10.0), st.floats(1.0, 100.0)), min_size=4, max_size=4)


@given(st.lists(_PAIRS, min_size=3, max_size=3), st.floats(0.0, 0.5))
def test_a_limit_of_time_is_kept_and_a_looser_one_costs_less(
    pairs: list[list[tuple[float, float]]], slack: float
) -> None:
    time_s, energy_j = np.moveaxis(np.array(pairs), -1, 0)
    limit_s = float(time_s.min(axis=1).sum()) * (1.01 + slack)
    tight, loose = (price_within(time_s, energy_j, of * limit_s) for of in (1.0, 1.2))
    at = np.arange(3), np.argmin(energy_j + tight * time_s, axis=1)

    assert tight >= loose >= 0.0
    if tight < 99.0 * float((energy_j / time_s).max()):  # else nobody pays so much
        assert time_s[at].sum() <= limit_s


@given(st.integers(0, 1000), st.integers(0, _S - 1), st.floats(0.0, 1000.0))
def test_worth_is_never_negative_and_only_where_costs_are_known(
    seed: int, planned: int, price_w: float
) -> None:
    costs = _some(seed)
    gone = np.random.default_rng(seed).random((_K, _S)) < 0.2
    gone[:, -1] = False
    table = dataclasses.replace(
        costs.table,
        time_s=np.where(gone, np.inf, costs.table.time_s),
        energy_j=np.where(gone, np.inf, costs.table.energy_j),
    )
    plan = np.where(gone[:, planned], _S - 1, planned)
    worth = improvement(dataclasses.replace(costs, table=table), _LOOKED, _NOISE, price_w, plan)

    assert worth.shape == (_K, _S)
    assert np.isfinite(worth).all()
    assert (worth >= 0.0).all()
    assert (worth[gone] == 0.0).all()


def _two_close(planned: int) -> tuple[Costs, Ints]:
    """Return kernels whose third setting is just behind the second, and the fourth far behind."""
    energy_j = np.tile([150.0, 55.0, 55.5, 130.0, 150.0], (_K, 1))
    return _costs(np.ones((_K, _S)), energy_j, _own(np.full((_K, _S), 0.02))), np.full(_K, planned)


def test_of_two_settings_the_one_that_may_turn_out_better_is_worth_more() -> None:
    costs, plan = _two_close(_S - 1)
    worth = improvement(costs, _LOOKED, _NOISE, 0.0, plan)

    assert (worth[:, 2] > 100.0 * worth[:, 3]).all()
    # The best is looked at where it is less sure than its rival.
    assert (worth[:, 1] == 0.0).all()
    surer = np.where(np.arange(_S) == 1, 0.02, 0.01) * np.ones((_K, 1))
    unsure = dataclasses.replace(costs, moves=_own(surer))
    worth = improvement(unsure, _LOOKED, _NOISE, 0.0, plan)
    assert (worth[:, 1] == worth[:, 2]).all()


def _worth_of_rows(
    time_s: Floats, energy_j: Floats, spread: Floats, budget: float, auto: float = 1.0
) -> Floats:
    """Return what rows are worth where those without a spread were looked at; auto costs 1, 1."""
    kernels, one = len(time_s), np.full((len(time_s), 1), auto)
    time_s, energy_j = np.hstack([time_s, one]), np.hstack([energy_j, one])
    spread = np.hstack([spread, 0.0 * one])
    costs, seen = _costs(time_s, energy_j, _own(spread)), spread == 0.0
    known = dataclasses.replace(
        costs.table,
        time_s=np.where(seen, time_s, np.inf),
        energy_j=np.where(seen, energy_j, np.inf),
    )
    measurable = np.arange(time_s.shape[1]) < time_s.shape[1] - 1
    can = np.broadcast_to(measurable, (kernels, len(measurable)))
    return improvement_of_table(costs, known, seen, can, budget)[:, :-1]


def _random_rows(seed: int) -> tuple[Floats, Floats, Floats]:
    random = np.random.default_rng(seed)
    time_s = random.uniform(0.9, 1.3, (4, 5))
    spread = np.where(random.random((4, 5)) < 0.3, 0.0, random.uniform(0.01, 0.1, (4, 5)))
    return time_s, time_s * random.uniform(0.6, 1.1, (4, 5)), spread


@given(st.integers(0, 500), st.floats(-0.05, 0.2))
def test_a_row_is_worth_something_only_where_none_was_looked_at(seed: int, budget: float) -> None:
    time_s, energy_j, spread = _random_rows(seed)
    worth = _worth_of_rows(time_s, energy_j, spread, budget)

    assert np.isfinite(worth).all()
    assert (worth >= 0.0).all()
    assert (worth[spread == 0.0] == 0.0).all()
    assert budget < 0.0 or (worth <= energy_j.sum() + 4.0).all()


def _beside(time_s: float, energy_j: float, budget: float, *, borrower: bool = True) -> float:
    """Return what a row is worth beside a kernel known to save 0.2 J if it is lent 0.02 s."""
    slow = [1.02, 0.8] if borrower else [1.5, 2.2]
    return float(
        _worth_of_rows(
            np.array([[slow[0]], [time_s]]),
            np.array([[slow[1]], [energy_j]]),
            np.array([[0.0], [1e-3]]),
            budget,
        )[1, 0]
    )


def test_a_loan_of_time_is_worth_what_others_make_of_it() -> None:
    assert _beside(0.98, 1.01, 0.0) == pytest.approx(0.2 - 0.01, abs=0.02)
    assert _beside(0.98, 1.01, 0.0, borrower=False) < 1e-3
    assert _beside(0.98, 1.01, 0.1) < 1e-3  # time enough
