"""Repeats of rows: scatters are pooled, and odd runs hardly count."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.arrays import Floats
from underclock.core.statistics.repeats import Runs, counts_for, weighed

_ROWS = 12


def _runs(log: Floats) -> Runs:
    """Return as many runs of each of a kernel's rows as there are columns."""
    rows, many = log.shape
    return Runs(
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


@given(st.floats(1e-3, 1.0))
def test_the_further_off_a_run_is_the_less_it_counts(scatter: float) -> None:
    away = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 20.0, 1e6])
    weight = counts_for((away * scatter) ** 2, np.full(len(away), scatter))

    assert weight[:2] == pytest.approx([1.0, 1.0])
    assert (np.diff(weight[2:]) < 0).all()
    assert weight[2] > 0.8
    # One beyond doubt counts as little as its distance says, so it moves a mean by nearly nothing.
    assert weight[5:] == pytest.approx(away[5:] ** -2.0, rel=0.01)
