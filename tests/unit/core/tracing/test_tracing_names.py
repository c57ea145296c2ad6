"""Names of traced kernels: layer, operator, role, and what else tells two apart."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.core.tracing.names import named
from underclock.records import Kernel, Launch, Pass


def kernel(
    operator: str,
    shapes: str = "",
    module: str = "",
    pass_: Pass = Pass.FORWARD,
    function: str = "void at::native::vectorized_elementwise_kernel<4>(int)",
    count: int = 1,
) -> Kernel:
    launch = Launch(function=function, operator=operator, shapes=shapes, identity="x")
    return Kernel(name="?", section=module, pass_=pass_, launch=launch, count=count)


def names(*kernels: Kernel) -> list[str]:
    return [each.name for each in named(kernels)]


@pytest.mark.parametrize(
    ("shapes", "name"),
    [
        ("bf16[8x4], fp32[8x4]", "h cast fp32→bf16"),
        ("bf16[8x4], bf16[8x4]", "h copy"),
        ("bf16[8x4], bf16[8x4]@1x8", "h copy to dense"),
        ("bf16[8x4]@1x8, bf16[8x4]", "h copy to strided"),
        ("bf16[8x4]@1x8, bf16[8x4]@1x8", "h copy"),
        ("bf16[8x4], bf16[8x4]@0x1", "h broadcast"),
        ("bf16[1x4]@1x4, bf16[1x4]@0x1", "h copy to strided"),  # one place is one place
        ("bf16[8x4]", "h copy"),
    ],
)
def test_a_copy_says_what_it_is_for(shapes: str, name: str) -> None:
    assert names(kernel("aten::copy_", shapes, "h")) == [name]


FORWARD = kernel("aten::addmm", "bf16[16], bf16[64x8], bf16[8x16]@1x8", "up")


@pytest.mark.parametrize(
    ("shapes", "role"),
    [
        ("bf16[64x16], bf16[16x8]", "input gradient"),
        ("bf16[16x64]@1x16, bf16[64x8]", "weight gradient"),
        ("bf16[8x64]@1x8, bf16[64x16]", "weight gradient"),
        ("bf16[16x64], bf16[64x8], bf16[16x8]", "weight gradient"),  # written into a given tensor
        ("bf16[64x64]@1x64, bf16[64x8]", "weight gradient"),  # sizes coincide: the layout tells
        ("bf16[64x64], bf16[64x8]", "input gradient"),
        ("bf16[5x7], bf16[7x8]", "backward"),  # of no product that is known
        ("bf16[16]", "backward"),
    ],
)
def test_a_product_of_the_backward_pass_says_of_what_it_is_the_gradient(
    shapes: str, role: str
) -> None:
    assert names(FORWARD, kernel("aten::mm", shapes, "up", Pass.BACKWARD))[1] == f"up mm {role}"


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        ("triton_poi_fused__to_copy_1", "pointwise _to_copy"),
        ("triton_per_fused_sum_view_12", "reduction sum_view"),
        ("triton_xyz_fused_sum_1", "triton_xyz_fused_sum_1"),
        ("triton_mine", "triton_mine"),
    ],
)
def test_what_torch_compile_fused_is_told_in_words(operator: str, name: str) -> None:
    assert names(kernel(operator)) == [name]
    assert names(kernel("", function=operator)) == [name]


@pytest.mark.parametrize(
    ("shapes", "told"),
    [
        (["fp32[4]", "bf16[4]"], ["fp32", "bf16"]),
        (["fp32[4]", "fp32[8]"], ["4", "8"]),
        (["fp32[4], fp32[2]", "fp32[4], fp32[1]"], ["2", "1"]),
        (["fp32[4x4], fp32[4]", "fp32[4x4]@1x4, fp32[4]"], ["", "strided input 1"]),
        (["fp32[4x4]", "fp32[4x4]@1x4"], ["", "strided"]),
        # What tells all apart is enough, and better than what tells some.
        (["fp32[4], fp32[2]", "fp32[4], fp32[1]", "fp32[8], fp32[3]"], ["2", "1", "3"]),
        (["fp32[4]", "bf16[4]", "bf16[2]"], ["fp32", "bf16 4", "bf16 2"]),
        (["fp32[4]@2", "fp32[4]@3"], ["1", "2"]),  # nothing tells in a word or two
    ],
)
def test_sizes_and_types_tell_apart_before_numbers_do(
    shapes: Sequence[str], told: Sequence[str]
) -> None:
    found = names(*(kernel("aten::mul", each, "h") for each in shapes))
    assert found == [f"h mul {word}".strip() for word in told]


operators = st.sampled_from(["aten::mm", "aten::copy_", "aten::mul", ""])
shapes_ = st.sampled_from(["", "bf16[4x4], bf16[4x4]", "fp32[4x4], bf16[4x4]@1x4", "bf16[2x4]"])


@given(st.lists(st.builds(kernel, operators, shapes_, st.sampled_from(["", "a", "a, b"]))))
def test_names_are_unique_whatever_is_launched(kernels: list[Kernel]) -> None:
    assert len(set(names(*kernels))) == len(kernels)
