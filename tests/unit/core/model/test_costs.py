"""What a choice promises: its spread, and that a budget is kept with confidence."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.arrays import Floats, Ints
from underclock.core.model.costs import ONE_SIDED, TWO_SIDED, Costs, PredictedChange
from underclock.core.planning.best_choice import Goal
from underclock.core.planning.strategies import choose_kernels, compare_strategies
from underclock.core.step.cost_table import CostTable
from underclock.records import AUTO, Aggregate, Clocks, Kernel, Objective, Status, Strategy

_K, _S, _SHARED, _OWN = 4, 6, 3, 20
_COUNTS = np.array([1, 2, 3, 1])
_EVERY = np.arange(_K)
_PICKED = st.lists(st.integers(0, _S - 1), min_size=_K, max_size=_K).map(np.array)


def _costs(
    seed: int,
    size: float = 0.02,
    *,
    auto_spread: tuple[float, float] | None = None,
    auto_size: float = 1.0,
    fixed: float = 0.0,
) -> Costs:
    """Return costs with errors of a size; those of auto are so many times as large."""
    random, clock = np.random.default_rng(seed), np.append(np.linspace(0.5, 1.0, _S - 1), 1.0)
    time_s = random.uniform(0.1, 1.0, (_K, 1)) * clock ** -random.uniform(0.0, 1.0, (_K, 1))
    energy_j = 150.0 * time_s * clock ** random.uniform(0.5, 2.5, (_K, 1))
    beside_j = fixed * energy_j[:, -1]
    moves = size * random.normal(0.0, 1.0, (2, _K, _S, _SHARED + _OWN))
    moves *= np.where(np.arange(_SHARED + _OWN) < _SHARED, _SHARED, _OWN) ** -0.5
    moves[:, :, -1] *= auto_size
    if auto_spread is not None:
        moves[:, :, -1, :_SHARED] = 0.0  # what kernels share is in the whole step too
    table = CostTable(
        kernels=tuple(Kernel(name=f"k{k}", count=count) for k, count in enumerate(_COUNTS)),
        settings=(*(Clocks(core_mhz=round(1000 * share)) for share in clock[:-1]), AUTO),
        time_s=time_s,
        energy_j=energy_j + beside_j[:, None],
        baseline=_S - 1,
        beside_j=beside_j,
    )
    return Costs(table=table, moves=moves, shared=_SHARED, auto_spread=auto_spread)


def _drawn(costs: Costs, draws: int = 6000) -> Floats:
    """Draw times and energies of all entries: shared columns alike, those of kernels apart."""
    random = np.random.default_rng(9)
    shared = random.standard_normal((draws, 1, _SHARED))
    own = random.standard_normal((draws, _K, _OWN))
    off = np.einsum("dke,qkse->dqks", np.concatenate([shared.repeat(_K, 1), own], 2), costs.moves)
    table, fixed_j = costs.table, costs.table.fixed_j[:, None]
    expected = np.stack([table.time_s, table.energy_j - fixed_j])
    drawn: Floats = expected * np.exp(off) + np.stack([0.0 * fixed_j, fixed_j])
    return drawn


@pytest.mark.parametrize("auto_spread", [None, (0.01, 0.02)])
def test_staying_at_auto_is_certain(auto_spread: tuple[float, float] | None) -> None:
    seen = _costs(0, auto_spread=auto_spread, fixed=0.1).predicted_change(np.full(_K, _S - 1))

    assert seen == PredictedChange(
        time_change=0.0, energy_change=0.0, time_spread=0.0, energy_spread=0.0
    )


@settings(max_examples=15)
@given(st.integers(0, 1000), _PICKED)
def test_spreads_are_those_of_draws(seed: int, picked: Ints) -> None:
    costs = _costs(seed, fixed=0.1)
    seen, drawn = costs.predicted_change(picked), _drawn(costs)
    changes = drawn[:, :, _EVERY, picked].sum(axis=2) / drawn[..., -1].sum(axis=2)

    assert (seen.time_spread, seen.energy_spread) == pytest.approx(
        changes.std(axis=0).tolist(), rel=0.06, abs=1e-9
    )
    assert changes.mean(axis=0) - 1.0 == pytest.approx(
        [seen.time_change, seen.energy_change], abs=2e-3
    )


@settings(max_examples=15)
@given(st.integers(0, 1000), _PICKED)
def test_errors_of_parts_of_a_step_run_whole_make_up_for_each_other(
    seed: int, picked: Ints
) -> None:
    costs = _costs(seed, auto_spread=(0.01, 0.02), fixed=0.1)
    seen, drawn = costs.predicted_change(picked), _drawn(costs)
    fixed_j = np.stack([np.zeros(_K), costs.table.fixed_j])
    at_auto, auto = picked == _S - 1, drawn[..., -1]
    kept = (np.where(at_auto, auto, fixed_j).sum(axis=2)) / auto.sum(axis=2)
    locked = np.where(at_auto, 0.0, drawn[:, :, _EVERY, picked] - fixed_j).sum(axis=2)
    whole = np.array([costs.table.auto_time_s, costs.table.auto_energy_j])
    off = np.random.default_rng(1).normal(1.0, (0.01, 0.02), locked.shape)
    spread = (locked / (whole * off) + kept).std(axis=0)

    assert (seen.time_spread, seen.energy_spread) == pytest.approx(
        spread.tolist(), rel=0.06, abs=1e-9
    )


@given(st.integers(0, 50), _PICKED, st.sampled_from([None, (0.0, 0.0), (0.01, 0.0)]))
def test_variance_is_shared_out_among_kernels(
    seed: int, picked: Ints, auto_spread: tuple[float, float] | None
) -> None:
    costs = _costs(seed, auto_spread=auto_spread)
    shared = costs.time_variance(picked)
    assert shared is not None
    total = shared.rest + shared.of_entries[_EVERY, picked].sum()

    assert total == pytest.approx(costs.predicted_change(picked).time_spread ** 2)


@given(st.integers(0, 50), _PICKED, st.sampled_from([None, (0.0, 0.0)]))
def test_of_another_choice_no_more_is_said_than_its_variance(
    seed: int, picked: Ints, auto_spread: tuple[float, float] | None
) -> None:
    # A tangent of what kernels share; how much of auto is kept, which hardly moves, plays no part.
    costs = _costs(seed, auto_spread=auto_spread, auto_size=0.0)
    shared = costs.time_variance(picked)
    assert shared is not None
    for other in np.random.default_rng(seed).integers(0, _S, (5, _K)):
        seen = shared.rest + shared.of_entries[_EVERY, other].sum()
        assert seen <= costs.predicted_change(other).time_spread ** 2 + 1e-12


@given(st.integers(0, 50), _PICKED)
def test_what_hangs_on_a_kernel_is_unsure_where_no_other_is(seed: int, picked: Ints) -> None:
    costs = _costs(seed, fixed=0.1)
    hangs = costs.hangs_on(picked)
    for k in range(_K):
        alone = np.where(_EVERY[:, None, None] == k, costs.moves, 0.0)
        change = dataclasses.replace(costs, moves=alone).predicted_change(picked)
        assert hangs[k] == pytest.approx(change.energy_spread**2)


@settings(max_examples=10)
@given(st.integers(0, 100))
def test_a_ratio_of_sums_is_as_sure_as_both_drawn_together(seed: int) -> None:
    costs = _costs(seed)
    chosen, auto = np.random.default_rng(seed).integers(0, 3, (2, _K, _S)).astype(np.float64)
    auto[0] = chosen[0]
    drawn = _drawn(costs) / _COUNTS[:, None]
    spread = np.log((drawn * chosen).sum(axis=(2, 3)) / (drawn * auto).sum(axis=(2, 3))).std(axis=0)

    assert costs.change_spread(chosen, auto) == pytest.approx(tuple(spread), rel=0.06)
    assert costs.change_spread(auto, auto) == (0.0, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_every_arm_keeps_the_budget_with_confidence(seed: int) -> None:
    risk = _costs(seed, 0.005)
    table = risk.table
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
    risk = _costs(1, 0.5)
    arms = compare_strategies(risk.table, Goal(), risk)

    assert all((at == _S - 1).all() for at in arms.settings.values())
    assert arms.arms[-1].energy_change == 0.0


def test_a_budget_below_auto_may_have_no_answer() -> None:
    risk = _costs(1)
    table = risk.table

    assert choose_kernels(table, Goal(max_slowdown=-0.9), risk) is None
    arms = compare_strategies(table, Goal(max_slowdown=-0.9), risk)
    assert [arm.status for arm in arms.arms[1:]] == [Status.INFEASIBLE] * (len(arms.arms) - 1)
    assert all(arm.time_interval is None for arm in arms.arms[1:])


@pytest.mark.parametrize(
    "goal", [Goal(objective=Objective.EDP), Goal(aggregate=Aggregate.LOCAL, max_slowdown=0.1)]
)
def test_other_goals_are_judged_too(goal: Goal) -> None:
    risk = _costs(2)
    arms = compare_strategies(risk.table, goal, risk)

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
