"""Co-load in pieces between launches."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.core.steering.mixing import METER_S, launch_clocks, spin_mhz, spread_out
from underclock.core.steering.subtract import timed_windows
from underclock.core.step.power_cap import coload_moves_clock, is_uneven
from underclock.records import Clocks, Mix, Window

_LONG = [1e-3] * 200  # a step of 0.2 s


def _periods_s(mix: Mix, launches_s: list[float], hot_s: float) -> list[float]:
    """Return how long a piece of co-load and the launches before it take."""
    piece_s = (mix.hot * hot_s + mix.idle_s) / mix.pieces
    return [
        sum(launches_s[begin:end]) + piece_s for begin, end in itertools.pairwise((0, *mix.after))
    ]


def test_a_short_round_has_its_coload_at_its_end() -> None:
    mix = Mix(launches=3, hot=10, idle_s=METER_S)
    assert spread_out(mix, [1e-3] * 30, 1e-3) == mix


@pytest.mark.untraced
@given(
    st.lists(st.floats(1e-6, 5e-3), min_size=60, max_size=300),
    st.integers(0, 200),
    st.floats(0.0, 0.3),
)
def test_coload_is_even_in_time_and_hardly_more_or_less(
    launches_s: list[float], hot: int, idle_s: float
) -> None:
    if not (hot or idle_s):
        return
    asked = Mix(hot=hot, idle_s=idle_s)
    mix = spread_out(asked, launches_s, 1.6e-3)
    if mix.pieces == 1:
        return

    assert abs(mix.hot - hot) <= mix.pieces / 2
    assert mix.idle_s >= max(idle_s, mix.pieces * METER_S)
    assert mix.after[-1] == len(launches_s)
    periods_s = _periods_s(mix, launches_s, 1.6e-3)
    mean_s = sum(periods_s) / len(periods_s)
    assert max(abs(period_s - mean_s) for period_s in periods_s) <= 2 * max(launches_s)


@pytest.mark.parametrize("mix", [Mix(hot=40), Mix(hot=261), Mix(idle_s=0.1), Mix(idle_s=METER_S)])
def test_no_stretch_of_40_ms_is_without_coload(mix: Mix) -> None:
    found = spread_out(mix, _LONG, 1.6e-3)

    assert found.pieces >= 8
    assert max(_periods_s(found, _LONG, 1.6e-3)) < 0.04
    assert found.hot == pytest.approx(mix.hot, rel=0.05)


def test_few_heaters_and_long_launches_make_few_pieces() -> None:
    assert spread_out(Mix(hot=3), _LONG, 1.6e-3).pieces == 3
    assert spread_out(Mix(idle_s=0.05), [0.1, 0.1], 0.0).after == (1, 2)
    # One launch that takes long has all of it at its end, as a short round has.
    assert spread_out(Mix(idle_s=0.05), [1.0], 0.0) == Mix(idle_s=0.05)


def _step(mix: Mix, time_s: float = 0.3, kernel: str = "", **more: object) -> Window:
    fields: dict[str, object] = {"kernel_s": (1e-3,), "core_spread_mhz": 0.0} | more
    return Window(
        kernel=kernel,
        mix=mix,
        core_mhz=1700.0,
        time_s=time_s,
        energy_j=1.0,
        window_s=1.0,
        **fields,  # type: ignore[arg-type]
    )


def test_coload_that_comes_often_leaves_one_clock() -> None:
    at_end, often = Mix(hot=6), Mix(hot=6, after=(50, 100, 150))

    assert is_uneven(_step(at_end))
    assert not is_uneven(_step(often, time_s=0.29))
    assert is_uneven(_step(often, time_s=0.31))
    assert not is_uneven(_step(at_end, kernel="a"))
    thin, lock = Mix(idle_s=0.2), Clocks(core_mhz=1900)
    assert not is_uneven(_step(thin, kernel="a", asked=lock))
    # The lock did not hold in launches, and idling ran at it: neither's clock is known.
    assert is_uneven(_step(thin, kernel="a", asked=lock, core_spread_mhz=40.0))
    assert [coload_moves_clock(mix) for mix in (at_end, Mix(), Mix(idle_s=1.5e-3))] == [
        True,
        False,
        True,
    ]
    assert not coload_moves_clock(Mix(idle_s=1.5e-3, after=(1, 2)))  # it only tells the clock


def test_a_look_that_tells_kernels_clocks_takes_the_place_of_one_that_does_not() -> None:
    alone, kernel = _step(Mix()), _step(Mix(), kernel="a")
    coload = _step(Mix(launches=0, hot=1), kernel_s=())
    metered = _step(Mix(idle_s=1e-3, after=(1, 2)), kernel_mhz=(1690.0,))

    assert timed_windows([alone, kernel, coload]) == [alone, kernel]
    assert timed_windows([alone, kernel, metered]) == [kernel, metered]
    # A round shorter than the window has one clock, so its mean is every kernel's.
    short = _step(Mix(), time_s=0.09)
    assert timed_windows([alone, short, metered]) == [short, metered]
    assert [s.timed_mhz for s in (alone, metered)] == [(1700.0,), (1690.0,)]


def test_each_launch_runs_at_the_clock_of_the_idling_around_it() -> None:
    mix = Mix(idle_s=3 * METER_S, after=(2, 4, 5))
    late_s = 9e-7
    took_s = [METER_S * 2000.0 / mhz + late_s for mhz in (1500.0, 1600.0, 1800.0)]

    clocks = launch_clocks(mix, took_s, 2000.0, 6)
    assert clocks == pytest.approx((1650.0, 1650.0, 1550.0, 1550.0, 1700.0, 1650.0))
    mean_mhz = spin_mhz(mix, sum(took_s), 2000.0)
    assert mean_mhz == pytest.approx(3 / sum(1 / mhz for mhz in (1500.0, 1600.0, 1800.0)))
    short = Mix(idle_s=METER_S, after=(2, 4, 5))
    assert launch_clocks(short, [METER_S / 3] * 3, 2000.0, 6) == ()
    assert spin_mhz(short, METER_S, 2000.0) is None
