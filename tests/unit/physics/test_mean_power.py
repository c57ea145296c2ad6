"""The mean that a power loop sees: what it is, round the ring, and what it is not given."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.arrays import Floats
from underclock.physics.cap import REAL, SIMULATED, Fading

seeds = st.integers(0, 2**32 - 1)
fadings = st.builds(Fading, each_s=st.floats(0.02, 0.2), stages=st.sampled_from([1, 2]))
_PIECES = 40  # of a launch, in which a second stage is followed


def by_simulation(fading: Fading, time_s: Floats, energy_j: Floats, rounds: int = 300) -> Floats:
    """Follow the mean through so many rounds that the beginning is forgotten."""
    first_w, second_w, means_w = 0.0, 0.0, np.zeros(len(time_s))
    for _ in range(rounds):
        for launch, (each_s, each_j) in enumerate(zip(time_s, energy_j, strict=True)):
            power_w, left = each_j / each_s, math.exp(-each_s / _PIECES / fading.each_s)
            for _ in range(_PIECES):
                before_w = first_w
                first_w = power_w + (first_w - power_w) * left
                middle_w = 0.5 * (before_w + first_w)
                second_w = middle_w + (second_w - middle_w) * left
            means_w[launch] = first_w if fading.stages == 1 else second_w
    return means_w


@settings(max_examples=10, deadline=None)
@given(seeds, fadings)
def test_the_mean_is_that_of_a_window_that_has_slid_for_ever(seed: int, fading: Fading) -> None:
    random = np.random.default_rng(seed)
    time_s, power_w = random.uniform(1e-3, 0.2, 4), random.uniform(50.0, 700.0, 4)
    rounds = 2 + int(12 * fading.each_s * fading.stages / time_s.sum() + 1)
    means_w = fading.means_w(time_s, power_w * time_s)

    simulated_w = by_simulation(fading, time_s, power_w * time_s, min(rounds, 300))
    assert means_w == pytest.approx(simulated_w, rel=2e-3)
    # A launch that takes no time is over before its power counts.
    none_s, none_j = np.append(time_s, 0.0), np.append(power_w * time_s, 0.0)
    assert fading.means_w(none_s, none_j)[:-1] == pytest.approx(means_w)


@settings(max_examples=20)
@given(seeds, fadings)
def test_the_mean_keeps_what_every_mean_keeps(seed: int, fading: Fading) -> None:
    random = np.random.default_rng(seed)
    time_s, power_w = random.uniform(1e-3, 0.3, (5, 3)), random.uniform(50.0, 700.0, (5, 3))
    means_w = fading.means_w(time_s, power_w * time_s)

    # Sequences side by side are those one by one; it lies between least and greatest, and scales.
    for column in range(3):
        alone_w = fading.means_w(time_s[:, column], (power_w * time_s)[:, column])
        assert means_w[:, column] == pytest.approx(alone_w)
    assert (means_w >= power_w.min(axis=0) - 1e-9).all()
    assert (means_w <= power_w.max(axis=0) + 1e-9).all()
    assert fading.means_w(time_s, 2.0 * power_w * time_s) == pytest.approx(2.0 * means_w)
    # Splitting a launch changes nothing at the ends that were there before.
    halves_s = np.repeat(time_s / 2.0, 2, axis=0)
    halves_w = fading.means_w(halves_s, halves_s * np.repeat(power_w, 2, axis=0))
    assert halves_w[1::2] == pytest.approx(means_w)


@settings(max_examples=20)
@given(seeds, fadings)
def test_weights_are_what_a_joule_of_a_launch_adds_to_windows(seed: int, fading: Fading) -> None:
    random = np.random.default_rng(seed)
    time_s, energy_j = random.uniform(1e-3, 0.3, 6), random.uniform(1.0, 100.0, 6)
    windows = random.uniform(0.0, 1.0, 6) * (random.uniform(size=6) < 0.5)
    counted = fading.weights(time_s, windows) @ energy_j
    means_w = fading.means_w(time_s, energy_j)
    assert counted == pytest.approx(fading.each_s * float(windows @ means_w))


def test_a_round_that_takes_no_time_has_no_mean() -> None:
    for fading in (SIMULATED, REAL):
        with pytest.raises(ValueError, match="takes no time"):
            fading.means_w(np.zeros(2), np.ones(2))
