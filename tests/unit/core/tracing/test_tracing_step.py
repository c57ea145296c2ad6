from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.core.tracing.names import Pool, flops_of, kind_of, pools, without_sizes
from underclock.core.tracing.step import launch_groups, traced_step
from underclock.errors import DataError
from underclock.records import Kind, Pass, Step
from underclock.records.work import Node, NodeKind, Traced, TracedActivity


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


def test_a_memset_serves_every_kernel_of_its_operator_that_is_given_its_memory() -> None:
    sort, other = activity("aten::sort"), activity("aten::other")
    nodes = [MEMSET, node("histogram"), node("sweep"), node("sweep"), node("other")]
    matched = [sort, sort, sort, sort, other]
    groups = launch_groups(nodes, matched, [(), (), (0,), (0,), (0,)])
    assert [group.nodes for group in groups] == [(0, 1), (0, 2), (0, 3), (4,)]
    traced = traced_step("s", nodes, matched, cleared=[(), (), (0,), (0,), (0,)])
    assert [kernel.count for kernel in traced.step.kernels] == [1, 2, 1]


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


TOKENS = [12, 431, 97]


def pooled(shapes: list[str], sizes: list[int]) -> list[Pool]:
    kinds = "k" * len(shapes)
    return list(pools(kinds, kinds, shapes, sizes))


def test_one_size_that_the_data_decides_makes_one_pool_with_its_median() -> None:
    (pool,) = pooled([f"bf16[{n}x1024], bf16[1024x4096]" for n in TOKENS], TOKENS)
    assert pool.members == (0, 1, 2)
    assert (pool.median, pool.median_size) == (2, 97)
    assert pool.shapes == "bf16[97(12-431)x1024], bf16[1024x4096]"
    assert without_sizes(pool.shapes) == "bf16[#x1024], bf16[1024x4096]"


@pytest.mark.parametrize(
    ("shapes", "sizes"),
    [
        (["bf16[12x8]", "bf16[97x8]"], []),  # not of data
        (["bf16[12x8]", "bf16[97x8]"], [12]),
        (["bf16[12x8]", "bf16[12x8]"], [12]),  # alike: the same kernel as it is
        (["bf16[12x8]", "fp32[97x8]"], [12, 97]),
        (["bf16[12x8]", "bf16[97x8x1]"], [12, 97]),
        (["bf16[12x64]", "bf16[64x12]"], [12, 64]),  # two sizes that changed places
        (["bf16[12x8]", "bf16[97x4]"], [12, 97]),  # two sizes
        (["bf16[0x8]", "bf16[97x8]"], [0, 97]),
        (["4 tensors[12]", "5 tensors[12]"], [4, 5, 12]),
    ],
)
def test_what_differs_otherwise_is_not_pooled(shapes: list[str], sizes: list[int]) -> None:
    assert pooled(shapes, sizes) == []


sizes_ = st.lists(st.integers(1, 50), min_size=1, max_size=12)


@pytest.mark.untraced
@given(sizes_, sizes_)
def test_pools_hold_every_launch_once_at_most_and_the_median_is_in_the_middle(
    tokens: list[int], known: list[int]
) -> None:
    found = pooled([f"bf16[{n}x64], bf16[64x{n}]@1x64" for n in tokens], known)
    members = [member for pool in found for member in pool.members]
    assert len(set(members)) == len(members)
    for pool in found:
        assert len(set(pool.sizes)) > 1
        assert set(pool.sizes) <= set(known)
        assert pool.sizes == tuple(tokens[member] for member in pool.members)
        below = sum(size < pool.median_size for size in pool.sizes)
        above = sum(size > pool.median_size for size in pool.sizes)
        assert max(below, above) <= len(pool.sizes) / 2
        assert tokens[pool.median] == pool.median_size


def experts(tokens: list[int], **more: str) -> list[tuple[Node, TracedActivity]]:
    return [
        (
            Node(kind=NodeKind.KERNEL, function=more.get("function", "gemm"), grid=(n, 1, 1)),
            TracedActivity(
                kind=NodeKind.KERNEL,
                start_s=0.0,
                duration_s=1.0,
                operator="aten::mm",
                shapes=f"bf16[{n}x8], bf16[8x16]",
                module=f"experts.{index}.up",
                pass_=Pass.FORWARD,
            ),
        )
        for index, n in enumerate(tokens)
    ]


def traced(launches: list[tuple[Node, TracedActivity]], data_sizes: list[int]) -> Traced:
    nodes, matched = zip(*launches, strict=True)
    return traced_step("moe", nodes, matched, data_sizes=data_sizes)


def test_a_mixture_of_experts_has_a_kernel_a_function_measured_at_its_median() -> None:
    many = [30, 10, 20, 500, 40]
    launches = [
        *experts(many, function="sm90_gemm"),
        *experts([7, 8, 9], function="small"),
        *experts([20], function="sm90_gemm"),
    ]
    found = traced(launches, [*many, 7, 8, 9])
    step: Step = found.step
    big, small = step.kernels
    assert (big.count, small.count) == (6, 3)
    assert (big.name, small.name) == ("experts.*.up mm", "experts.*.up mm small")
    assert big.shape == "bf16[20(10-500)x8], bf16[8x16]"
    assert big.flops == 2 * 20 * 8 * 16
    assert big.launch is not None
    assert big.launch.grid == (20, 1, 1)
    assert (found.launch_of(0), found.launch_of(1)) == (8, 6)
    assert step.order == (0, 0, 0, 0, 0, 1, 1, 1, 0)
    (sentence,) = step.warnings
    assert sentence.startswith("the data decides the sizes of 9 launches: they are 2 kernels")
    assert sentence.endswith("together that is -78% of size")
