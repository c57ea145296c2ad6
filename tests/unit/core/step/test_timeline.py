"""A log laid over a step: the period found again, and the launch at every moment."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from underclock.arrays import Floats, Ints
from underclock.core.step.following import StepPeriod, fit_period, launch_at
from underclock.errors import DataError

starts_s = st.floats(-100.0, 100.0)
step_lengths_s = st.floats(1e-3, 10.0)
durations = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=12).map(np.array)


@st.composite
def logs(draw: st.DrawFn) -> tuple[StepPeriod, float, Floats, Ints]:
    """Draw a true period, how far reads lie apart, and the reads of a count that follows it."""
    period = StepPeriod(start_s=draw(starts_s), step_s=draw(step_lengths_s))
    period_s = period.step_s * draw(st.floats(0.01, 3.0))
    reads = draw(st.integers(3, 300))
    first_s = period.start_s + period.step_s * draw(st.floats(0.0, 1000.0))
    at_s: Floats = first_s + period_s * np.arange(reads, dtype=np.float64)
    done: Ints = np.floor((at_s - period.start_s) / period.step_s).astype(np.int64)
    return period, period_s, at_s, done


def changes(done: Ints) -> Ints:
    return np.flatnonzero(np.diff(done) > 0) + 1


@given(logs())
def test_the_period_is_found_again_to_within_the_reading_period(
    log: tuple[StepPeriod, float, Floats, Ints],
) -> None:
    true, period_s, at_s, done = log
    seen = changes(done)
    assume(len(seen) >= 2)

    fitted = fit_period(at_s, done)

    first, last = done[seen[0]], done[seen[-1]]
    assert abs(fitted.step_s - true.step_s) <= 2 * period_s / (last - first) + 1e-9
    for count in (first, last):
        end_s = true.start_s + true.step_s * count
        assert fitted.start_s + fitted.step_s * count == pytest.approx(
            end_s, abs=2 * period_s + 1e-6
        )


@given(logs())
def test_no_step_ends_after_its_end_was_read(log: tuple[StepPeriod, float, Floats, Ints]) -> None:
    _, _, at_s, done = log
    seen = changes(done)
    assume(len(seen) >= 2)

    fitted = fit_period(at_s, done)

    late_s = at_s[seen] - (fitted.start_s + fitted.step_s * done[seen])
    assert late_s.min() == pytest.approx(0.0, abs=1e-6)


def test_a_late_reading_moves_no_step() -> None:
    at_s = np.arange(0.0, 10.0, 0.001)
    done = np.floor(at_s / 0.1).astype(np.int64)
    kept = np.ones(len(at_s), dtype=bool)
    kept[5000:5040] = False  # the host was busy as step 50 ended

    fitted = fit_period(at_s[kept], done[kept])

    assert fitted.step_s == pytest.approx(0.1, rel=1e-3)
    assert fitted.start_s == pytest.approx(0.0, abs=0.003)


@pytest.mark.parametrize("done", [[], [7], [7, 7, 7], [7, 7, 8, 8]])
def test_a_log_of_fewer_than_two_steps_is_refused(done: list[int]) -> None:
    at_s = np.arange(len(done), dtype=np.float64)

    with pytest.raises(DataError, match="too few steps ended") as caught:
        fit_period(at_s, np.array(done, dtype=np.int64))

    assert "--for" in caught.value.hint


@given(
    starts_s,
    step_lengths_s,
    durations,
    st.lists(
        st.tuples(st.integers(-100, 100), st.integers(0, 11), st.floats(0.01, 0.99)),
        min_size=1,
        max_size=20,
    ),
)
def test_a_moment_inside_a_launch_is_that_launch_in_every_step(
    start_s: float, step_s: float, duration_s: Floats, inside: list[tuple[int, int, float]]
) -> None:
    begins = np.cumsum(duration_s) - duration_s
    launches = [launch % len(duration_s) for _, launch, _ in inside]
    phases = [
        (begins[launch] + part * duration_s[launch]) / duration_s.sum()
        for launch, (_, _, part) in zip(launches, inside, strict=True)
    ]
    at_s = np.array(
        [
            start_s + step_s * (step + phase)
            for phase, (step, _, _) in zip(phases, inside, strict=True)
        ]
    )

    launched = launch_at(at_s, StepPeriod(start_s=start_s, step_s=step_s), duration_s)

    assert launched.tolist() == launches


@given(durations, st.sampled_from([0.125, 4.0, 1024.0]), st.lists(st.floats(-10.0, 10.0)))
def test_only_the_shares_of_durations_count(
    duration_s: Floats, scale: float, moments_s: list[float]
) -> None:
    period, at_s = StepPeriod(start_s=0.5, step_s=1.5), np.array(moments_s)

    one, other = (launch_at(at_s, period, times) for times in (duration_s, duration_s * scale))

    assert one.tolist() == other.tolist()


def test_a_launch_begins_as_the_one_before_it_ends() -> None:
    at_s = np.array([0.0, 0.25, 0.5, 0.75, 1.0])

    assert launch_at(at_s, StepPeriod(start_s=0.0, step_s=1.0), np.ones(4)).tolist() == [
        0,
        1,
        2,
        3,
        0,
    ]


def test_a_hairs_breadth_before_the_step_runs_its_last_launch() -> None:
    # Here the phase rounds to 1, which is after the end of every launch.
    launched = launch_at(np.array([-1e-18]), StepPeriod(start_s=0.0, step_s=1.0), np.ones(3))

    assert launched.tolist() == [2]
