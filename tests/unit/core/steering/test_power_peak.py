"""A peak of power that no clock shows: when it is seen, and what it held."""

import math

import pytest

from made_up_mixes import made_point
from underclock.core.steering.power_peak import (
    HeaterAtBoost,
    below_peak,
    peak_seen_w,
    pile_w,
)
from underclock.core.steering.subtract import KernelPoint

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
