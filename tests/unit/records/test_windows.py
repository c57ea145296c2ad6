"""What one window of measuring says, and what it cannot say."""

from typing import Any

import msgspec
import pytest

from underclock.records import (
    ALONE,
    AUTO,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    Mix,
    SampleSet,
    Window,
)

_TIMED: dict[str, Any] = {
    "kernel": "a",
    "time_s": 1.0,
    "energy_j": 300.0,
    "core_mhz": 1500.0,
    "core_spread_mhz": 3.0,
    "kernel_s": (0.98,),
}


def _set(*windows: Window) -> SampleSet:
    return SampleSet(
        evidence=Evidence.MEASURED,
        gpu=GpuInfo(name="G"),
        workload="w",
        kernels=(Kernel(name="a", count=2), Kernel(name="b", waited_for=0.0)),
        order=(0, 0, 1),
        windows=windows,
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"kernel_s": (1.4,)}, "durations inside a round sum up to 1.4 s, and the round took 1 s"),
        ({"kernel_s": (0.5,), "mix": Mix(launches=3)}, "sum up to 1.5 s"),
        ({"mix": Mix(hot=2), "hot_s": 0.4}, "sum up to 1.78 s"),
        ({"mix": Mix(idle_s=0.5), "idle_s": 0.5}, "sum up to 1.48 s"),
        ({"kernel_s": (0.1, 0.1)}, "one kernel ran, and 2 were timed"),
        ({"kernel_mhz": (1.0, 2.0)}, "of the same kernels"),
        ({"core_mhz": None}, "come from the same readings"),
        ({"core_mhz": None, "core_spread_mhz": None}, "needs the core clock read all through"),
        ({"kernel_s": (-1.0,)}, "every kernel_s must be positive"),
        ({"time_s": 0.0}, "time_s must be positive"),
        ({"energy_j": float("nan")}, "energy_j must be positive"),
        ({"hot_s": -1.0}, "hot_s must be positive"),
    ],
)
def test_a_window_whose_parts_do_not_add_up_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Window(**_TIMED | changed)


def test_energy_without_time_is_no_window() -> None:
    with pytest.raises(msgspec.ValidationError, match="missing required field `time_s`"):
        msgspec.json.decode(b'{"kernel": "a", "energy_j": 1.0}', type=Window)


@pytest.mark.parametrize(
    ("kernel_s", "words"),
    [
        ((0.1,), "a run of the whole step timed 1 kernels, where 2 ran"),
        ((0.7, 0.1), "launches inside the step sum up to 1.4 s, and it took 1 s"),
    ],
)
def test_a_step_whose_launches_do_not_make_it_is_refused(
    kernel_s: tuple[float, ...], words: str
) -> None:
    step = Window(**_TIMED | {"kernel": "", "kernel_s": kernel_s})
    with pytest.raises(ValueError, match=words):
        _set(step)


def test_what_runs_beside_others_adds_nothing_to_the_step() -> None:
    step = Window(**_TIMED | {"kernel": "", "kernel_s": (0.5, 0.9)})
    assert _set(step).in_situ == (step,)


def test_views_share_out_what_was_measured() -> None:
    alone, timed = Window(kernel="a", time_s=1.0, energy_j=1.0), Window(**_TIMED)
    step = Window(**_TIMED | {"kernel": "", "kernel_s": (0.4, 0.2)})
    locked = msgspec.structs.replace(step, asked=Clocks(core_mhz=900))
    hot = msgspec.structs.replace(timed, mix=Mix(hot=1), hot_s=0.01)
    every = _set(alone, timed, step, locked, hot)

    assert every.samples == (alone, timed)
    assert every.in_situ == (step,)
    assert every.mixed == (timed, step, locked, hot)
    assert [window.is_step for window in every.windows] == [False, False, True, True, False]
    assert timed.untimed().kernel_s == ()
    assert (timed.what, timed.power_w) == (("a", ALONE, AUTO), 300.0)


def test_a_clock_that_was_not_read_all_through_is_not_told() -> None:
    once = Window(kernel="a", time_s=1.0, energy_j=1.0)
    for name in ("at_mhz", "spread_mhz"):
        with pytest.raises(ValueError, match="was not read all through"):
            getattr(once, name)


def test_a_window_is_written_without_what_was_not_read() -> None:
    body = msgspec.json.encode(Window(kernel="a", time_s=1.0, energy_j=2.0))
    assert body == b'{"kernel":"a","time_s":1.0,"energy_j":2.0}'
    assert msgspec.json.decode(msgspec.json.encode(Window(**_TIMED)), type=Window) == Window(
        **_TIMED
    )
