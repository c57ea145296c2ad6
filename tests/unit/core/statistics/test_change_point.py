"""When a clock changed, from the durations of equal work."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from underclock.arrays import Floats
from underclock.core.statistics.change_point import (
    Level,
    TraceStatus,
    find_change_point,
    level,
    summarise,
    tell_apart,
)
from underclock.errors import MeasurementError

_OLD_S, _NEW_S = 10e-6, 4e-6

seeds = st.integers(0, 2**32 - 1)
# Durations at two clocks that noise does not blur into one.
contrasts = st.floats(0.05, 0.9) | st.floats(1.1, 20.0)


def _known(mean_s: float, noise: float = 0.0) -> Level:
    return Level(mean_s=mean_s, sigma_s=noise * mean_s, interrupted=0.0)


def _edges_s(
    parts: list[tuple[float, float]], *, noise: float = 0.0, seed: int = 0, interrupted: float = 0.0
) -> Floats:
    """Return edges of ticks over stretches of (length, duration of a tick); 0 for no work."""
    at_s, at_work = [0.0], [0.0]
    for length_s, tick_s in parts:
        at_s.append(at_s[-1] + length_s)
        at_work.append(at_work[-1] + (length_s / tick_s if tick_s else 0.0))
    random = np.random.default_rng(seed)
    work = 1.0 + noise * random.standard_normal(int(at_work[-1]) + 1)
    work[random.random(len(work)) < interrupted] += 12.0
    upto = np.concatenate(([0.0], np.cumsum(work)))
    return np.interp(upto[upto <= at_work[-1]], at_work, at_s)


@pytest.mark.untraced
@settings(max_examples=200)
@given(seeds, contrasts, st.floats(0.0, 0.01), st.floats(2e-3, 8e-3))
def test_a_change_is_found_within_a_tick(
    seed: int, contrast: float, noise: float, changed_s: float
) -> None:
    new_s = contrast * _OLD_S
    edges_s = _edges_s(
        [(changed_s, _OLD_S), (2e-3 + 400 * new_s, new_s)],
        noise=noise,
        seed=seed,
        interrupted=1e-3,
    )

    point = find_change_point(
        edges_s, asked_s=1e-3, before=_known(_OLD_S, noise), after=_known(new_s, noise)
    )

    assert point.status is TraceStatus.CHANGED
    assert point.at_s is not None
    assert point.stall_s is not None
    # An interruption beside the change cannot be told from a stall; any other is none. One in
    # whose middle the clock changes hides the change altogether.
    room_s = 2 * max(_OLD_S, new_s)
    place = int(np.searchsorted(edges_s, changed_s))
    assume(edges_s[place] - edges_s[place - 1] <= room_s)
    assert point.at_s - room_s <= changed_s <= point.at_s + point.stall_s + room_s
    assert point.stall_s < 7 * room_s


@given(st.floats(1.5e-3, 5e-3), st.sampled_from([(_OLD_S, _NEW_S), (_NEW_S, _OLD_S)]))
def test_without_noise_it_is_found_much_finer_than_a_tick(
    changed_s: float, levels_s: tuple[float, float]
) -> None:
    old_s, new_s = levels_s
    edges_s = _edges_s([(changed_s, old_s), (5e-3, new_s)])

    point = find_change_point(edges_s, asked_s=1e-3, before=_known(old_s), after=_known(new_s))

    assert point.at_s == pytest.approx(changed_s, abs=1e-9)
    assert point.stall_s == 0.0


@given(seeds, st.floats(2e-3, 5e-3), st.floats(1e-4, 1e-2), contrasts)
def test_a_stall_is_told_apart_from_the_delay(
    seed: int, changed_s: float, stall_s: float, contrast: float
) -> None:
    new_s = contrast * _OLD_S
    stall_s += 20 * max(_OLD_S, new_s)
    edges_s = _edges_s(
        [(changed_s, _OLD_S), (stall_s, 0.0), (2e-3 + 400 * new_s, new_s)], noise=0.005, seed=seed
    )

    point = find_change_point(
        edges_s, asked_s=1e-3, before=_known(_OLD_S, 0.005), after=_known(new_s, 0.005)
    )

    assert point.at_s == pytest.approx(changed_s, abs=max(_OLD_S, new_s))
    assert point.stall_s == pytest.approx(stall_s, abs=max(_OLD_S, new_s))


@given(st.floats(0.0, 10.0), st.floats(0.1, 100.0))
def test_neither_origin_nor_unit_of_time_matters(origin: float, unit: float) -> None:
    edges_s = _edges_s([(3e-3, _OLD_S), (3e-3, _NEW_S)], noise=0.005)
    known = {"before": _known(_OLD_S, 0.005), "after": _known(_NEW_S, 0.005)}
    scaled = {
        name: Level(mean_s=one.mean_s * unit, sigma_s=one.sigma_s * unit, interrupted=0.0)
        for name, one in known.items()
    }

    point = find_change_point(edges_s, asked_s=1e-3, **known)
    moved = find_change_point((edges_s + origin) * unit, asked_s=(1e-3 + origin) * unit, **scaled)

    assert point.at_s is not None
    assert moved.at_s == pytest.approx((point.at_s + origin) * unit, abs=1e-8 * unit)


@given(seeds)
def test_turns_of_another_program_are_no_stall_and_hide_no_change(seed: int) -> None:
    turns = [(2e-3, 0.0), (2e-3, _OLD_S)] * 2 + [(2e-3, 0.0), (2e-3, _NEW_S)] * 3
    edges_s = _edges_s([(3e-3, _OLD_S), *turns], noise=0.005, seed=seed)

    point = find_change_point(
        edges_s, asked_s=8e-3, before=_known(_OLD_S, 0.005), after=_known(_NEW_S, 0.005)
    )

    assert point.status is TraceStatus.CHANGED
    assert point.stall_s == 0.0
    assert 11e-3 - 2 * _OLD_S <= (point.at_s or 0.0) <= 13e-3 + 2 * _OLD_S


def test_a_clock_that_comes_by_degrees_has_come_when_it_is_there() -> None:
    steps = [(1e-3, tick_s) for tick_s in (9e-6, 8e-6, 7e-6, 6e-6, 5e-6)]
    edges_s = _edges_s([(3e-3, _OLD_S), *steps, (3e-3, _NEW_S)], noise=0.005)

    point = find_change_point(edges_s, asked_s=1e-3, before=_known(_OLD_S), after=_known(_NEW_S))

    assert point.at_s == pytest.approx(8e-3, abs=2 * _OLD_S)


def test_equal_durations_say_nothing() -> None:
    edges_s = _edges_s([(6e-3, _OLD_S)], noise=0.01)
    alike = _known(_OLD_S, 0.01)

    point = find_change_point(
        edges_s, asked_s=1e-3, before=alike, after=_known(1.005 * _OLD_S, 0.01)
    )

    assert point.status is TraceStatus.ALIKE
    assert point.at_s is point.stall_s is None
    assert not tell_apart(alike, alike)


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ([(6e-3, _OLD_S)], TraceStatus.PENDING),  # nothing came
        ([(3e-3, _OLD_S), (3e-3, 7e-6)], TraceStatus.PENDING),  # something else did
        ([(1e-3, _OLD_S)], TraceStatus.PENDING),  # it ends with the call
        ([(3e-3, _NEW_S), (3e-3, _NEW_S)], TraceStatus.UNSETTLED),  # it was there before
        ([(1e-3, 0.0), (6e-3, _OLD_S)], TraceStatus.UNSETTLED),  # nothing ran before
    ],
)
def test_what_is_no_change_says_why(parts: list[tuple[float, float]], status: TraceStatus) -> None:
    point = find_change_point(
        _edges_s(parts), asked_s=1e-3, before=_known(_OLD_S), after=_known(_NEW_S)
    )

    assert point.status is status
    assert point.at_s is point.stall_s is None


def test_nothing_changes_before_it_is_asked_for() -> None:
    edges_s = _edges_s([(1e-3 - 3e-6, _OLD_S), (5e-3, _NEW_S)])

    point = find_change_point(edges_s, asked_s=1e-3, before=_known(_OLD_S), after=_known(_NEW_S))

    assert point.at_s == 1e-3


@given(seeds, st.floats(0.001, 0.02))
def test_a_level_is_that_of_the_ticks_that_were_not_interrupted(seed: int, noise: float) -> None:
    edges_s = _edges_s([(20e-3, _OLD_S)], noise=noise, seed=seed, interrupted=0.01)

    measured = level(edges_s)

    assert measured.mean_s == pytest.approx(_OLD_S, rel=noise / 5)
    assert measured.sigma_s == pytest.approx(noise * _OLD_S, rel=0.15)
    assert 0.0 <= measured.interrupted < 0.3


def test_a_coarse_timer_blurs_ticks_and_not_their_level() -> None:
    fine_s = _edges_s([(20e-3, 1.01e-6)], noise=0.005)

    measured = level((np.round(fine_s / 32e-9) * 32e-9).astype(np.float64))

    assert measured.mean_s == pytest.approx(1.01e-6, rel=1e-3)


@pytest.mark.parametrize("edges", [1, 2, 8])
def test_a_level_of_a_few_ticks_is_refused(edges: int) -> None:
    with pytest.raises(MeasurementError, match=f"did {edges - 1} pieces of work"):
        level(np.linspace(0.0, 1e-6, edges))


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=40), st.floats(0.1, 10.0))
def test_a_summary_is_ordered_and_scales(values: list[float], unit: float) -> None:
    summary, scaled = summarise(np.array(values)), summarise(unit * np.array(values))

    assert min(values) <= summary.p05 <= summary.median <= summary.p95 <= max(values)
    assert len(summary.kept) == len(values)
    assert any(summary.kept)
    assert scaled.median == pytest.approx(unit * summary.median, abs=1e-9)


@given(seeds)
def test_repeats_far_from_the_others_are_dropped(seed: int) -> None:
    values = 20e-3 * np.exp(0.1 * np.random.default_rng(seed).standard_normal(200))
    values[[3, 17]] = 0.2, 1.0

    summary = summarise(values)

    assert not summary.kept[3]
    assert not summary.kept[17]
    assert sum(summary.kept) >= 190
    assert summary.median == pytest.approx(20e-3, rel=0.06)
    assert summary.sigma == pytest.approx(2e-3, rel=0.5)


def test_nothing_has_no_summary() -> None:
    with pytest.raises(ValueError, match="nothing to summarise"):
        summarise(np.array([]))
