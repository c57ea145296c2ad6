"""Launches of which a profiler saw nothing run."""

from pathlib import Path
from typing import Any

import pytest

from chrome_events import host, kernel, launch
from recorded import read
from underclock.core.tracing.captured import PlainRun, captured_step
from underclock.core.tracing.lost import launches_lost, saw_all, told_of_lost
from underclock.errors import MeasurementError

TRACES = Path(__file__).parents[3] / "data" / "traces"


def _trace(*events: dict[str, Any]) -> dict[str, Any]:
    return {"traceEvents": list(events)}


def test_all_that_was_launched_was_seen_in_every_recording() -> None:
    for path in sorted(TRACES.rglob("*.json.gz")):
        trace = read(path).trace
        assert saw_all(trace), path
        assert told_of_lost(trace) is None


def test_what_the_profiler_lost_is_counted_and_said() -> None:
    trace = _trace(launch(1, 1), launch(2, 2, name="cuLaunchKernelEx"), kernel(5, 2))

    assert launches_lost(trace) == (1, 2)
    assert not saw_all(trace)
    assert "lost 1 of the 2 kernels" in (told_of_lost(trace) or "")
    assert "lost 1 of the 2 kernels" in (PlainRun.of(trace).lost or "")


def test_a_look_that_saw_neither_calls_nor_kernels_saw_not_all() -> None:
    assert not saw_all(_trace(host("aten::mm", 0, 5)))


def test_a_kernel_that_is_captured_is_not_lost() -> None:
    begin, end = "cudaStreamBeginCapture", "cudaStreamEndCapture"
    trace = _trace(
        launch(0, 1), kernel(9, 1), launch(1, 2, name=begin), launch(2, 3), launch(3, 4, name=end)
    )
    assert launches_lost(trace) == (0, 1)
    assert saw_all(trace)


def test_the_step_says_what_was_lost() -> None:
    recording = read(TRACES / "tiny.json.gz")
    events = recording.trace["traceEvents"]
    first = next(event for event in events if event.get("cat") == "kernel")
    trace = {"traceEvents": [event for event in events if event is not first]}

    warnings = captured_step("tiny", recording.nodes, [], PlainRun.of(trace)).step.warnings

    assert any("lost 1 of the" in warning for warning in warnings)


def test_a_step_of_which_nothing_was_seen_is_refused() -> None:
    nodes = read(TRACES / "tiny.json.gz").nodes

    with pytest.raises(MeasurementError, match="saw none of them run") as refused:
        captured_step("tiny", nodes, [], PlainRun.of(_trace(host("aten::mm", 0, 5))))
    assert "Nsight" in refused.value.hint
