"""Launches of which a profiler saw nothing run."""

from pathlib import Path
from typing import Any

import pytest

from chrome_events import host, kernel, launch
from recorded import read
from underclock.core.tracing.captured import PlainRun, captured_step
from underclock.core.tracing.profile import (
    activities,
    captured_calls,
    launches_lost,
    lost_note,
    saw_all,
    synchronising,
)
from underclock.errors import DataError, MeasurementError
from underclock.records import Pass
from underclock.records.work import MODULE_MARK, NodeKind, TracedActivity


def seen(*events: dict[str, Any]) -> tuple[TracedActivity, ...]:
    return activities({"traceEvents": [{"ph": "M", "name": "process_name"}, *events]})


BACKWARD = "autograd::engine::evaluate_function: MmBackward0"


def test_a_launch_belongs_to_what_was_open_on_its_thread() -> None:
    (one,) = seen(
        host(MODULE_MARK + "h.0.mlp", 0, 20),
        host("aten::linear", 1, 19),
        host("aten::mm", 2, 10),
        host("aten::add", 2, 10, tid=2),
        launch(5, 1),
        kernel(30, 1),
    )
    assert (one.operator, one.module, one.pass_) == ("aten::mm", "h.0.mlp", Pass.FORWARD)
    assert (one.grid, one.block) == ((2, 1, 1), (64, 1, 1))
    assert one.start_s == pytest.approx(30e-6)
    assert one.duration_s == pytest.approx(2e-6)


def test_order_is_that_of_launching_not_of_running() -> None:
    names = [
        a.function
        for a in seen(
            host("aten::a", 0, 10),
            launch(1, 1),
            launch(2, 2),
            kernel(50, 1, "first"),
            kernel(40, 2, "second"),
        )
    ]
    assert names == ["first", "second"]


def test_the_backward_pass_takes_its_module_from_the_forward_operator() -> None:
    activities = seen(
        host(MODULE_MARK + "h.3", 0, 10),
        host("aten::mm", 1, 9, Sequence_number=4, Fwd_thread_id=0),
        host(BACKWARD, 20, 30, tid=2, Sequence_number=4, Fwd_thread_id=1),
        host("aten::mm", 21, 29, tid=2),
        launch(22, 1, tid=2),
        host("autograd::engine::evaluate_function: AccumulateGrad", 31, 40, tid=2),
        launch(32, 2, tid=2),
        kernel(50, 1),
        kernel(60, 2),
    )
    assert [a.module for a in activities] == ["h.3", "h.3"]
    assert [a.pass_ for a in activities] == [Pass.BACKWARD] * 2
    # Autograd's frame is the operator only where nothing is inside it.
    assert [a.operator for a in activities] == [
        "aten::mm",
        "autograd::engine::evaluate_function: AccumulateGrad",
    ]


def test_what_is_recomputed_is_backward_but_keeps_its_module() -> None:
    activities = seen(
        host(BACKWARD, 20, 60, tid=2, Sequence_number=9, Fwd_thread_id=1),
        host(MODULE_MARK + "h.1", 21, 30, tid=2),
        host("aten::mm", 22, 29, tid=2, Sequence_number=12, Fwd_thread_id=0),
        launch(23, 1, tid=2),
        host(BACKWARD, 32, 50, tid=2, Sequence_number=12, Fwd_thread_id=1),
        launch(33, 2, tid=2),
        kernel(70, 1),
        kernel(80, 2),
    )
    assert [(a.module, a.pass_) for a in activities] == [("h.1", Pass.BACKWARD)] * 2


def test_an_unknown_number_and_no_module_leave_the_module_unknown() -> None:
    (one,) = seen(
        host("aten::mm", 0, 5, Sequence_number=1),
        host(BACKWARD, 20, 30, Sequence_number=1, Fwd_thread_id=1),
        host("aten::cat", 21, 29, Sequence_number=3, Fwd_thread_id=0),
        launch(22, 1),
        kernel(40, 1),
    )
    assert one.module == ""


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([host("aten::mul", 31, 39), launch(32, 1)], Pass.OPTIMIZER),
        ([host("Optimizer.step#AdamW.step", 41, 50), launch(42, 1)], Pass.OPTIMIZER),
        ([host("Optimizer.zero_grad#AdamW.zero_grad", 0, 5), launch(1, 1)], Pass.OPTIMIZER),
        ([host("aten::mul", 0, 5), launch(1, 1)], Pass.FORWARD),
        ([host("aten::mul", 60, 70), launch(61, 1)], Pass.OTHER),
        ([host("nccl:all_reduce", 0, 5), launch(1, 1)], Pass.COMMUNICATION),
        ([launch(1, 1)], Pass.OTHER),
    ],
    ids=["clipping", "step", "zero_grad", "forward", "after", "collective", "nobody"],
)
def test_the_pass_is_told_from_what_was_open_and_what_comes_later(
    events: list[Any], expected: Pass
) -> None:
    frame = [host(BACKWARD, 20, 30), host("Optimizer.step#AdamW.step", 40, 52)]
    (one,) = seen(*frame, *events, kernel(90, 1))
    assert one.pass_ is expected


def test_a_collective_kernel_is_known_by_its_name() -> None:
    (one,) = seen(host("aten::x", 0, 9), launch(1, 1), kernel(20, 1, "ncclDevKernel_AllReduce"))
    assert one.pass_ is Pass.COMMUNICATION


def test_memsets_and_copies_have_no_function() -> None:
    activities = seen(
        host("aten::zero_", 0, 9),
        launch(1, 1, name="cudaMemsetAsync"),
        launch(2, 2, name="cudaMemcpyAsync"),
        kernel(20, 1, "Memset (Device)", "gpu_memset"),
        kernel(21, 2, "Memcpy DtoD", "gpu_memcpy"),
    )
    assert [(a.kind, a.function) for a in activities] == [
        (NodeKind.MEMSET, ""),
        (NodeKind.COPY, ""),
    ]


def test_shapes_tell_type_sizes_and_strides_that_are_not_dense() -> None:
    (one,) = seen(
        host(
            "aten::addmm",
            0,
            9,
            Input_type=["float", "c10::BFloat16", "TensorList", "Scalar", ""],
            Input_Dims=[[], [4, 8], [[2, 3], [5]], [], []],
            Input_Strides=[[], [1, 4], [[3, 1], [1]], [], []],
        ),
        launch(1, 1),
        kernel(20, 1),
    )
    assert one.shapes == "fp32[], bf16[4x8]@1x4, 2 tensors[11]"


def test_an_operator_without_recorded_inputs_has_no_shapes() -> None:
    (one,) = seen(host("aten::mm", 0, 9), launch(1, 1), kernel(20, 1))
    assert one.shapes == ""


def test_frames_of_compiled_regions_are_no_operators() -> None:
    (one,) = seen(
        host("Torch-Compiled Region: 0/0", 0, 20),
        host("## Call CompiledFxGraph ab ##", 1, 19),
        launch(2, 1),
        kernel(30, 1),
    )
    assert one.operator == ""


def test_a_wait_names_what_the_user_wrote() -> None:
    trace = {
        "traceEvents": [
            host("aten::item", 0, 20),
            host("aten::_local_scalar_dense", 1, 19),
            launch(2, 1, name="cudaMemcpyAsync"),
            launch(3, 2, name="cudaStreamSynchronize"),
            launch(30, 3, name="cudaDeviceSynchronize"),  # the profiler's own, in no operator
        ]
    }
    assert synchronising(trace) == (("aten::item", "aten::_local_scalar_dense"),)


@pytest.mark.parametrize("trace", [{}, {"traceEvents": 3}, {"traceEvents": ["x"]}])
def test_another_format_is_refused(trace: dict[str, object]) -> None:
    with pytest.raises(DataError, match="no list of trace events"):
        activities(trace)


def test_a_capture_tells_what_asked_for_each_node() -> None:
    events = [
        launch(1, 1),  # before the capture: it runs, and is no node
        kernel(2, 1),
        launch(5, 2, name="cudaStreamBeginCapture"),
        host("aten::mm", 10, 20, Input_type=["float"], Input_Dims=[[2, 3]], Input_Strides=[[3, 1]]),
        launch(12, 4, name="cudaLaunchKernelExC"),
        launch(11, 3, name="cudaMemsetAsync"),
        launch(13, 5, name="cudaStreamIsCapturing"),
        host(BACKWARD, 30, 40, tid=2),
        launch(31, 6, tid=2, name="cuLaunchKernelEx"),
        launch(32, 7, tid=2, name="cudaMemcpyAsync"),
        launch(33, 8, tid=2, name="cudaLaunchCooperativeKernel"),
        launch(50, 9, name="cudaStreamEndCapture"),
        launch(51, 10),
    ]
    calls = captured_calls({"traceEvents": events})
    assert [a.kind for a in calls] == [
        *(NodeKind.MEMSET, NodeKind.KERNEL),
        *(NodeKind.KERNEL, NodeKind.COPY, NodeKind.KERNEL),
    ]
    assert [a.pass_ for a in calls] == [Pass.FORWARD] * 2 + [Pass.BACKWARD] * 3
    assert (calls[1].operator, calls[1].shapes) == ("aten::mm", "fp32[2x3]")
    assert {a.duration_s for a in calls} == {0.0}


def test_a_trace_without_a_capture_has_no_calls() -> None:
    assert captured_calls({"traceEvents": [launch(1, 1), kernel(2, 1)]}) == ()


def test_a_kernel_whose_grid_the_profiler_left_out_has_one_block() -> None:
    bare = kernel(30, 1)
    bare["args"] = {"correlation": 1}
    (one,) = seen(host("aten::mm", 0, 10), launch(5, 1), bare)
    assert (one.grid, one.block) == ((1, 1, 1), (1, 1, 1))


def test_what_an_optimizer_runs_as_a_closure_keeps_its_pass() -> None:
    """Lightning gives the whole step to the optimizer; gradients are cleared in it as well."""
    passes = [
        a.pass_
        for a in seen(
            host("Optimizer.step#AdamW.step", 0, 100),
            host("Optimizer.zero_grad#AdamW.zero_grad", 1, 5),
            launch(2, 1),
            host("aten::mm", 10, 20),
            launch(11, 2),
            host(BACKWARD, 30, 50),
            launch(31, 3),
            host("aten::_foreach_norm", 60, 65),
            launch(61, 4),
            # Another optimizer's step before a backward pass that is not its own.
            host("Optimizer.step#SGD.step", 101, 110),
            launch(102, 5),
            host("aten::_local_scalar_dense", 90, 91),
            *(kernel(200 + n, n) for n in range(1, 6)),
        )
    ]
    assert passes == [Pass.OPTIMIZER, Pass.FORWARD, Pass.BACKWARD, Pass.OPTIMIZER, Pass.OPTIMIZER]


def test_calls_of_every_part_are_captured_and_what_runs_between_is_not() -> None:
    def call(name: str, at: float) -> dict[str, Any]:
        return launch(at, -1, name=name)

    calls = captured_calls(
        {
            "traceEvents": [
                host("aten::mm", 0, 100),
                call("cudaLaunchKernel", 1),
                call("cudaStreamBeginCapture", 2),
                call("cudaLaunchKernel", 3),
                call("cudaMemcpyAsync", 4),
                call("cudaStreamEndCapture", 5),
                call("cudaGraphLaunch", 6),
                call("cudaLaunchKernel", 7),
                call("cudaStreamBeginCapture", 8),
                call("cudaMemsetAsync", 9),
                call("cudaStreamEndCapture", 10),
                call("cudaLaunchKernel", 11),
            ]
        }
    )
    assert [one.kind for one in calls] == [NodeKind.KERNEL, NodeKind.COPY, NodeKind.MEMSET]


TRACES = Path(__file__).parents[3] / "data" / "traces"


def _trace(*events: dict[str, Any]) -> dict[str, Any]:
    return {"traceEvents": list(events)}


@pytest.mark.untraced
def test_all_that_was_launched_was_seen_in_the_recordings_of_ranks() -> None:
    for path in sorted(TRACES.glob("ranks/*.json.gz")):
        trace = read(path).trace
        assert saw_all(trace), path
        assert lost_note(trace) is None


def test_what_the_profiler_lost_is_counted_and_said() -> None:
    trace = _trace(launch(1, 1), launch(2, 2, name="cuLaunchKernelEx"), kernel(5, 2))

    assert launches_lost(trace) == (1, 2)
    assert not saw_all(trace)
    assert "lost 1 of the 2 kernels" in (lost_note(trace) or "")
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
