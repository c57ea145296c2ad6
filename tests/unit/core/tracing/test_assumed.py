"""Operators that were seen on a CPU, as the kernels that a GPU is assumed to run."""

from collections.abc import Sequence

import pytest

from chrome_events import host
from underclock.core.tracing.captured import assumed_step
from underclock.errors import DataError
from underclock.records import Kind, Pass, Step
from underclock.records.work import LAUNCH_MARK, MODULE_MARK, Operator

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
