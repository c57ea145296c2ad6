from typing import Any

import msgspec
import pytest

from underclock.core.tracing.names import flops_of, kind_of
from underclock.core.tracing.step import launch_groups, nodes_of, traced_step
from underclock.errors import DataError
from underclock.records import Kind, Pass
from underclock.records.work import Node, NodeKind, TracedActivity


def node(function: str = "k", kind: NodeKind = NodeKind.KERNEL, **fields: Any) -> Node:
    return Node(kind=kind, function=function if kind is NodeKind.KERNEL else "", **fields)


def activity(
    operator: str = "aten::mm", shapes: str = "bf16[4x4], bf16[4x4]", **fields: Any
) -> TracedActivity:
    return TracedActivity(
        **{
            "kind": NodeKind.KERNEL,
            "start_s": 0.0,
            "duration_s": 1.0,
            "operator": operator,
            "shapes": shapes,
            "pass_": Pass.FORWARD,
            **fields,
        }
    )


MEMSET = node(kind=NodeKind.MEMSET, bytes=64)


def test_a_memset_goes_with_the_kernel_of_its_operator() -> None:
    one, other = activity(), activity("aten::sum")
    groups = launch_groups([MEMSET, node(), MEMSET, node()], [one, one, other, other])
    assert [group.nodes for group in groups] == [(0, 1), (2, 3)]


def test_a_memset_serves_every_kernel_of_its_operator_that_is_given_its_memory() -> None:
    sort, other = activity("aten::sort"), activity("aten::other")
    nodes = [MEMSET, node("histogram"), node("sweep"), node("sweep"), node("other")]
    matched = [sort, sort, sort, sort, other]
    groups = launch_groups(nodes, matched, [(), (), (0,), (0,), (0,)])
    assert [group.nodes for group in groups] == [(0, 1), (0, 2), (0, 3), (4,)]
    traced = traced_step("s", nodes, matched, cleared=[(), (), (0,), (0,), (0,)])
    assert [kernel.count for kernel in traced.step.kernels] == [1, 2, 1]


def test_a_kernel_that_prepares_a_workspace_goes_with_the_one_it_prepares() -> None:
    init = node("void cask::init_device_workspace_kernel<Params>(Params, bool)")
    product, other = activity("aten::convolution_backward"), activity("aten::sum")
    groups = launch_groups([MEMSET, init, node("wgrad"), init], [product, product, product, other])
    assert [group.nodes for group in groups] == [(0, 1, 2), (3,)]


def test_equal_launches_are_one_kernel_with_a_count() -> None:
    modules = ["h.0.fc", "h.1.fc", "h.2.proj"]
    traced = traced_step("s", [node()] * 3, [activity(module=m) for m in modules])
    (kernel,) = traced.step.kernels
    assert kernel.count == 3
    assert kernel.name == "h.*.fc +1 mm"
    assert kernel.section == "h.*.fc, h.*.proj"
    assert traced.step.order == (0, 0, 0)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"grid": (2, 1, 1)}, "node"),
        ({"block": (2, 1, 1)}, "node"),
        ({"shared_bytes": 9}, "node"),
        ({"attributes": "cluster 2x1x1"}, "node"),
        ({"function": "other"}, "node"),
        ({"shapes": "bf16[8x4], bf16[4x4]"}, "activity"),
        ({"operator": "aten::bmm"}, "activity"),
        ({"pass_": Pass.BACKWARD}, "activity"),
    ],
)
def test_whatever_decides_the_cost_keeps_kernels_apart(change: dict[str, Any], field: str) -> None:
    a, b = node(), activity()
    if field == "node":
        other = traced_step("s", [a, msgspec.structs.replace(a, **change)], [b, b])
    else:
        other = traced_step("s", [a, a], [b, msgspec.structs.replace(b, **change)])
    assert len(other.step.kernels) == 2
    assert len({kernel.name for kernel in other.step.kernels}) == 2


def test_a_kernel_without_operator_is_named_by_its_function() -> None:
    name = "void at::native::(anonymous namespace)::softmax<float, 4>(float*)"
    (kernel,) = traced_step("s", [node(name)], [None]).step.kernels
    assert kernel.name == "softmax"
    assert kernel.pass_ is Pass.OTHER
    (odd,) = traced_step("s", [node("<lambda>")], [None]).step.kernels
    assert odd.name == "<lambda>"


def test_an_obstacle_is_a_warning() -> None:
    seen = [activity()]
    step = traced_step("s", nodes_of(seen), seen, obstacle="because").step
    assert step.obstacle == "because"
    assert step.warnings == ("because",)


def test_a_step_that_launches_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="launched no kernel"):
        traced_step("s", [], [])


@pytest.mark.parametrize(
    ("operator", "function", "kind"),
    [
        ("aten::mm", "anything", Kind.GEMM),
        ("aten::_scaled_dot_product_flash_attention", "pytorch_flash::fwd", Kind.GEMM),
        ("triton_mm_3", "void cutlass::Kernel<float>", Kind.GEMM),
        ("aten::gelu", "vectorized_elementwise_kernel", Kind.MEMORY),
        ("", "nvjet_sm90_tst", Kind.GEMM),
    ],
)
def test_products_are_told_from_the_rest(operator: str, function: str, kind: Kind) -> None:
    assert kind_of(operator, function) is kind


@pytest.mark.parametrize(
    ("operator", "shapes", "flops"),
    [
        ("aten::mm", "bf16[4x8], bf16[8x16]", 2 * 4 * 8 * 16),
        ("aten::mm", "bf16[4x8]@1x4, bf16[8x16]", 2 * 4 * 8 * 16),
        ("aten::addmm", "bf16[16], bf16[4x8], bf16[8x16]", 2 * 4 * 8 * 16),
        ("aten::bmm", "bf16[3x4x8], bf16[3x8x16]", 2 * 3 * 4 * 8 * 16),
        ("aten::gelu", "bf16[4x8]", None),
        # Where it writes into a tensor it is given, that comes last, and is no factor.
        ("aten::mm", "bf16[4x8], bf16[8x16], bf16[4x16]", 2 * 4 * 8 * 16),
        ("aten::addmm", "bf16[16], bf16[4x8], bf16[8x16], bf16[4x16]", 2 * 4 * 8 * 16),
        ("aten::mm", "", None),
        ("aten::mm", "bf16[4], bf16[8x16]", None),
        ("aten::mm", "bf16[4x4], bf16[8]", None),
    ],
)
def test_flops_are_those_of_the_product(operator: str, shapes: str, flops: float | None) -> None:
    assert flops_of(operator, shapes) == flops
