"""What made-up measurements tell: clocks by counts of cycles, peaks of power, the step's power."""

import dataclasses
import math
from typing import Any

import msgspec
import numpy as np
import pytest

from underclock.core.model.start import unknown_gpu
from underclock.core.steering.company import Company
from underclock.core.steering.mixing import METER_S, spin_mhz
from underclock.core.steering.taking_off import (
    COMPANION,
    HUNTS_MHZ,
    AtBoost,
    Left,
    Paces,
    below_peak,
    companion_at_boost,
    peak_seen_w,
    peak_w,
    reach_mhz,
    step_draws,
    taken_off,
)
from underclock.records import Clocks, Evidence, GpuInfo, Kernel, Mix, MixSample, SampleSet

_SHAPE = unknown_gpu([1.0], fastest_mhz=2000.0, most_w=700.0)
_KERNELS = (Kernel(name="a", count=2), Kernel(name="b"))
_IDLE = MixSample(
    kernel="",
    mix=Mix(launches=0, idle_s=0.02),
    core_mhz=2000.0,
    core_spread_mhz=0.0,
    round_s=0.02,
    round_j=2.0,
    idle_s=0.02,
    window_s=1.0,
)


def _company(*more: MixSample) -> Company:
    return Company.of([_IDLE, *more], _SHAPE, 1.0)


def _of(**changed: Any) -> MixSample:
    """Return a kernel of 1 ms that idles as long, at 500 W and 100 W, at 2000 MHz."""
    fields = {
        "kernel": "a",
        "mix": Mix(idle_s=1e-3),
        "round_s": 2e-3,
        "round_j": 0.6,
        "kernel_s": (1e-3,),
        "idle_s": 1e-3,
        "spin_mhz": 2000.0,
    } | changed
    return msgspec.structs.replace(_IDLE, **fields)


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
    sample = _of(core_spread_mhz=30.0, kernel_s=(1e-3 / 1.01,), idle_s=1e-3 / 1.01, spin_mhz=2020.0)
    timed, drawn = taken_off([sample], _KERNELS, _company())

    assert (timed.core_mhz, timed.time_s, timed.power_w) == (2020.0, 1e-3 / 1.01, None)
    assert (timed.time_windows, timed.power_windows) == (1.0, 0.0)
    assert (drawn.core_mhz, drawn.time_windows) == (2000.0, 0.0)
    assert drawn.time_s == pytest.approx(1e-3)
    assert drawn.power_w == pytest.approx(500.0)
    assert drawn.power_windows > 0.0


def test_a_step_that_was_timed_at_another_clock_without_a_meter_counts_little() -> None:
    step = _of(
        kernel="",
        mix=Mix(),
        kernel_s=(1e-3, 2e-3),
        idle_s=None,
        spin_mhz=None,
        core_spread_mhz=30.0,
    )
    as_timed, moved = (
        taken_off([msgspec.structs.replace(step, round_s=s)], _KERNELS, _company())[0]
        for s in (4e-3, 4.04e-3)
    )

    assert (as_timed.time_s, as_timed.time_windows) == (1e-3, 1.0)
    assert (moved.time_s, moved.time_windows) == pytest.approx((1.01e-3, 1 / 26))


def test_a_step_whose_clock_hunts_counts_less_where_idling_tells_it_at_one_place() -> None:
    wild = _of(kernel="", kernel_s=(1e-3, 2e-3), round_s=4e-3, core_spread_mhz=2 * HUNTS_MHZ)
    by_kernel = msgspec.structs.replace(wild, kernel_mhz=(1990.0, 2010.0))
    alone = _of(core_spread_mhz=2 * HUNTS_MHZ)
    windows = [
        taken_off([sample], _KERNELS, _company())[0].time_windows
        for sample in (wild, by_kernel, alone)
    ]

    assert windows == pytest.approx([0.25, 1.0, 1.0])


def test_gaps_between_launches_are_not_taken_for_a_slower_clock() -> None:
    gaps = _of(round_s=2.02e-3, core_spread_mhz=5.0)  # a clock that moves by 0.25 %
    _, drawn = taken_off([gaps], _KERNELS, _company())

    assert drawn.time_s == 1e-3


def test_a_metered_mix_without_a_power_tells_a_time_only() -> None:
    (left,) = taken_off([_of()], _KERNELS, Company.of([], _SHAPE, 1.0))

    assert (left.power_w, left.time_windows) == (None, 1.0)


def _long_step(**changed: Any) -> MixSample:
    """Return a step of 0.4 s by itself, its clock moving by 20 MHz around 1600."""
    fields = {
        "kernel": "",
        "mix": Mix(),
        "round_s": 0.4,
        "round_j": 200.0,
        "kernel_s": (0.1, 0.2),
        "idle_s": None,
        "spin_mhz": None,
        "core_mhz": 1600.0,
        "core_spread_mhz": 20.0,
    }
    return _of(**fields | changed)


def test_a_long_step_whose_clock_moves_tells_nothing_until_it_is_known_how() -> None:
    paces = Paces(ratio=np.array([0.99, 1.01]), windows=np.array([0.1, 1.0]))
    left = taken_off([_long_step()], _KERNELS, _company(), paces)

    assert taken_off([_long_step()], _KERNELS, _company()) == ()
    assert [one.core_mhz for one in left] == pytest.approx([1584.0, 1616.0])
    assert [one.time_s for one in left] == [0.1, 0.2]
    assert [one.time_windows for one in left] == [0.1, 1.0]
    assert {(one.power_w, one.power_windows) for one in left} == {(None, 0.0)}


@pytest.mark.parametrize("changed", [{"core_spread_mhz": 0.0}, {"round_s": 0.05}])
def test_in_a_step_that_is_short_or_steady_all_kernels_have_one_clock(
    changed: dict[str, float],
) -> None:
    paces = Paces(ratio=np.array([0.99, 1.01]), windows=np.array([0.1, 0.1]))
    left = taken_off([_long_step(**changed)], _KERNELS, _company(), paces)

    assert [one.core_mhz for one in left] == [1600.0, 1600.0]


def test_a_step_timed_by_itself_steers_nothing() -> None:
    samples = SampleSet(
        evidence=Evidence.SIMULATED,
        gpu=GpuInfo(name="G"),
        workload="w",
        kernels=_KERNELS,
        mixed=(_long_step(),),
    )

    assert reach_mhz(samples) is None
    steered = msgspec.structs.replace(samples, mixed=(_long_step(), _of()))
    assert reach_mhz(steered) == (1600.0, 2000.0)


def test_the_steps_power_is_what_its_company_leaves() -> None:
    step = _of(kernel="", kernel_s=(1e-3, 2e-3), round_s=5e-3, round_j=4 * 0.5 + 0.1)
    (draw,) = step_draws([step, _of(), _IDLE], _KERNELS, _company())

    assert draw.core_mhz == 2000.0
    assert draw.power_w == pytest.approx(500.0)
    assert 0.0 < draw.spread_w < 10.0


def test_what_runs_beside_others_takes_none_of_the_steps_time() -> None:
    # Two launches of 1 ms beside the one of 2 ms, which draws 500 W with them.
    beside = (Kernel(name="a", count=2, waited_for=0.0), _KERNELS[1])
    step = _of(kernel="", kernel_s=(1e-3, 2e-3), round_s=3e-3, round_j=2 * 0.5 + 0.1)

    (draw,) = step_draws([step], beside, _company())
    assert draw.power_w == pytest.approx(500.0, rel=1e-5)


@pytest.mark.parametrize("round_j", [0.1, 2.1])
def test_a_step_whose_power_is_unsure_or_company_unknown_tells_none(round_j: float) -> None:
    step = _of(kernel="", kernel_s=(1e-3, 2e-3), round_s=5e-3, round_j=round_j)
    company = _company() if round_j < 1.0 else Company.of([], _SHAPE, 1.0)

    assert step_draws([step], _KERNELS, company) == ()


def _left(
    kernel: str, power_w: float | None, core_mhz: float = 2000.0, windows: float = 1.0
) -> Left:
    return Left(
        kernel=kernel,
        core_mhz=core_mhz,
        mem_mhz=None,
        time_s=1e-3,
        power_w=power_w,
        time_windows=1.0,
        power_windows=windows if power_w else 0.0,
        temperature_c=None,
    )


_PILE = [_left("a", 970.0), _left("b", 980.0), _left("c", 960.0)]


def test_three_kernels_that_draw_alike_at_boost_show_a_peak() -> None:
    assert peak_w([*_PILE, _left("d", 400.0), _left("a", 600.0)], 700.0) == 970.0


@pytest.mark.parametrize(
    "left",
    [
        [],
        _PILE[:2],
        [*_PILE[:2], _left("c", 800.0)],  # not alike
        [*_PILE[:2], _left("c", 960.0, core_mhz=1700.0)],  # not at boost
        [*_PILE[:2], _left("c", 960.0, windows=0.1)],  # not sure
        [_left(name, 720.0) for name in "abc"],  # the cap's own
    ],
)
def test_less_shows_no_peak(left: list[Left]) -> None:
    assert math.isinf(peak_w(left, 700.0))


def _rung(core_mhz: float, hot_s: float, power_w: float, **changed: Any) -> MixSample:
    """Return the companion, idling as long as it ran."""
    return _of(
        kernel="",
        mix=Mix(launches=0, hot=1, idle_s=hot_s),
        core_mhz=core_mhz,
        round_s=2 * hot_s,
        round_j=hot_s * (power_w + 100.0),
        kernel_s=(),
        hot_s=hot_s,
        idle_s=hot_s,
        spin_mhz=None,
        **changed,
    )


def test_a_companion_at_boost_is_known_by_its_power_and_how_it_follows_the_clock() -> None:
    slow, fast = _rung(1700.0, 1.02e-3, 800.0), _rung(2000.0, 1e-3, 960.0)
    seen = companion_at_boost([_IDLE, _of(), slow, fast], _company())

    assert seen is not None
    # Idling at 1700 MHz draws less than at 2000, so the power is not exactly what was made up.
    assert seen.power_w == pytest.approx(960.0, rel=0.01)
    assert seen.exponent == pytest.approx(math.log(1.02) / math.log(2000 / 1700))
    assert seen.usual is None
    assert not seen.follows


def test_a_companion_follows_the_clock_where_it_does_as_it_did_below() -> None:
    rungs = [_rung(mhz, 2.0 / mhz, mhz / 2.1) for mhz in (1600.0, 1800.0, 2000.0)]
    free = companion_at_boost(rungs, _company())
    held = companion_at_boost([*rungs[:2], _rung(2000.0, 1.05e-3, 960.0)], _company())

    assert free is not None
    assert free.usual == pytest.approx(1.0)
    assert free.follows
    assert held is not None
    assert not held.follows


@pytest.mark.parametrize(
    "rungs",
    [
        [],
        [_rung(2000.0, 1e-3, 960.0)],  # nothing to compare with
        [_rung(1980.0, 1.01e-3, 960.0), _rung(2000.0, 1e-3, 960.0)],  # too near
    ],
)
def test_a_companion_at_one_clock_tells_nothing(rungs: list[MixSample]) -> None:
    assert companion_at_boost(rungs, _company()) is None


def test_a_companion_beside_idling_that_is_not_known_tells_nothing() -> None:
    rungs = [_rung(1700.0, 1.02e-3, 800.0), _rung(2000.0, 1e-3, 960.0)]

    assert companion_at_boost(rungs, Company.of([], _SHAPE, 1.0)) is None


_STUCK, _FREE = 0.1, 0.8  # exponents


@pytest.mark.parametrize(
    ("pile_w", "companion", "peak"),
    [
        (970.0, None, 970.0),
        (math.inf, AtBoost(960.0, _STUCK), 960.0),
        (970.0, AtBoost(960.0, _STUCK), 960.0),
        (950.0, AtBoost(960.0, _STUCK), 950.0),
        (920.0, AtBoost(960.0, _STUCK), 960.0),  # kernels that are alike below the peak
        (970.0, AtBoost(960.0, _FREE, 0.85), math.inf),  # alike, and nothing holds the companion
        (970.0, AtBoost(960.0, 0.45, 0.85), 970.0),  # held on the way from the last rung
        (970.0, AtBoost(960.0, _FREE), 970.0),  # nobody knows how it follows the clock else
        (970.0, AtBoost(800.0, _FREE, 0.85), 970.0),  # too cool to be held
        (970.0, AtBoost(720.0, _STUCK), 970.0),  # the cap's own
    ],
)
def test_a_peak_is_one_for_kernels_and_companion(
    pile_w: float, companion: AtBoost | None, peak: float
) -> None:
    assert peak_seen_w(pile_w, companion, 700.0) == peak


def test_the_companion_by_itself_tells_how_power_goes_with_the_clock() -> None:
    (left,) = taken_off([_rung(2000.0, 1e-3, 960.0)], _KERNELS, _company())

    assert (left.kernel, left.core_mhz, left.time_s) == (COMPANION, 2000.0, 1e-3)
    assert left.power_w == pytest.approx(960.0)


def test_errors_of_company_are_those_of_all_that_share_it() -> None:
    rungs = [_rung(mhz, 2.0 / mhz, power_w) for mhz, power_w in ((1700.0, 700.0), (2000.0, 950.0))]
    beside = _of(mix=Mix(hot=1), round_s=2e-3, round_j=1.3, idle_s=None, hot_s=1e-3, spin_mhz=None)
    (little,) = taken_off([beside], _KERNELS, _company(*rungs))
    (alone,) = taken_off(
        [_of(mix=Mix(), round_s=1e-3, round_j=0.35, idle_s=None, spin_mhz=None)],
        _KERNELS,
        _company(*rungs),
    )

    assert little.power_w == pytest.approx(350.0, rel=0.01)
    # More power of the companion is less of the kernel's, each way of erring by itself.
    assert len(little.by_company) == 4
    assert max(abs(part) for part in little.by_company) > 0.005
    assert little.variance > 0.004**2 / little.power_windows
    assert alone.variance == pytest.approx(0.004**2)
    assert math.isinf(_left("a", None).variance)


def test_kernels_of_a_step_have_in_common_where_they_meet_the_power_loop() -> None:
    step = _of(kernel="", mix=Mix(), kernel_s=(1e-3, 2e-3), core_spread_mhz=20.0, idle_s=None)
    own = _of(core_spread_mhz=20.0)
    in_step, by_itself = (taken_off([one], _KERNELS, _company())[0] for one in (step, own))

    assert in_step.apart == pytest.approx(0.002)
    assert by_itself.apart == 0.0


def test_what_a_peak_held_is_left_out_and_what_ran_below_it_stays() -> None:
    cool, hot = _left("cool", 400.0), _left("a", 965.0)
    below, timed = _left("a", 800.0, core_mhz=1700.0), _left("a", None, core_mhz=1700.0)
    fast = _left("a", None, core_mhz=1950.0)  # timed where power goes beyond the peak
    unseen = _left("b", 970.0), _left("b", None, core_mhz=1500.0)  # never seen below it

    assert below_peak([cool, hot, below, timed, fast, *unseen], 970.0) == (cool, below, timed)


def test_a_kernel_that_would_exceed_the_peak_is_left_out_there_though_nobody_saw_it() -> None:
    alone, in_step = _left("a", 700.0, core_mhz=1450.0), _left("a", None, core_mhz=1690.0)
    fast = dataclasses.replace(_left("a", None, core_mhz=1980.0), time_s=0.8e-3)
    # One whose pace does not follow the clock draws no more there; another's power is unsure.
    slow = _left("slow", 700.0, core_mhz=1450.0), _left("slow", None, core_mhz=1980.0)
    unsure = _left("b", 900.0, core_mhz=1450.0, windows=0.1), _left("b", None, core_mhz=1980.0)
    unknown = _left("new", None, core_mhz=1980.0)

    below = below_peak([alone, in_step, fast, *slow, *unsure, unknown], 970.0)
    assert below == (alone, in_step, *slow, *unsure, unknown)


def test_kernels_of_a_step_run_at_clocks_of_their_own() -> None:
    step = _of(
        kernel="",
        mix=Mix(idle_s=1e-3, after=(1, 2)),
        kernel_s=(1e-3, 2e-3),
        kernel_mhz=(1950.0, 2050.0),
        round_s=4e-3,
    )
    left = taken_off([step], _KERNELS, _company())

    assert [(one.core_mhz, one.time_s, one.power_w) for one in left] == [
        (1950.0, 1e-3, None),
        (2050.0, 2e-3, None),
    ]


def test_launches_that_were_not_timed_tell_nothing() -> None:
    assert taken_off([_of(kernel_s=())], _KERNELS, _company()) == ()


def test_the_companions_error_at_one_memory_clock_is_none_at_another() -> None:
    slow, fast = Clocks(mem_mhz=1), Clocks(mem_mhz=2)
    rungs = [
        msgspec.structs.replace(_rung(mhz, 2.0 / mhz, mhz / 2.1), asked=memory)
        for memory in (slow, fast)
        for mhz in (1700.0, 2000.0)
    ]
    company = _company(*rungs)
    at_slow, at_fast = (company.hot_w(1800.0, mem_mhz) for mem_mhz in (1.0, 2.0))

    assert at_slow is not None
    assert at_fast is not None
    assert (at_slow.shared_w[4:] == 0.0).all()
    assert (at_fast.shared_w[2:4] == 0.0).all()
