"""What made-up measurements tell: clocks by counts of cycles, kernels' powers, the step's power."""

import math

import msgspec
import pytest

from made_up_mixes import (
    IDLE,
    SHAPE,
    STEP_KERNELS,
    made_coload,
    made_mix,
    made_point,
    made_rung,
    made_step,
)
from underclock.core.steering.coload import CoLoad
from underclock.core.steering.mixing import METER_S, spin_mhz
from underclock.core.steering.subtract import HEATER, HUNTS_MHZ, step_draws, subtract_coload
from underclock.records import Clocks, Kernel, Mix


def test_a_count_of_cycles_tells_the_clock() -> None:
    mix = Mix(idle_s=METER_S)

    assert spin_mhz(mix, METER_S + 9e-7, 2000.0) == pytest.approx(2000.0)
    assert spin_mhz(mix, 2 * METER_S + 9e-7, 2000.0) == pytest.approx(1000.0)
    # No clock is twice the highest, however short the idling seems.
    assert spin_mhz(mix, 1e-9, 2000.0) == 4000.0


@pytest.mark.parametrize(
    ("mix", "idle_s", "highest_mhz"),
    [
        (Mix(), None, 2000.0),
        (Mix(idle_s=METER_S), METER_S, None),  # a lock tells
        (Mix(idle_s=METER_S / 4), METER_S / 4, 2000.0),  # too short to tell
    ],
)
def test_too_few_cycles_tell_no_clock(
    mix: Mix, idle_s: float | None, highest_mhz: float | None
) -> None:
    assert spin_mhz(mix, idle_s, highest_mhz) is None


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


def test_a_step_that_was_timed_at_another_clock_without_a_meter_counts_little() -> None:
    step = made_mix(
        kernel="",
        mix=Mix(),
        kernel_s=(1e-3, 2e-3),
        idle_s=None,
        spin_mhz=None,
        core_spread_mhz=30.0,
    )
    as_timed, moved = (
        subtract_coload([msgspec.structs.replace(step, time_s=s)], STEP_KERNELS, made_coload())[0]
        for s in (4e-3, 4.04e-3)
    )

    assert (as_timed.time_s, as_timed.time_windows) == (1e-3, 1.0)
    assert (moved.time_s, moved.time_windows) == pytest.approx((1.01e-3, 1 / 26))


def test_a_step_whose_clock_hunts_counts_less_where_idling_tells_it_at_one_place() -> None:
    wild = made_mix(kernel="", kernel_s=(1e-3, 2e-3), time_s=4e-3, core_spread_mhz=2 * HUNTS_MHZ)
    by_kernel = msgspec.structs.replace(wild, kernel_mhz=(1990.0, 2010.0))
    alone = made_mix(core_spread_mhz=2 * HUNTS_MHZ)
    windows = [
        subtract_coload([sample], STEP_KERNELS, made_coload())[0].time_windows
        for sample in (wild, by_kernel, alone)
    ]

    assert windows == pytest.approx([0.25, 1.0, 1.0])


def test_gaps_between_launches_are_not_taken_for_a_slower_clock() -> None:
    gaps = made_mix(time_s=2.02e-3, core_spread_mhz=5.0)  # a clock that moves by 0.25 %
    _, drawn = subtract_coload([gaps], STEP_KERNELS, made_coload())

    assert drawn.time_s == 1e-3


def test_a_metered_mix_without_a_power_tells_a_time_only() -> None:
    (left,) = subtract_coload([made_mix()], STEP_KERNELS, CoLoad.of([], SHAPE, 1.0))

    assert (left.power_w, left.time_windows) == (None, 1.0)


def test_a_long_step_whose_clock_moves_and_launches_not_timed_tell_nothing() -> None:
    windows = [made_step(), made_mix(kernel_s=())]
    assert subtract_coload(windows, STEP_KERNELS, made_coload()) == ()


@pytest.mark.parametrize("changed", [{"core_spread_mhz": 0.0}, {"time_s": 0.05}])
def test_in_a_step_that_is_short_or_steady_all_kernels_have_one_clock(
    changed: dict[str, float],
) -> None:
    left = subtract_coload([made_step(**changed)], STEP_KERNELS, made_coload())

    assert [one.core_mhz for one in left] == [1600.0, 1600.0]


def test_the_steps_power_is_what_its_coload_leaves() -> None:
    step = made_mix(kernel="", kernel_s=(1e-3, 2e-3), time_s=5e-3, energy_j=4 * 0.5 + 0.1)
    (draw,) = step_draws([step, made_mix(), IDLE], STEP_KERNELS, made_coload())

    assert draw.core_mhz == 2000.0
    assert draw.power_w == pytest.approx(500.0)
    assert 0.0 < draw.spread_w < 10.0


def test_what_is_overlapped_others_takes_none_of_the_steps_time() -> None:
    # Two launches of 1 ms beside the one of 2 ms, which draws 500 W with them.
    beside = (Kernel(name="a", count=2, waited_for=0.0), STEP_KERNELS[1])
    step = made_mix(kernel="", kernel_s=(1e-3, 2e-3), time_s=3e-3, energy_j=2 * 0.5 + 0.1)

    (draw,) = step_draws([step], beside, made_coload())
    assert draw.power_w == pytest.approx(500.0, rel=1e-5)


@pytest.mark.parametrize("energy_j", [0.1, 2.1])
def test_a_step_whose_power_is_unsure_or_coload_unknown_tells_none(energy_j: float) -> None:
    step = made_mix(kernel="", kernel_s=(1e-3, 2e-3), time_s=5e-3, energy_j=energy_j)
    coload = made_coload() if energy_j < 1.0 else CoLoad.of([], SHAPE, 1.0)

    assert step_draws([step], STEP_KERNELS, coload) == ()


def test_the_heater_by_itself_tells_how_power_goes_with_the_clock() -> None:
    (left,) = subtract_coload([made_rung(2000.0, 1e-3, 960.0)], STEP_KERNELS, made_coload())

    assert (left.kernel, left.core_mhz, left.time_s) == (HEATER, 2000.0, 1e-3)
    assert left.power_w == pytest.approx(960.0)


def test_errors_of_coload_are_those_of_all_that_share_it() -> None:
    rungs = [
        made_rung(mhz, 2.0 / mhz, power_w) for mhz, power_w in ((1700.0, 700.0), (2000.0, 950.0))
    ]
    beside = made_mix(
        mix=Mix(hot=1), time_s=2e-3, energy_j=1.3, idle_s=None, hot_s=1e-3, spin_mhz=None
    )
    (little,) = subtract_coload([beside], STEP_KERNELS, made_coload(*rungs))
    (alone,) = subtract_coload(
        [made_mix(mix=Mix(), time_s=1e-3, energy_j=0.35, idle_s=None, spin_mhz=None)],
        STEP_KERNELS,
        made_coload(*rungs),
    )

    assert little.power_w == pytest.approx(350.0, rel=0.01)
    # More power of the heater is less of the kernel's, each way of erring by itself.
    assert len(little.common) == 4
    assert max(abs(part) for part in little.common) > 0.005
    assert little.variance > 0.004**2 / little.power_windows
    assert alone.variance == pytest.approx(0.004**2)
    assert math.isinf(made_point("a", None).variance)


def test_kernels_of_a_step_have_in_common_where_they_meet_the_power_loop() -> None:
    step = made_mix(kernel="", mix=Mix(), kernel_s=(1e-3, 2e-3), core_spread_mhz=20.0, idle_s=None)
    own = made_mix(core_spread_mhz=20.0)
    in_step, by_itself = (
        subtract_coload([one], STEP_KERNELS, made_coload())[0] for one in (step, own)
    )

    assert in_step.apart == pytest.approx(0.002)
    assert by_itself.apart == 0.0


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


def test_the_heaters_error_at_one_memory_clock_is_none_at_another() -> None:
    slow, fast = Clocks(mem_mhz=1), Clocks(mem_mhz=2)
    rungs = [
        msgspec.structs.replace(made_rung(mhz, 2.0 / mhz, mhz / 2.1), asked=memory)
        for memory in (slow, fast)
        for mhz in (1700.0, 2000.0)
    ]
    coload = made_coload(*rungs)
    at_slow, at_fast = (coload.heater_w(1800.0, mem_mhz) for mem_mhz in (1.0, 2.0))

    assert at_slow is not None
    assert at_fast is not None
    assert (at_slow.shared_w[4:] == 0.0).all()
    assert (at_fast.shared_w[2:4] == 0.0).all()
