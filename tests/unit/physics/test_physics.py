"""The physics every simulated number and every fit rests on, by its properties."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.arrays import Floats
from underclock.gpus.models import gpu_model
from underclock.physics.cap import REAL, SIMULATED, Fading, capped_core_mhz
from underclock.physics.constants import KernelConstants
from underclock.physics.costs import (
    busy_w,
    dram_mhz,
    duration_s,
    idle_w,
    temperature_after,
    voltage_v,
    xbar_mhz,
)

_GPU = gpu_model("rtx3080ti").constants
_BINS = np.array(gpu_model("rtx3080ti").core_mhz, dtype=np.float64)

cycles = st.floats(0.01, 100.0)
kernels = st.builds(
    KernelConstants,
    core_mcycles=cycles,
    dram_mcycles=cycles,
    xbar_mcycles=cycles,
    fixed_s=st.floats(0.0, 1e-3),
    work_j_per_v2=st.floats(0.0, 50.0),
    dram_j=st.floats(0.0, 10.0),
)
core = st.floats(210.0, 2100.0)
mem = st.floats(405.0, 9501.0)
warmth = st.floats(20.0, 90.0)


@given(kernels, core, core, mem)
def test_a_faster_core_never_slows_a_kernel(
    kernel: KernelConstants, one: float, other: float, mem_mhz: float
) -> None:
    slow, fast = sorted((one, other))

    assert duration_s(_GPU, kernel, fast, mem_mhz) <= duration_s(_GPU, kernel, slow, mem_mhz)


@given(kernels, core, mem)
def test_a_kernel_takes_at_least_its_longest_part_and_at_most_their_sum(
    kernel: KernelConstants, core_mhz: float, mem_mhz: float
) -> None:
    parts = (
        kernel.core_mcycles / core_mhz,
        kernel.dram_mcycles / float(dram_mhz(_GPU, mem_mhz)),
        kernel.xbar_mcycles / xbar_mhz(_GPU, core_mhz),
    )
    taken_s = duration_s(_GPU, kernel, core_mhz, mem_mhz) - kernel.fixed_s

    assert max(parts) * (1 - 1e-9) <= taken_s <= sum(parts) * (1 + 1e-9)


@given(core)
def test_voltage_has_a_floor_and_never_falls(core_mhz: float) -> None:
    assert voltage_v(_GPU, core_mhz) >= _GPU.floor_v
    assert voltage_v(_GPU, core_mhz + 15.0) >= voltage_v(_GPU, core_mhz)
    assert voltage_v(_GPU, _GPU.knee_mhz) == _GPU.floor_v


@given(kernels, core, mem, warmth)
def test_a_busy_board_draws_more_than_an_idle_one_and_a_hot_one_more_than_a_cold(
    kernel: KernelConstants, core_mhz: float, mem_mhz: float, temperature_c: float
) -> None:
    busy = busy_w(_GPU, kernel, core_mhz, mem_mhz, temperature_c)

    assert busy >= idle_w(_GPU, core_mhz, mem_mhz, temperature_c)
    assert busy_w(_GPU, kernel, core_mhz, mem_mhz, temperature_c + 1.0) > busy


@given(kernels, mem, warmth, st.floats(50.0, 600.0))
def test_the_capped_clock_keeps_the_limit_and_wastes_none_of_it(
    kernel: KernelConstants, mem_mhz: float, temperature_c: float, limit_w: float
) -> None:
    mhz = capped_core_mhz(_GPU, kernel, _BINS, mem_mhz, temperature_c, limit_w)
    at_w = float(busy_w(_GPU, kernel, mhz, mem_mhz, temperature_c))

    if mhz == _BINS[-1]:
        assert at_w <= limit_w
    elif mhz > _BINS[0]:
        # Between two bins power is nearly, not exactly, linear.
        assert at_w == pytest.approx(limit_w, rel=0.01)


@given(warmth, st.floats(10.0, 400.0), st.floats(0.0, 100.0), st.floats(0.0, 100.0))
def test_two_stretches_of_heat_make_one(
    start_c: float, power_w: float, first_s: float, second_s: float
) -> None:
    between_c = temperature_after(_GPU, start_c, power_w, first_s)

    assert temperature_after(_GPU, between_c, power_w, second_s) == pytest.approx(
        temperature_after(_GPU, start_c, power_w, first_s + second_s)
    )


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
