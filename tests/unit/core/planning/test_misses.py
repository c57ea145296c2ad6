"""Changes that come early or late: what they cost, and where they are best aimed."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.core.planning.clock_changes import misses, usual_misses
from underclock.core.step.power_cap import LaunchCosts
from underclock.records import Clocks

SETTINGS = (Clocks(core_mhz=1000, mem_mhz=800), Clocks(core_mhz=1000, mem_mhz=8000))
JITTER_S = np.array([[0.0, 1e-3], [1e-3, 0.0]])
ORDER = np.array([0, 1])


def costs(memory_bound: float, core_bound: float, *, launch_s: float = 0.05) -> LaunchCosts:
    """Two kernels: the first takes so many times as long at the slow memory clock, the second too.

    Power is 100 W everywhere.
    """
    time_s = launch_s * np.array([[memory_bound, 1.0], [core_bound, 1.0]])
    return LaunchCosts(settings=SETTINGS, time_s=time_s, energy_j=100.0 * time_s)


def test_without_jitter_nothing_is_missed_and_nothing_aimed_elsewhere() -> None:
    found = misses(costs(8.0, 1.0), ORDER, np.array([1, 0]), 0.0 * JITTER_S, 100.0)

    assert found.at.tolist() == [0, 1]
    assert not found.aim_s.any()
    assert not found.time_s.any()
    assert not found.energy_j.any()


def test_a_step_without_changes_misses_nothing() -> None:
    found = misses(costs(8.0, 1.0), ORDER, np.array([1, 1]), JITTER_S, 100.0)

    assert len(found.at) == len(found.aim_s) == 0


def test_clocks_that_are_cheap_for_one_side_are_aimed_away_from_the_other() -> None:
    # Kernel 0 at fast memory, kernel 1, to which it is the same, at slow.
    found = misses(costs(8.0, 1.0), ORDER, np.array([1, 0]), JITTER_S, 100.0)

    back_s, to_slow_s = found.aim_s  # the change to fast memory, round the end, must not be late
    assert back_s == pytest.approx(-3e-3)
    assert to_slow_s > 2e-3
    assert found.time_s.max() < 1e-5


def test_what_costs_alike_on_both_sides_is_aimed_at_the_launch() -> None:
    # The clocks of either are equally bad for the other.
    time_s = 0.05 * np.array([[2.0, 1.0], [1.0, 2.0]])
    even = LaunchCosts(settings=SETTINGS, time_s=time_s, energy_j=100.0 * time_s)
    found = misses(even, ORDER, np.array([1, 0]), JITTER_S, 100.0)

    # Early by t, work of t takes 2 t; late by t, half of t was done.
    mean_s = 1e-3 / math.sqrt(2 * math.pi)
    assert (found.time_s <= mean_s * 1.5).all()
    assert (found.time_s >= mean_s * 1.5 * 0.85).all()
    assert (np.abs(found.aim_s) < 1e-3).all()
    usual_s, usual_j = usual_misses(even, ORDER, JITTER_S, 100.0)
    assert usual_s[0, 1] == pytest.approx(found.time_s[0], rel=0.02)
    assert usual_j[0, 1] == pytest.approx(found.energy_j[0], rel=0.02)


def test_what_is_usual_is_so_where_the_change_pays() -> None:
    # Neither kernel is ever better off at the slow memory clock: no change to it is made.
    usual_s, usual_j = usual_misses(costs(8.0, 2.0), ORDER, JITTER_S, 100.0)

    assert not usual_s.any()
    assert not usual_j.any()
    time_s = np.array([[math.inf, 1.0], [1.0, math.inf]])
    unknown = LaunchCosts(settings=SETTINGS, time_s=time_s, energy_j=time_s)
    assert not usual_misses(unknown, ORDER, JITTER_S, 100.0)[0].any()


def test_launches_shorter_than_the_miss_are_followed_by_others() -> None:
    order = np.array([0] * 20 + [1] * 20)
    choice = np.array([1] * 20 + [0] * 20)
    short = misses(costs(3.0, 1.0, launch_s=1e-4), order, choice, JITTER_S, 100.0)
    long = misses(costs(3.0, 1.0), np.array([0, 1]), np.array([1, 0]), JITTER_S, 100.0)

    assert short.at.tolist() == [0, 20]
    assert short.aim_s == pytest.approx(long.aim_s)
    assert short.time_s == pytest.approx(long.time_s, rel=1e-6)


def test_what_nobody_measured_adds_nothing() -> None:
    time_s = np.array([[math.inf, 1.0], [1.0, math.inf]])
    unknown = LaunchCosts(settings=SETTINGS, time_s=time_s, energy_j=time_s)
    found = misses(unknown, ORDER, np.array([1, 0]), JITTER_S, 100.0)

    assert np.isfinite(found.time_s).all()
    assert not found.time_s.any()


@given(bound=st.lists(st.floats(1.0, 10.0), min_size=2, max_size=2), jitter_s=st.floats(1e-5, 1e-2))
def test_the_best_aim_costs_no_more_than_the_launch_itself(
    bound: list[float], jitter_s: float
) -> None:
    spread = jitter_s * 1e3 * JITTER_S
    found = misses(costs(*bound), ORDER, np.array([1, 0]), spread, 100.0)
    cost = found.energy_j + 250.0 * found.time_s
    # Aimed at the launch: half of the misses on either side, of the mean distance.
    mean_s = jitter_s / math.sqrt(2 * math.pi)
    early = np.array([1.0 / bound[1] - 1.0, bound[0] - 1.0])  # in time of launches before
    late = np.array([1.0 - 1.0 / bound[0], 1.0 - bound[1]])

    assert (cost <= 350.0 * mean_s * (early + late) + 1e-2 * jitter_s * 350.0).all()
