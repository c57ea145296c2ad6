"""Small GPT steps, profiled and captured on an H200, as their recordings tell them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from recorded import Recording, read
from underclock.core.tracing.captured import align, otherwise_captured, paired
from underclock.core.tracing.profile import captured_calls, synchronising
from underclock.records import Pass

FOLDER = Path(__file__).parents[3] / "data" / "traces"
CAPTURED = ["tiny", "tiny_fused", "tiny_compiled", "tiny_recomputed"]


@pytest.fixture(scope="session")
def recording() -> Callable[[str], Recording]:
    return lambda name: read(FOLDER / f"{name}.json.gz")


@pytest.fixture(params=CAPTURED)
def captured(request: pytest.FixtureRequest, recording: Callable[[str], Recording]) -> Recording:
    return recording(request.param)


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


def test_a_recorded_wait_is_found(recording: Callable[[str], Recording]) -> None:
    ((*_, inner),) = synchronising(recording("tiny_synchronising").trace)
    assert inner == "aten::_local_scalar_dense"
    assert synchronising(recording("tiny").trace) == ()
