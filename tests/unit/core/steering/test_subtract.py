"""What made-up measurements tell: clocks by counts of cycles, kernels' powers, the step's power."""

import msgspec
import pytest

from made_up_mixes import (
    IDLE,
    STEP_KERNELS,
    made_coload,
    made_mix,
    made_rung,
)
from steered_gpu import GPU, KERNELS, MEM_MHZ, SHAPE, WARM_C, Synthetic
from underclock.core.design import Wanted
from underclock.core.model.sample_rows import rows_of
from underclock.core.steering import steering_notes
from underclock.core.steering.coload import CoLoad
from underclock.core.steering.mixing import METER_S, spin_mhz
from underclock.core.steering.subtract import step_draws, subtract_coload
from underclock.physics.costs import busy_w
from underclock.records import ALONE, Mix, SampleSet


def test_a_count_of_cycles_tells_the_clock() -> None:
    mix = Mix(idle_s=METER_S)

    assert spin_mhz(mix, METER_S + 9e-7, 2000.0) == pytest.approx(2000.0)
    assert spin_mhz(mix, 2 * METER_S + 9e-7, 2000.0) == pytest.approx(1000.0)
    # No clock is twice the highest, however short the idling seems.
    assert spin_mhz(mix, 1e-9, 2000.0) == 4000.0


def test_times_go_with_the_clock_of_their_own_moment_and_powers_with_the_windows() -> None:
    # Timed at 2020 MHz, 1 % faster than in the window.
    sample = made_mix(
        core_spread_mhz=30.0, kernel_s=(1e-3 / 1.01,), idle_s=1e-3 / 1.01, spin_mhz=2020.0
    )
    timed, drawn = subtract_coload([sample], STEP_KERNELS, made_coload())

    assert (timed.core_mhz, timed.time_s, timed.power_w) == (2020.0, 1e-3 / 1.01, None)
    assert (timed.time_windows, timed.power_windows) == (1.0, 0.0)
    assert (drawn.core_mhz, drawn.time_windows) == (2000.0, 0.0)
    assert drawn.time_s == pytest.approx(1e-3)
    assert drawn.power_w == pytest.approx(500.0)
    assert drawn.power_windows > 0.0


def test_the_steps_power_is_what_its_coload_leaves() -> None:
    step = made_mix(kernel="", kernel_s=(1e-3, 2e-3), time_s=5e-3, energy_j=4 * 0.5 + 0.1)
    (draw,) = step_draws([step, made_mix(), IDLE], STEP_KERNELS, made_coload())

    assert draw.core_mhz == 2000.0
    assert draw.power_w == pytest.approx(500.0)
    assert 0.0 < draw.spread_w < 10.0


@pytest.mark.parametrize("energy_j", [0.1, 2.1])
def test_a_step_whose_power_is_unsure_or_coload_unknown_tells_none(energy_j: float) -> None:
    step = made_mix(kernel="", kernel_s=(1e-3, 2e-3), time_s=5e-3, energy_j=energy_j)
    coload = made_coload() if energy_j < 1.0 else CoLoad.of([], SHAPE, 1.0)

    assert step_draws([step], STEP_KERNELS, coload) == ()


def test_kernels_of_a_step_run_at_clocks_of_their_own() -> None:
    step = made_mix(
        kernel="",
        mix=Mix(idle_s=1e-3, after=(1, 2)),
        kernel_s=(1e-3, 2e-3),
        kernel_mhz=(1950.0, 2050.0),
        time_s=4e-3,
    )
    left = subtract_coload([step], STEP_KERNELS, made_coload())

    assert [(one.core_mhz, one.time_s, one.power_w) for one in left] == [
        (1950.0, 1e-3, None),
        (2050.0, 2e-3, None),
    ]


def test_clocks_that_hunt_are_told_and_count_less(steered: SampleSet) -> None:
    wild = msgspec.structs.replace(steered.mixed[-1], core_spread_mhz=80.0)
    of_step = msgspec.structs.replace(steered.mixed[0], core_spread_mhz=60.0)
    samples = msgspec.structs.replace(steered, windows=(of_step, *steered.mixed[1:-1], wild))
    coload = CoLoad.of(samples.mixed, SHAPE, 1.0)
    calm, hunts = (
        subtract_coload([one], samples.kernels, coload)[-1] for one in (steered.mixed[-1], wild)
    )
    (unmetered,) = subtract_coload(
        [msgspec.structs.replace(wild, spin_mhz=None)], samples.kernels, coload
    )

    assert unmetered.time_windows == pytest.approx(0.25)
    assert hunts.power_windows == pytest.approx(0.25 * calm.power_windows)
    assert f"hunted in 2 of {len(samples.mixed)} measurements" in steering_notes(samples)[1]
    assert repr(wild.kernel) in steering_notes(samples)[1]
    assert (
        "of the step by 60 MHz"
        in steering_notes(msgspec.structs.replace(steered, windows=(of_step, *steered.mixed[1:])))[
            1
        ]
    )


def test_the_heater_draws_by_how_long_it_took_whatever_clock_was_read() -> None:
    coload = made_coload(made_rung(1500.0, 1.3e-3, 700.0), made_rung(1800.0, 1.1e-3, 900.0))
    mixed = {"mix": Mix(hot=1, idle_s=1e-3), "time_s": 3.2e-3, "energy_j": 1.8, "hot_s": 1.2e-3}
    read = [made_mix(core_mhz=mhz, spin_mhz=1650.0, **mixed) for mhz in (1650.0, 1720.0)]
    powers_w = [subtract_coload([one], STEP_KERNELS, coload)[-1].power_w for one in read]
    assert powers_w[0] == pytest.approx(powers_w[1], rel=0.02)  # what idling draws follows it


def test_what_is_left_of_a_mix_is_the_kernels() -> None:
    gpu = Synthetic(noise=0.0)
    coload, kernels = gpu.coload(0.001, 0.003, 0.006, 0.01), gpu.samples().kernels
    for mix in (ALONE, Mix(launches=2, idle_s=0.002), Mix(launches=4, hot=1)):
        sample = gpu.run(Wanted("softmax", mix))
        left = subtract_coload([sample], kernels, coload)[-1]
        power_w = float(busy_w(GPU, KERNELS["softmax"], sample.at_mhz, MEM_MHZ, WARM_C))

        assert left.time_s == sample.kernel_s[0]
        assert left.power_w == pytest.approx(power_w, rel=0.02)
        assert 0.0 < left.power_windows <= 1.0


def test_a_whole_step_tells_times_and_no_powers(steered: SampleSet) -> None:
    rows = rows_of(steered)
    steps = sum(not s.kernel and bool(s.kernel_s) for s in steered.mixed)
    for k, kernel in enumerate(steered.kernels):
        time, power = rows.windows[:, rows.kernel == k]
        metered = sum(s.kernel == kernel.name and s.spin_mhz is not None for s in steered.mixed)
        assert (power == 0.0).sum() == steps + metered
        # Times and powers of the same mix are rows of their own, each at its own clock.
        assert (time == 0.0).sum() == metered
        assert ((time > 0.0) | (power > 0.0)).all()
    assert len(rows.step) == steps
