"""What power limits, measured entries and the step make of costs and of their errors."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_posteriors import CORES, MEMS, made_posterior
from underclock.core.model.adjusted import (
    as_at_boost,
    capped,
    held,
    with_guesses,
    with_means,
)
from underclock.core.model.posterior import Posterior

_CLOCKS = np.tile(CORES, len(MEMS)), np.repeat(MEMS, len(CORES))
_FASTEST = _CLOCKS[1] == MEMS[-1]
_BOOST = len(_CLOCKS[0]) - 1
_K = 4


def _limit_w(posterior: Posterior) -> float:
    """Return a limit that some kernels exceed at the fastest clocks."""
    return float(np.exp(np.median(posterior.log_w[:, _BOOST])))


def test_kernels_without_rows_cost_what_was_measured_as_sure_as_its_repeats() -> None:
    posterior = made_posterior(0)
    log_s = np.full(posterior.log_s.shape, math.nan)
    log_s[3] = -1.0
    log_s[3, 6] = math.nan
    known = with_means(posterior, log_s, log_s + 5.0, np.full(log_s.shape, 4.0))

    assert (known.log_s[3, 5], known.log_w[3, 5]) == (-1.0, 4.0)
    spread = np.sqrt(np.delete(known.variance(1.0, 0.0)[3], 6).mean())
    assert spread == pytest.approx(posterior.noise[0, 3] / 2.0, rel=0.1)
    assert not known.moves[:, 3, 5, : known.shared].any()
    unknown = np.isnan(log_s)
    assert (known.log[:, unknown] == posterior.log[:, unknown]).all()
    assert (known.moves[:, unknown] == posterior.moves[:, unknown]).all()
    nothing = np.full(log_s.shape, math.nan)
    assert with_means(posterior, nothing, nothing, nothing) is posterior


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


@pytest.mark.parametrize("peak_w", [math.inf, 100.0])
def test_without_a_peak_or_a_time_at_boost_nothing_is_brought_there(peak_w: float) -> None:
    posterior = made_posterior(3)
    seen = None if math.isfinite(peak_w) else posterior.log_s[:, _BOOST]

    assert as_at_boost(posterior, seen, _CLOCKS[0], _FASTEST, peak_w) is posterior


def test_power_that_was_guessed_is_as_unsure_as_the_guess() -> None:
    posterior = made_posterior(1)
    found = with_guesses(posterior, np.array([2]), np.array([0.3]))
    more = found.variance(0.0, 1.0) - posterior.variance(0.0, 1.0)

    assert np.sqrt(found.variance(0.0, 1.0)[2]) == pytest.approx(0.3, rel=0.3)
    assert (more[[0, 1, 3]] == 0.0).all()
    # It is one error of the kernel: its entries move together, and not with other kernels'.
    added = found.moves[1, 2] - posterior.moves[1, 2]
    assert added == pytest.approx(np.broadcast_to(added[0], added.shape))
    assert not added[:, : posterior.shared].any()
    none = np.zeros(0, dtype=np.int64)
    assert with_guesses(posterior, none, np.zeros(0)) is posterior
