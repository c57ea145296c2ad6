"""Launches that differ in a size the data decides, pooled."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.core.tracing.names import Pool, pools, without_sizes
from underclock.core.tracing.recapture import difference, recaptured
from underclock.core.tracing.step import traced_step
from underclock.records import Pass, Step
from underclock.records.work import Node, NodeKind, Traced, TracedActivity

TOKENS = [12, 431, 97]


def pooled(shapes: list[str], sizes: list[int], kinds: str = "", asked: str = "") -> list[Pool]:
    kinds = kinds or "k" * len(shapes)
    return list(pools(kinds, asked or kinds, shapes, sizes))


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


def routed(tokens: list[int]) -> Step:
    """Return experts' products, for which a library chooses a function by size."""
    launches = [one for n in tokens for one in experts([n], function=f"gemm_{n // 16}")]
    return traced(launches, tokens).step


routings = st.lists(st.integers(1, 64), min_size=6, max_size=6).filter(lambda n: len(set(n)) > 1)


@pytest.mark.untraced
@given(routings, routings)
def test_another_routing_is_the_same_step(before: list[int], now: list[int]) -> None:
    was, is_ = routed(before), routed(now)
    assert difference(was, is_) is None
    found = recaptured(was, is_)
    assert len({kernel.name for kernel in found.step.kernels}) == len(is_.kernels)
    if [n // 16 for n in before] == [n // 16 for n in now]:
        assert found.changes == ()
        names = [[step.kernels[k].name for k in step.order] for step in (was, found.step)]
        assert names[0] == names[1]
