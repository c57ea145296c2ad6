"""A peak of power that no clock shows: when it is seen, and what it held."""

import dataclasses
import math

import pytest

from made_up_mixes import IDLE, SHAPE, made_coload, made_mix, made_point, made_rung
from underclock.core.steering.coload import CoLoad
from underclock.core.steering.power_peak import (
    HeaterAtBoost,
    below_peak,
    heater_at_boost,
    peak_seen_w,
    pile_w,
)
from underclock.core.steering.subtract import KernelPoint
from underclock.records import Window

_PILE = [made_point("a", 970.0), made_point("b", 980.0), made_point("c", 960.0)]


def test_three_kernels_that_draw_alike_at_boost_show_a_peak() -> None:
    assert pile_w([*_PILE, made_point("d", 400.0), made_point("a", 600.0)], 700.0) == 970.0


@pytest.mark.parametrize(
    "left",
    [
        [],
        _PILE[:2],
        [*_PILE[:2], made_point("c", 800.0)],  # not alike
        [*_PILE[:2], made_point("c", 960.0, core_mhz=1700.0)],  # not at boost
        [*_PILE[:2], made_point("c", 960.0, windows=0.1)],  # not sure
        [made_point(name, 720.0) for name in "abc"],  # the cap's own
    ],
)
def test_less_shows_no_peak(left: list[KernelPoint]) -> None:
    assert math.isinf(pile_w(left, 700.0))


def test_a_heater_at_boost_is_known_by_its_power_and_how_it_follows_the_clock() -> None:
    slow, fast = made_rung(1700.0, 1.02e-3, 800.0), made_rung(2000.0, 1e-3, 960.0)
    seen = heater_at_boost([IDLE, made_mix(), slow, fast], made_coload())

    assert seen is not None
    # Idling at 1700 MHz draws less than at 2000, so the power is not exactly what was made up.
    assert seen.power_w == pytest.approx(960.0, rel=0.01)
    assert seen.exponent == pytest.approx(math.log(1.02) / math.log(2000 / 1700))
    assert seen.usual is None


def test_a_heater_follows_the_clock_where_it_does_as_it_did_below() -> None:
    rungs = [made_rung(mhz, 2.0 / mhz, mhz / 2.1) for mhz in (1600.0, 1800.0, 2000.0)]
    free = heater_at_boost(rungs, made_coload())
    held = heater_at_boost([*rungs[:2], made_rung(2000.0, 1.05e-3, 960.0)], made_coload())

    assert free is not None
    assert free.usual == pytest.approx(1.0)
    assert math.isinf(peak_seen_w(970.0, free, 700.0))
    assert held is not None
    assert peak_seen_w(970.0, held, 700.0) == 970.0


@pytest.mark.parametrize(
    "rungs",
    [
        [],
        [made_rung(2000.0, 1e-3, 960.0)],  # nothing to compare with
        [made_rung(1980.0, 1.01e-3, 960.0), made_rung(2000.0, 1e-3, 960.0)],  # too near
    ],
)
def test_a_heater_at_one_clock_tells_nothing(rungs: list[Window]) -> None:
    assert heater_at_boost(rungs, made_coload()) is None


def test_a_heater_beside_idling_that_is_not_known_tells_nothing() -> None:
    rungs = [made_rung(1700.0, 1.02e-3, 800.0), made_rung(2000.0, 1e-3, 960.0)]

    assert heater_at_boost(rungs, CoLoad.of([], SHAPE, 1.0)) is None


_STUCK, _FREE = 0.1, 0.8  # exponents


@pytest.mark.parametrize(
    ("piled_w", "heater", "peak_w"),
    [
        (970.0, None, 970.0),
        (math.inf, HeaterAtBoost(960.0, _STUCK), 960.0),
        (970.0, HeaterAtBoost(960.0, _STUCK), 960.0),
        (950.0, HeaterAtBoost(960.0, _STUCK), 950.0),
        (920.0, HeaterAtBoost(960.0, _STUCK), 960.0),  # kernels that are alike below the peak
        (
            970.0,
            HeaterAtBoost(960.0, _FREE, 0.85),
            math.inf,
        ),  # alike, and nothing holds the heater
        (970.0, HeaterAtBoost(960.0, 0.45, 0.85), 970.0),  # held on the way from the last rung
        (970.0, HeaterAtBoost(960.0, _FREE), 970.0),  # nobody knows how it follows the clock else
        (970.0, HeaterAtBoost(800.0, _FREE, 0.85), 970.0),  # too cool to be held
        (970.0, HeaterAtBoost(720.0, _STUCK), 970.0),  # the cap's own
    ],
)
def test_a_peak_is_one_for_kernels_and_heater(
    piled_w: float, heater: HeaterAtBoost | None, peak_w: float
) -> None:
    assert peak_seen_w(piled_w, heater, 700.0) == peak_w


def test_what_a_peak_held_is_left_out_and_what_ran_below_it_stays() -> None:
    cool, hot = made_point("cool", 400.0), made_point("a", 965.0)
    below, timed = made_point("a", 800.0, core_mhz=1700.0), made_point("a", None, core_mhz=1700.0)
    fast = made_point("a", None, core_mhz=1950.0)  # timed where power goes beyond the peak
    unseen = made_point("b", 970.0), made_point("b", None, core_mhz=1500.0)  # never seen below it

    assert below_peak([cool, hot, below, timed, fast, *unseen], 970.0) == (cool, below, timed)


def test_a_kernel_that_would_exceed_the_peak_is_left_out_there_though_nobody_saw_it() -> None:
    alone, in_step = made_point("a", 700.0, core_mhz=1450.0), made_point("a", None, core_mhz=1690.0)
    fast = dataclasses.replace(made_point("a", None, core_mhz=1980.0), time_s=0.8e-3)
    # One whose pace does not follow the clock draws no more there; another's power is unsure.
    slow = made_point("slow", 700.0, core_mhz=1450.0), made_point("slow", None, core_mhz=1980.0)
    unsure = (
        made_point("b", 900.0, core_mhz=1450.0, windows=0.1),
        made_point("b", None, core_mhz=1980.0),
    )
    unknown = made_point("new", None, core_mhz=1980.0)

    below = below_peak([alone, in_step, fast, *slow, *unsure, unknown], 970.0)
    assert below == (alone, in_step, *slow, *unsure, unknown)
