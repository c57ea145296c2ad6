"""Launches of which a profiler saw nothing run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chrome_events import host, kernel, launch
from recorded import read
from underclock.core.tracing.captured import PlainRun, assumed_step, captured_step
from underclock.core.tracing.profile import (
    HostTimeline,
    activities,
    launches_lost,
    lost_note,
    saw_all,
    synchronising,
)
from underclock.errors import DataError, MeasurementError
from underclock.records import Kind, Pass, Step
from underclock.records.work import LAUNCH_MARK, MODULE_MARK, Operator, TracedActivity


def seen(*events: dict[str, Any]) -> tuple[TracedActivity, ...]:
    return activities(HostTimeline({"traceEvents": [{"ph": "M", "name": "process_name"}, *events]}))


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
        HostTimeline(trace)


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


TRACES = Path(__file__).parents[3] / "data" / "traces"


def _trace(*events: dict[str, Any]) -> dict[str, Any]:
    return {"traceEvents": list(events)}


def test_what_the_profiler_lost_is_counted_and_said() -> None:
    trace = _trace(launch(1, 1), launch(2, 2, name="cuLaunchKernelEx"), kernel(5, 2))

    assert launches_lost(trace) == (1, 2)
    assert not saw_all(trace)
    assert "lost 1 of the 2 kernels" in (lost_note(trace) or "")
    assert "lost 1 of the 2 kernels" in (PlainRun(trace).lost or "")


def test_a_step_of_which_nothing_was_seen_is_refused() -> None:
    nodes = read(TRACES / "tiny.json.gz").nodes

    with pytest.raises(MeasurementError, match="saw none of them run") as refused:
        captured_step("tiny", nodes, [], PlainRun(_trace(host("aten::mm", 0, 5))))
    assert "Nsight" in refused.value.hint


_SHAPES = "fp32[8x4], fp32[4x2]"


def _operator(name: str, shapes: str = _SHAPES, **others: float | None) -> Operator:
    facts = {"elements": 32, "bytes_moved": 200, "flops": None} | others
    return Operator(name=f"aten::{name}", shapes=shapes, **facts)  # type: ignore[arg-type]


def _step(operators: Sequence[Operator], *around: dict[str, object]) -> Step:
    """Return the step of operators that were handed over at 10, 20, 30 …"""
    marks = [
        host(f"{LAUNCH_MARK}{number}", 10 * (number + 1), 10 * (number + 1) + 5)
        for number in range(len(operators))
    ]
    return assumed_step("mine", {"traceEvents": [*around, *marks, {"ph": "M"}]}, operators)


def test_each_operator_is_a_kernel_with_its_work_and_place() -> None:
    product = _operator("mm", flops=128.0)
    step = _step(
        [product, _operator("gelu"), product, _operator("_fused_adamw_", "3 tensors[32]")],
        host(f"{MODULE_MARK}Net", 1, 28),
        host(f"{MODULE_MARK}blocks.0", 2, 19),
        host("aten::linear", 3, 18, Sequence_number=7),
        host("autograd::engine::evaluate_function: MmBackward0", 29, 36, Sequence_number=7),
        host("Optimizer.step#AdamW.step", 38, 50),
    )

    assert step.is_assumed
    assert [step.kernels[index].launch.operator for index in step.order] == [  # type: ignore[union-attr]
        *("aten::mm", "aten::gelu", "aten::mm", "aten::_fused_adamw_")
    ]
    first, gelu, last, adam = step.kernels
    assert [each.pass_ for each in step.kernels] == [
        *(Pass.FORWARD, Pass.FORWARD, Pass.BACKWARD, Pass.OPTIMIZER)
    ]
    assert (first.kind, first.flops, first.bytes_moved) == (Kind.GEMM, 128.0, 200.0)
    assert (gelu.kind, gelu.flops) == (Kind.MEMORY, 32 * 32.0)  # as llm.c's gelu is counted
    assert last.flops == 128.0
    assert adam.flops == 15 * 32.0
    assert step.modules == ("Net > blocks.0", "Net", "Net > blocks.0", "")
    assert "no GPU was seen" in step.warnings[0]


@pytest.mark.parametrize(
    ("name", "function", "flops"),
    [
        ("convolution_backward", "gemm", 7.0),
        ("_scaled_dot_product_flash_attention", "attention", 7.0),
        ("native_layer_norm_backward", "layer_norm_backward", 12.0),
        ("native_layer_norm", "layer_norm", 8.0),
        ("_log_softmax_backward_data", "softmax_backward", 4.0),
        ("_softmax", "softmax", 5.0),
        ("gelu_backward", "elementwise", 64.0),
        ("_foreach_addcdiv_", "multi_tensor_apply", 1.0),
        ("_to_copy", "copy", 0.0),
        ("embedding", "copy", 0.0),
        ("zeros_like", "fill", 0.0),
        ("sum", "reduce", 1.0),
        ("embedding_dense_backward", "elementwise", 1.0),
    ],
)
def test_kernels_are_named_and_counted_as_a_gpu_would_run_them(
    name: str, function: str, flops: float
) -> None:
    known = flops if function in {"gemm", "attention"} else None
    operator = _operator(name, elements=1, flops=known)

    (kernel,) = _step([operator], host(f"{MODULE_MARK}Net", 1, 99)).kernels

    assert kernel.launch is not None
    assert kernel.launch.function == f"assumed {function}"
    assert kernel.flops == flops
    assert (kernel.kind is Kind.GEMM) == (function in {"gemm", "attention"})


def test_a_step_without_operators_is_refused() -> None:
    with pytest.raises(DataError, match="launched no kernel"):
        _step([])
