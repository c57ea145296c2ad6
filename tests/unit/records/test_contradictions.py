"""Records check what their parts say of each other: no file says other than it did, silently."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from invented import LATENCY_PLAN, PLAN, VALIDATION, read_again
from underclock.errors import DataError
from underclock.gpus.models import decode, encode, gpu_model
from underclock.records import (
    ALONE,
    AUTO,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    Mix,
    Plan,
    Record,
    SampleSet,
    Step,
    Validation,
    Verdict,
    Window,
)

JUDGED = msgspec.structs.replace(
    VALIDATION,
    time_interval=(-0.0012, 0.0124),
    energy_interval=(-0.1491, -0.1415),
    max_slowdown=0.0,
    tolerance=0.001,
    verdict=Verdict.NOT_KEPT,
)

Edit = Callable[[Any], None]


def edited(record: Record, edit: Edit) -> None:
    """Read a record whose file somebody edited."""
    parts = msgspec.json.decode(msgspec.json.encode(record))
    edit(parts)
    msgspec.json.decode(msgspec.json.encode(parts), type=type(record))


def put(*place: object) -> Edit:
    """Return what puts the last of some things at the place that the others name."""
    *path, key, value = place

    def edit(parts: Any) -> None:
        for step in path:
            parts = parts[step]
        parts[key] = value

    return edit


def twice(parts: Any) -> None:
    parts["arms"] = [*parts["arms"], parts["arms"][1]]


@pytest.mark.parametrize(
    ("record", "edit", "sentence"),
    [
        (PLAN, put("arms", 4, "cost", "energy_change", -5.0), "> -1.0 - at `\\$.arms"),
        (PLAN, put("arms", 4, "cost", "energy_change", -0.2564), "energy_change says -0.2564"),
        (PLAN, put("arms", 0, "cost", "time_s", 24.62), "time_change says"),
        (PLAN, put("arms", 4, "energy_interval", [-0.1, -0.2]), "finite and ascend"),
        (PLAN, put("arms", 4, "energy_interval", [-0.1, -0.05]), "does not hold -0.1564"),
        (PLAN, put("arms", 4, "cost", "time_s", None), "Expected `float`, got `null`"),
        (PLAN, twice, "compared once"),
        (PLAN, put("max_slowdown", 5.0), "< 1.0 - at `\\$.max_slowdown`"),
        (PLAN, put("frontier", 0, "energy_change", -0.5), "energy_change says -0.5"),
        (PLAN, put("kernels", "kernel3", "energy_change", -1.5), "> -1.0 - at"),
        (LATENCY_PLAN, put("schedule", "switches", 7), "switches says 7"),
        (LATENCY_PLAN, put("latency_curve", 0, "switches", None), "with all that it costs"),
        (LATENCY_PLAN, put("latency_curve", 0, "energy_change", -2.0), "> -1.0 - at"),
        (JUDGED, put("plan_time_s", [12.36, 12.38]), "2 totals of 3 repeats"),
        (JUDGED, put("repeats", 4), "3 totals of 4 repeats"),
        (JUDGED, put("auto_energy_j", [4210.0, 4212.0, 42.14]), "mean says"),
        (JUDGED, put("energy_change", "mean", 0.5), "mean says 0.5"),
        (JUDGED, put("time_change", "best", -0.5), "best says -0.5"),
        (JUDGED, put("verdict", "kept"), "the intervals say"),
        (JUDGED, put("verdict", None), "the intervals say"),
        (JUDGED, put("energy_interval", [0.5, 0.6]), ""),
        (JUDGED, put("pairs_keeping_time", 10), "9 pairs at most"),
    ],
)
def test_an_edited_file_that_contradicts_itself_is_refused(
    record: Plan | Validation, edit: Edit, sentence: str
) -> None:
    edited(record, lambda _parts: None)
    if not sentence:  # what it says still follows from it
        edited(record, edit)
        return
    with pytest.raises(msgspec.ValidationError, match=sentence):
        edited(record, edit)


@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        (("constants", "board_w"), -1000.0, "board_w must be finite and not negative"),
        (("constants", "mem_points_w", 0), -1.0, "mem_points_w must be finite"),
        (("throughput", "dram_byte_j"), -1.0, "dram_byte_j must be finite"),
        (("constants", "exponent"), 0.0, "exponent must be positive, got 0"),
        (("constants", "mem_points_w"), [1.0], "every memory point needs a clock, a power and"),
        (("own", 0, "constants"), {}, "a kernel needs cycles"),
        (("limit_w",), [350.0, 400.0, 500.0], "lies between least and most"),
        (("cap_margin_w",), 1000.0, "is no part of"),
    ],
)
def test_a_gpu_that_gives_energy_back_is_refused(
    place: tuple[object, ...], value: object, sentence: str
) -> None:
    parts = msgspec.json.decode(encode(gpu_model("rtx3080ti")))
    put(*place, value)(parts)
    with pytest.raises(DataError, match=sentence):
        decode(msgspec.json.encode(parts), "gpu.json")


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
        step=Step(
            name="w",
            kernels=(Kernel(name="a", count=2), Kernel(name="b", waited_for=0.0)),
            order=(0, 0, 1),
        ),
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
        ({"kernel_s": (-1.0,)}, "> 0.0 - at `\\$.kernel_s"),
        ({"hot_s": -1.0}, "> 0.0 - at `\\$.hot_s`"),
    ],
)
def test_a_window_whose_parts_do_not_add_up_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_again(Window(**_TIMED | changed))


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


def test_a_window_is_written_without_what_was_not_read() -> None:
    body = msgspec.json.encode(Window(kernel="a", time_s=1.0, energy_j=2.0))
    assert body == b'{"kernel":"a","time_s":1.0,"energy_j":2.0}'
    assert msgspec.json.decode(msgspec.json.encode(Window(**_TIMED)), type=Window) == Window(
        **_TIMED
    )
