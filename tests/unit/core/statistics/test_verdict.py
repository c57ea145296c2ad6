"""Pairs of repeats, whether a promise held and how often that is wrong, and many promises."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit

from underclock.arrays import Floats
from underclock.core.statistics.student import student_quantile
from underclock.core.statistics.verdict import (
    MeanChange,
    count_within,
    judge,
    mean_change,
    pair_changes,
)
from underclock.records import MOST_REPEATS, Verdict

_NOISE = 0.005
arms = st.integers(2, 8).flatmap(
    lambda count: st.tuples(
        *(st.lists(st.floats(50.0, 100.0), min_size=count, max_size=count) for _ in range(2))
    )
)
ends = st.tuples(st.floats(-0.5, 0.5), st.floats(-0.5, 0.5)).map(sorted)


def _random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def _runs(mean: float, repeats: int, random: np.random.Generator, noise: float = _NOISE) -> Floats:
    return mean * (1.0 + noise * random.standard_normal(repeats))


def _between(low: float, high: float, *, repeats: int = 5) -> MeanChange:
    return MeanChange(
        mean=(low + high) / 2.0,
        interval=(low, high),
        repeats=repeats,
        standard_error=(high - low) / 2.0 / student_quantile(2.0 * repeats - 2.0),
        freedom=2.0 * repeats - 2.0,
    )


def _quick_change(auto: Floats, plan: Floats, random: np.random.Generator) -> MeanChange:
    """Return a mean change of few resamples, which makes hundreds of experiments affordable."""
    return mean_change(auto, plan, random, resamples=1000)


def _verdict(
    energy: MeanChange, time: MeanChange, *, budget: float | None = 0.0, tolerance: float = 0.001
) -> tuple[Verdict, int | None]:
    return judge(energy, time, promise=-0.11, budget=budget, tolerance=tolerance)


@given(st.floats(1.0, 1e4))
def test_students_t_is_that_of_scipy(freedom: float) -> None:
    assert student_quantile(freedom) == pytest.approx(float(stdtrit(freedom, 0.975)), rel=1e-6)


@given(arms)
def test_the_interval_holds_the_mean_of_all_pairs(runs: tuple[list[float], list[float]]) -> None:
    auto, plan = map(np.array, runs)
    change = _quick_change(auto, plan, _random())

    assert change.mean == pytest.approx(float(np.mean(pair_changes(auto, plan))))
    assert change.interval is not None
    assert change.interval[0] <= change.mean <= change.interval[1]


def test_a_single_run_has_no_interval_and_decides_nothing() -> None:
    change = mean_change(np.array([100.0]), np.array([50.0]), _random())
    judged = _verdict(change, change)

    assert (change.mean, change.interval) == (-0.5, None)
    assert judged == (Verdict.INCONCLUSIVE, None)


_LESS, _ACROSS, _MORE = (-0.15, -0.13), (-0.12, -0.10), (-0.08, -0.06)
_FAST, _AROUND, _SLOW = (-0.02, 0.0), (-0.01, 0.01), (0.01, 0.02)


@pytest.mark.parametrize(
    ("energy", "time", "budget", "verdict"),
    [
        (_LESS, _FAST, 0.0, Verdict.KEPT),
        (_LESS, _SLOW, None, Verdict.KEPT),
        (_LESS, _SLOW, 0.05, Verdict.KEPT),
        (_LESS, _SLOW, 0.0, Verdict.NOT_KEPT),
        (_MORE, _FAST, 0.0, Verdict.NOT_KEPT),
        (_MORE, _AROUND, 0.0, Verdict.NOT_KEPT),
        (_ACROSS, _FAST, 0.0, Verdict.INCONCLUSIVE),
        (_LESS, _AROUND, 0.0, Verdict.INCONCLUSIVE),
        (_ACROSS, _AROUND, 0.0, Verdict.INCONCLUSIVE),
        (_ACROSS, _AROUND, None, Verdict.INCONCLUSIVE),
    ],
)
def test_a_promise_is_kept_where_both_intervals_lie_within_their_bounds(
    energy: tuple[float, float],
    time: tuple[float, float],
    budget: float | None,
    verdict: Verdict,
) -> None:
    judged = _verdict(_between(*energy), _between(*time), budget=budget)

    assert judged[0] is verdict
    assert judged[1] is None or verdict is Verdict.INCONCLUSIVE


@given(ends, ends, st.floats(0.0, 0.1), st.floats(0.0, 0.1))
def test_a_wider_tolerance_never_turns_against_the_plan(
    energy: list[float], time: list[float], tolerance: float, more: float
) -> None:
    order = [Verdict.NOT_KEPT, Verdict.INCONCLUSIVE, Verdict.KEPT]
    strict, lenient = (
        _verdict(_between(*energy), _between(*time), tolerance=allowed)[0]
        for allowed in (tolerance, tolerance + more)
    )

    assert order.index(lenient) >= order.index(strict)


@pytest.mark.slow
@pytest.mark.parametrize("repeats", [3, 5, 10])
@pytest.mark.parametrize("noises", [(0.005, 0.005), (0.001, 0.01)])
def test_nineteen_intervals_of_twenty_hold_the_truth(
    repeats: int, noises: tuple[float, float]
) -> None:
    random, trials = _random(repeats), 300
    held = 0
    for _ in range(trials):
        auto, plan = (
            _runs(mean, repeats, random, noise)
            for mean, noise in zip((100.0, 89.0), noises, strict=True)
        )
        interval = _quick_change(auto, plan, random).interval
        assert interval is not None
        held += interval[0] <= -0.11 <= interval[1]

    assert 0.9 <= held / trials <= 0.985


def _verdicts(energy_change: float, time_change: float, repeats: int) -> Counter[Verdict]:
    """Judge 200 validations of a plan that promises 11 % at no time."""
    random = _random(repeats)
    verdicts: Counter[Verdict] = Counter()
    for _ in range(200):
        auto, energy = (_runs(m, repeats, random) for m in (100.0, 100.0 + 100.0 * energy_change))
        base, time = (_runs(m, repeats, random, 0.002) for m in (1.0, 1.0 + time_change))
        verdicts[
            _verdict(_quick_change(auto, energy, random), _quick_change(base, time, random))[0]
        ] += 1
    return verdicts


@pytest.mark.slow
@pytest.mark.parametrize("repeats", [3, 10])
@pytest.mark.parametrize(("energy", "time"), [(-0.10, -0.01), (-0.13, 0.01), (-0.10, 0.01)])
def test_a_plan_that_breaks_its_promise_by_a_point_is_not_called_kept(
    energy: float, time: float, repeats: int
) -> None:
    verdicts = _verdicts(energy, time, repeats)

    assert verdicts[Verdict.KEPT] <= 0.05 * verdicts.total()
    if repeats == 10:
        assert verdicts[Verdict.NOT_KEPT] >= 0.9 * verdicts.total()


@pytest.mark.untraced
@pytest.mark.parametrize("repeats", [3, 10])
def test_a_plan_that_beats_its_promise_by_a_point_is_not_called_broken(repeats: int) -> None:
    verdicts = _verdicts(-0.12, -0.01, repeats)

    assert verdicts[Verdict.NOT_KEPT] <= 0.05 * verdicts.total()
    if repeats == 10:
        assert verdicts[Verdict.KEPT] >= 0.9 * verdicts.total()


@pytest.mark.untraced
@pytest.mark.parametrize(("energy", "wrong"), [(-0.109, Verdict.KEPT), (-0.11, Verdict.NOT_KEPT)])
def test_at_a_bound_a_verdict_is_rarely_wrong(energy: float, wrong: Verdict) -> None:
    assert _verdicts(energy, -0.01, 5)[wrong] <= 0.05 * 200


@pytest.mark.untraced
def test_as_many_repeats_as_were_said_decide_four_times_in_five() -> None:
    random, count, truth = _random(), 5, -0.113
    scatter = _NOISE * math.sqrt(2.0 / count) * (1.0 + truth)
    first = MeanChange(
        mean=truth,
        interval=(truth - 0.01, truth + 0.01),
        repeats=count,
        standard_error=scatter,
        freedom=8.0,
    )
    further = _verdict(first, _between(*_FAST))[1]
    assert further is not None
    assert further < MOST_REPEATS
    repeats = count + further
    decided = sum(
        _verdict(
            _quick_change(
                _runs(100.0, repeats, random), _runs(100.0 * (1.0 + truth), repeats, random), random
            ),
            _between(*_FAST),
        )[0]
        is Verdict.KEPT
        for _ in range(400)
    )

    assert 0.7 <= decided / 400 <= 0.9


def test_a_pair_exactly_at_the_limit_is_within_it() -> None:
    changes = pair_changes(np.array([3.0, 1.0]), np.array([3.3, 1.0]))

    assert count_within(changes, 0.1) == 3  # 3.3 / 3 - 1 is a little above 0.1 in floats
    assert count_within(changes, 0.0) == 2
