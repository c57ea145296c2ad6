"""Records check what their parts say of each other: no file says other than it did, silently."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from invented import LATENCY_PLAN, PLAN, VALIDATION
from underclock.errors import DataError
from underclock.gpus.models import decode, encode, gpu_model
from underclock.records import (
    Evidence,
    GpuInfo,
    Kernel,
    Plan,
    Record,
    SampleSet,
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
        (PLAN, put("arms", 4, "energy_change", -5.0), "finite and above -1"),
        (PLAN, put("arms", 4, "energy_change", -0.2564), "energy_change says -0.2564"),
        (PLAN, put("arms", 0, "time_s", 24.62), "time_change says"),
        (PLAN, put("arms", 4, "energy_interval", [-0.1, -0.2]), "finite and ascend"),
        (PLAN, put("arms", 4, "energy_interval", [-0.1, -0.05]), "does not hold -0.1564"),
        (PLAN, put("arms", 4, "time_s", None), "3 of 4 costs"),
        (PLAN, twice, "compared once"),
        (PLAN, put("max_slowdown", 5.0), "max_slowdown must be above -1 and below 1"),
        (PLAN, put("frontier", 0, "energy_change", -0.5), "energy_change says -0.5"),
        (PLAN, put("kernels", "kernel3", "energy_change", -1.5), "finite and above -1"),
        (LATENCY_PLAN, put("schedule", "switches", 7), "switches says 7"),
        (LATENCY_PLAN, put("latency_curve", 0, "switches", None), "with all that it costs"),
        (LATENCY_PLAN, put("latency_curve", 0, "energy_change", -2.0), "finite and above -1"),
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


def test_a_verdict_beside_an_increase_is_no_promise_kept() -> None:
    worse = msgspec.structs.asdict(JUDGED) | {"energy_interval": (0.4, 0.6)}
    with pytest.raises(ValueError, match="the intervals say"):
        Validation(**worse | {"verdict": Verdict.KEPT})


@pytest.mark.parametrize("celsius", [65_000.0, -300.0, -1e308])
def test_a_temperature_at_which_no_gpu_works_is_refused(celsius: float) -> None:
    with pytest.raises(ValueError, match="a GPU is at"):
        Window(kernel="k", time_s=1.0, energy_j=1.0, temperature_c=celsius)


def test_samples_of_a_step_launch_their_kernels_as_often_as_they_count() -> None:
    with pytest.raises(ValueError, match="has count 2 but is launched 1 x"):
        SampleSet(
            evidence=Evidence.SIMULATED,
            gpu=GpuInfo(name="G"),
            workload="w",
            kernels=(Kernel(name="k", count=2),),
            order=(0,),
        )


@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        (("constants", "board_w"), -1000.0, "board_w must be finite and not negative"),
        (("constants", "mem_points_w", 0), -1.0, "mem_points_w must be finite"),
        (("throughput", "dram_byte_j"), -1.0, "dram_byte_j must be finite"),
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


def test_a_gpu_file_without_an_end_of_brackets_is_refused() -> None:
    with pytest.raises(DataError, match="is not a readable GPU model"):
        decode(b'{"schema": 1, "constants": ' + b"[" * 100_000, "gpu.json")
