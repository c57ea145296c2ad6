"""Repeats of rows: scatters are pooled, and odd runs hardly count."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.arrays import Floats
from underclock.core.statistics.repeats import RepeatedRuns, find_change, moves, weighed

_ROWS = 12


def _runs(log: Floats) -> RepeatedRuns:
    """Return as many runs of each of a kernel's rows as there are columns."""
    rows, many = log.shape
    return RepeatedRuns(
        log=log.ravel(),
        row=np.repeat(np.arange(rows), many),
        kernel=np.zeros(rows, dtype=np.int64),
        log_mhz=np.log(np.linspace(500, 2000, rows)),
    )


def _normal(seed: int, scatter: float) -> Floats:
    return scatter * np.random.default_rng(seed).standard_normal((_ROWS, 3))


@given(st.integers(0, 1000), st.sampled_from([1e-3, 0.01, 0.1]))
def test_ordinary_runs_count_fully_and_tell_their_scatter(seed: int, scatter: float) -> None:
    told = weighed(_runs(_normal(seed, scatter)))

    assert told.odd.sum() <= 1
    assert 0.4 * scatter < np.median(told.scatter) < 2.5 * scatter


@given(st.integers(0, 1000), st.floats(0.2, 5.0), st.booleans())
def test_a_wild_run_moves_its_mean_by_little(seed: int, off: float, below: bool) -> None:  # noqa: FBT001
    log = _normal(seed, 0.005)
    wild = log.copy()
    wild[3, 1] += -off if below else off

    told = weighed(_runs(wild))

    assert np.flatnonzero(told.odd).tolist() == [3 * 3 + 1]
    assert abs(told.mean[3] - log[3, [0, 2]].mean()) < 0.02


def test_a_run_without_repeats_is_never_odd() -> None:
    log = np.random.default_rng(0).normal(0.0, 3.0, (_ROWS, 1))

    told = weighed(_runs(log))

    assert (told.weight == 1.0).all()
    assert not told.odd.any()
    np.testing.assert_allclose(told.mean, log[:, 0])
    np.testing.assert_allclose(told.scatter, 0.01, rtol=0.1)


def _readings(*levels: tuple[int, float], noise: float = 0.002, seed: int = 0) -> Floats:
    """Return so many readings at each level in turn."""
    random = np.random.default_rng(seed)
    true = np.concatenate([np.full(times, level) for times, level in levels])
    return true * (1.0 + noise * random.standard_normal(len(true)))


@given(st.integers(50, 400), st.floats(0.3, 3.0), st.integers(0, 99))
def test_a_step_is_found_to_the_reading(at: int, level: float, seed: int) -> None:
    if abs(level - 1.0) < 0.03:
        level += 0.1
    assert find_change(_readings((at, 1.0), (300, level), seed=seed), 40, 75) == (at, at)


def test_a_gradual_change_has_a_beginning_and_an_end() -> None:
    ramp = 1.0 + np.arange(1, 101) / 101
    values = np.concatenate((np.full(100, 1.0), ramp, np.full(200, 2.0)))
    found = find_change(values, 50, 75)

    assert found is not None
    assert found[0] == pytest.approx(110, abs=1)  # a tenth of the gap is not the old level
    assert found[1] == pytest.approx(190, abs=1)


def test_single_disturbed_readings_move_nothing_and_a_stall_lies_between() -> None:
    values = _readings((200, 1.0), (200, 1.3))
    values[[20, 60, 150, 210, 333]] *= 8.0
    values[[30, 250]] = 1.3, 1.0
    assert find_change(values, 100, 80) == (200, 200)

    values[200] = 500.0
    assert find_change(values, 100, 80) == (200, 201)


@pytest.mark.parametrize("level", [1.0, 1.002, 0.999])
def test_levels_that_are_alike_have_no_change(level: float) -> None:
    assert find_change(_readings((200, 1.0), (200, level)), 100, 80) is None


def test_every_move_of_many_is_found_with_its_direction() -> None:
    levels = [1.0, 1.01, 1.02, 1.01, 0.95, 1.0]
    values = _readings(*((200, level) for level in levels), noise=0.001)
    found = list(moves(values, 16))

    assert [up for _, _, up in found] == [True, True, False, False, True]
    for place, (left, arrived, _) in enumerate(found, 1):
        assert (left, arrived) == pytest.approx((200 * place, 200 * place), abs=1)


@pytest.mark.parametrize("count", [0, 5, 32, 5000])
def test_no_move_is_seen_in_noise_or_in_too_few_readings(count: int) -> None:
    assert list(moves(_readings((count, 1.0), noise=0.01), 16)) == []
