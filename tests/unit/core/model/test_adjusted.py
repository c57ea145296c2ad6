"""What power limits, measured entries and the step make of costs and of their errors."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_posteriors import CORES, MEMS, made_posterior
from underclock.arrays import Floats, Ints
from underclock.core.model.adjusted import (
    as_at_boost,
    between_rows,
    capped,
    held,
)
from underclock.core.model.costs import Costs, PredictedChange
from underclock.core.model.posterior import Posterior
from underclock.core.step.cost_table import CostTable
from underclock.records import AUTO, Clocks, Kernel

_CLOCKS = np.tile(CORES, len(MEMS)), np.repeat(MEMS, len(CORES))
_FASTEST = _CLOCKS[1] == MEMS[-1]
_BOOST = len(_CLOCKS[0]) - 1
_K = 4


def _limit_w(posterior: Posterior) -> float:
    """Return a limit that some kernels exceed at the fastest clocks."""
    return float(np.exp(np.median(posterior.log_w[:, _BOOST])))


@settings(max_examples=20)
@given(st.integers(0, 200))
def test_draws_are_held_by_a_limit_as_what_is_expected_is(seed: int) -> None:
    posterior = made_posterior(seed)
    limit_w = _limit_w(posterior)
    logs, expected = held(posterior.log, *_CLOCKS, limit_w), capped(posterior, *_CLOCKS, limit_w)
    hot = logs[1] == math.log(limit_w)

    # What draws more at the slowest clock already is left as it is by both.
    assert (logs == expected.log).all()
    assert (held(posterior.log, *_CLOCKS, math.inf) == posterior.log).all()
    assert capped(posterior, *_CLOCKS, math.inf) is posterior
    both = held(np.stack([posterior.log, posterior.log]), *_CLOCKS, limit_w)
    assert (both[1] == logs).all()
    assert hot.any()
    assert (logs[0] >= posterior.log_s).all()
    assert not expected.moves[1, hot, : posterior.shared].any()
    # The loop settles a little apart for each kernel, which is all that is unsure of power.
    assert np.sqrt(expected.variance(0.0, 1.0)[hot]) == pytest.approx(0.003, rel=0.5)
    # A small error of what all share moves the rest as it moves what is held.
    step = 1e-6
    for column in range(posterior.shared):
        moved = held(posterior.log + step * posterior.moves[..., column], *_CLOCKS, limit_w)
        found = (moved - logs) / step
        assert found == pytest.approx(expected.moves[..., column], abs=1e-5)


@settings(max_examples=20)
@given(st.integers(0, 200), st.sampled_from([0.0, 0.003]))
def test_times_without_a_row_lie_between_those_of_rows_at_neighbouring_clocks(
    seed: int, slack: float
) -> None:
    posterior = made_posterior(seed, size=0.3)
    rows = np.random.default_rng(seed).random(posterior.log_s.shape) < 0.5
    rows[:, [0, 2, 5]] = True
    found = between_rows(posterior, rows, *_CLOCKS, slack)
    by_all = posterior.moves[..., : posterior.shared]

    assert (found.log[:, rows] == posterior.log[:, rows]).all()
    assert (found.moves[:, rows] == posterior.moves[:, rows]).all()
    assert (found.variance(1.0, 0.0) <= 1.5 * posterior.variance(1.0, 0.0).max()).all()
    for k, c in np.argwhere(~rows[:, :6]).tolist():
        at = np.flatnonzero(rows[k, :6])
        sides = [at[at < c].max(), at[at > c].min()]
        low, high = sorted(posterior.log_s[k, sides])
        # Draws of both rows scatter, and so does what lies between them.
        assert low - slack - 0.3 <= found.log_s[k, c] <= high + slack + 0.3
        # What a time moves, power is moved by half the other way.
        moved = found.log[:, k, c] - posterior.log[:, k, c]
        assert moved[1] == pytest.approx(-0.5 * moved[0])
        between = np.sort(by_all[0, k, [*sides, c]], axis=0)
        assert (found.moves[0, k, c, : posterior.shared] >= between[0] - 1e-12).all()
        assert (found.moves[0, k, c, : posterior.shared] <= between[2] + 1e-12).all()
    free = between_rows(posterior, rows, *_CLOCKS, 100.0)
    assert free.log == pytest.approx(posterior.log)
    assert free.moves == pytest.approx(posterior.moves)


def test_sure_rows_say_what_lies_between_them() -> None:
    posterior = made_posterior(0, size=1e-6)
    log = posterior.log.copy()
    log[0, :, 1] = log[0, :, 0] + 0.5  # slower at a higher clock
    rows = np.arange(len(_CLOCKS[0])) != 1
    wrong = dataclasses.replace(posterior, log=log)
    found = between_rows(wrong, np.tile(rows, (_K, 1)), *_CLOCKS, 0.003)

    assert found.log_s[:, 1] == pytest.approx(log[0, :, 0] + 0.003, abs=1e-4)
    assert found.log_s[:, rows] == pytest.approx(log[0][:, rows])


def test_what_a_peak_holds_takes_at_boost_what_it_was_seen_to_take() -> None:
    posterior = made_posterior(3)
    peak_w = _limit_w(posterior)
    held_there = capped(posterior, *_CLOCKS, peak_w)
    hot = held_there.log_w[:, _BOOST] == math.log(peak_w)
    assert hot.any()
    assert not hot.all()
    seen = held_there.log_s[:, _BOOST] - 0.05
    found = as_at_boost(held_there, seen, _CLOCKS[0], _FASTEST, peak_w)

    assert found.log_s[hot, _BOOST] == pytest.approx(seen[hot])
    variance = found.variance(1.0, 0.0)[hot, _BOOST]
    assert np.sqrt(variance) == pytest.approx(posterior.noise[0, hot], rel=0.5)
    below = held_there.log_w < math.log(peak_w)
    assert (found.log_s[below | ~_FASTEST] == held_there.log_s[below | ~_FASTEST]).all()
    # Where the peak begins to hold a kernel it is as it was; from there it follows the clock.
    k = int(np.flatnonzero(hot)[0])
    ladder = np.flatnonzero(_FASTEST & ~below[k])
    assert (np.diff(found.log_s[k, ladder]) <= 0.0).all()
    unseen = as_at_boost(held_there, np.full(_K, math.nan), _CLOCKS[0], _FASTEST, peak_w)
    assert (unseen.log_s == held_there.log_s).all()


_K, _S, _SHARED, _OWN = 4, 6, 3, 20
_COUNTS = np.array([1, 2, 3, 1])
_EVERY = np.arange(_K)
_PICKED = st.lists(st.integers(0, _S - 1), min_size=_K, max_size=_K).map(np.array)


def _costs(
    seed: int, *, auto_spread: tuple[float, float] | None = None, fixed: float = 0.0
) -> Costs:
    """Return costs with errors of 2 %, and what is drawn beside them as a share of auto's."""
    random, clock = np.random.default_rng(seed), np.append(np.linspace(0.5, 1.0, _S - 1), 1.0)
    time_s = random.uniform(0.1, 1.0, (_K, 1)) * clock ** -random.uniform(0.0, 1.0, (_K, 1))
    energy_j = 150.0 * time_s * clock ** random.uniform(0.5, 2.5, (_K, 1))
    beside_j = fixed * energy_j[:, -1]
    moves = 0.02 * random.normal(0.0, 1.0, (2, _K, _S, _SHARED + _OWN))
    moves *= np.where(np.arange(_SHARED + _OWN) < _SHARED, _SHARED, _OWN) ** -0.5
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


def test_what_a_setting_has_of_its_own_averages_out_over_settings_and_not_over_kernels() -> None:
    own = np.pad(np.full((2, _S - 1), 0.01), ((0, 0), (0, 1)))
    costs = dataclasses.replace(_costs(2), moves=np.zeros((2, _K, _S, _SHARED)), of_setting=own)
    each = costs.table.energy_j[:, :_K] / costs.table.auto_energy_j
    for picked, off in ((0 * _EVERY, each[:, 0].sum()), (_EVERY, np.hypot.reduce(np.diag(each)))):
        assert costs.predicted_change(picked).energy_spread == pytest.approx(0.01 * off)


def _drawn(costs: Costs) -> Floats:
    """Draw times and energies of all entries: shared columns alike, those of kernels apart."""
    random = np.random.default_rng(9)
    shared = random.standard_normal((6000, 1, _SHARED))
    own = random.standard_normal((6000, _K, _OWN))
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
