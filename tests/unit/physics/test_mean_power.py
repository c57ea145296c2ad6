"""The mean that a power loop sees: what it is, round the ring, and what it is not given."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.arrays import Floats
from underclock.physics.cap import WINDOW_S, window_means_w

seeds = st.integers(0, 2**32 - 1)


def by_simulation(time_s: Floats, energy_j: Floats, window_s: float, rounds: int = 400) -> Floats:
    """Follow the window through so many rounds that the beginning is forgotten."""
    mean_w, means_w = 0.0, np.zeros(len(time_s))
    for _ in range(rounds):
        for launch, (each_s, each_j) in enumerate(zip(time_s, energy_j, strict=True)):
            power_w = each_j / each_s
            mean_w = power_w + (mean_w - power_w) * math.exp(-each_s / window_s)
            means_w[launch] = mean_w
    return means_w


@settings(max_examples=20)
@given(seeds)
def test_the_mean_is_that_of_a_window_that_has_slid_for_ever(seed: int) -> None:
    random = np.random.default_rng(seed)
    time_s, power_w = random.uniform(1e-3, 0.3, 7), random.uniform(50.0, 700.0, 7)
    window_s = float(random.uniform(0.05, 0.2))
    means_w = window_means_w(time_s, power_w * time_s, window_s)

    assert means_w == pytest.approx(by_simulation(time_s, power_w * time_s, window_s))
    # A launch that takes no time is over before its power counts.
    none_s, none_j = np.append(time_s, 0.0), np.append(power_w * time_s, 0.0)
    assert window_means_w(none_s, none_j, window_s)[:-1] == pytest.approx(means_w)


@settings(max_examples=20)
@given(seeds)
def test_the_mean_keeps_what_every_mean_keeps(seed: int) -> None:
    random = np.random.default_rng(seed)
    time_s, power_w = random.uniform(1e-3, 0.3, (5, 3)), random.uniform(50.0, 700.0, (5, 3))
    means_w = window_means_w(time_s, power_w * time_s)

    # Sequences side by side are those one by one; it lies between least and greatest, and scales.
    for column in range(3):
        alone_w = window_means_w(time_s[:, column], (power_w * time_s)[:, column], WINDOW_S)
        assert means_w[:, column] == pytest.approx(alone_w)
    assert (means_w >= power_w.min(axis=0) - 1e-9).all()
    assert (means_w <= power_w.max(axis=0) + 1e-9).all()
    assert window_means_w(time_s, 2.0 * power_w * time_s) == pytest.approx(2.0 * means_w)
    # Splitting a launch changes nothing at the ends that were there before.
    halves_s = np.repeat(time_s / 2.0, 2, axis=0)
    halves_w = window_means_w(halves_s, halves_s * np.repeat(power_w, 2, axis=0))
    assert halves_w[1::2] == pytest.approx(means_w)


def test_a_round_that_takes_no_time_has_no_mean() -> None:
    with pytest.raises(ValueError, match="takes no time"):
        window_means_w(np.zeros(2), np.ones(2))
