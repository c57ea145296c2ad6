"""Small GPT steps, profiled and captured on an H200, as their recordings tell them."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recorded import Recording, read
from underclock.core.tracing.captured import align, otherwise_captured, paired
from underclock.core.tracing.profile import captured_calls, synchronising
from underclock.core.tracing.step import traced_step
from underclock.records import Pass
from underclock.records.work import NodeKind

FOLDER = Path(__file__).parents[3] / "data" / "traces"
CAPTURED = ["tiny", "tiny_fused", "tiny_compiled", "tiny_recomputed"]


@pytest.fixture(scope="session")
def recording() -> Callable[[str], Recording]:
    return lambda name: read(FOLDER / f"{name}.json.gz")


@pytest.fixture(params=CAPTURED)
def captured(request: pytest.FixtureRequest, recording: Callable[[str], Recording]) -> Recording:
    return recording(request.param)


def test_recorded_captures_match_their_profiles(captured: Recording) -> None:
    matched = align(captured.nodes, captured.seen)
    assert None not in matched


@pytest.mark.slow
def test_one_launch_missing_in_a_recording_costs_one_name(captured: Recording) -> None:
    middle = len(captured.seen) // 2
    matched = align(captured.nodes, captured.seen[:middle] + captured.seen[middle + 1 :])
    assert sum(a is None for a in matched) == 1


@pytest.mark.untraced
def test_recorded_steps_are_named_whole(captured: Recording) -> None:
    assert all(a.operator for a in captured.seen)
    assert {a.pass_ for a in captured.seen} == {Pass.FORWARD, Pass.BACKWARD, Pass.OPTIMIZER}
    named = [a for a in captured.seen if a.pass_ is Pass.BACKWARD and a.module]
    assert len(named) > 0.9 * sum(a.pass_ is Pass.BACKWARD for a in captured.seen)


def test_a_recorded_capture_names_what_a_plain_run_did_not_launch(
    recording: Callable[[str], Recording],
) -> None:
    llama = recording("tiny_llama")
    assert llama.capture is not None
    seen = llama.seen
    aligned = align(llama.nodes, seen)
    assert sum(activity is None for activity in aligned) == 29

    matched = paired(llama.nodes, captured_calls(llama.capture))

    assert matched is not None
    assert all(a is not None and a.operator and a.pass_ is not Pass.OTHER for a in matched)
    # Its attention is given a mask only while it is captured.
    masked = [a for a in matched if a is not None and "attention_forward" in a.operator]
    assert {a.shapes.split(", ")[-1] for a in masked} == {"bf16[2x1x1024x1024]"}
    warning = otherwise_captured(llama.nodes, aligned, seen)
    assert warning is not None
    assert warning.startswith("while it is captured the step launches 29 kernels")


def test_recorded_steps_are_captured_as_they_run(captured: Recording) -> None:
    seen = captured.seen
    aligned = align(captured.nodes, seen)
    assert otherwise_captured(captured.nodes, aligned, seen) is None


def test_a_recorded_wait_is_found(recording: Callable[[str], Recording]) -> None:
    ((*_, inner),) = synchronising(recording("tiny_synchronising").trace)
    assert inner == "aten::_local_scalar_dense"
    assert synchronising(recording("tiny").trace) == ()


def test_a_recorded_step_has_each_distinct_kernel_once(captured: Recording) -> None:
    traced = traced_step("s", captured.nodes, align(captured.nodes, captured.seen))
    step = traced.step
    identities = Counter((k.launch.identity, k.pass_) for k in step.kernels if k.launch)
    assert set(identities.values()) == {1}
    assert sum(kernel.count for kernel in step.kernels) == len(step.order) == len(traced.groups)
    launched = sorted(n for group in traced.groups for n in group.nodes)
    busy = [i for i, one in enumerate(captured.nodes) if one.kind is not NodeKind.OTHER]
    assert launched == busy


def test_shapes_of_one_persistent_function_stay_apart(
    recording: Callable[[str], Recording],
) -> None:
    tiny = recording("tiny_compiled")
    step = traced_step("s", tiny.nodes, align(tiny.nodes, tiny.seen)).step
    shapes: dict[Any, set[str]] = {}
    for kernel in step.kernels:
        assert kernel.launch is not None
        if "nvjet" in kernel.launch.function:
            key = (kernel.launch.function, kernel.launch.grid)
            shapes.setdefault(key, set()).add(kernel.launch.shapes)
    assert max(len(some) for some in shapes.values()) > 1
