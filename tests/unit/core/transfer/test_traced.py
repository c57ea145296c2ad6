"""Sizes of traced kernels, which say what their inputs are."""

import numpy as np
import pytest

from underclock.core.transfer.matching import matched, rows_apart, work_of
from underclock.records import Kernel, Kind, Launch


def _traced(shapes: str, identity: str) -> Kernel:
    launch = Launch(
        function="softmax",
        operator="aten::_softmax",
        module="b.*",
        shapes=shapes,
        identity=identity,
    )
    return Kernel(name="softmax", kind=Kind.MEMORY, launch=launch)


@pytest.mark.parametrize(
    ("shapes", "moved"),
    [
        ("bf16[8x1024], bool[4]@1", 2 * 8 * 1024 + 4),
        ("fp32[2x3], i64[]", 24 + 8),
        ("3 tensors[12]", 12),
        ("", 0),
    ],
)
def test_a_traced_kernel_moves_what_its_inputs_hold(shapes: str, moved: int) -> None:
    assert work_of([_traced(shapes, "a")])[1, 0] == moved


@pytest.mark.parametrize(
    ("known", "wanted", "apart"),
    [
        ("bf16[40x16x128], bool[128]", "bf16[8x16x128], bool[128]", 1.0),
        ("bf16[16384x2048], bf16[2048x512]", "bf16[16384x1024], bf16[1024x1024]", 2.0),
        ("bf16[40x128]", "bf16[40x128], bf16[128]", 1.0),
        ("3 tensors[12], i64[]", "3 tensors[6], i64[]", 1.0),
        ("bf16[8x0]", "bf16[8x4]", 4.0),
    ],
)
def test_rows_are_apart_where_last_axes_are(known: str, wanted: str, apart: float) -> None:
    one, other = _traced(known, "a"), _traced(wanted, "b")

    assert np.exp(rows_apart(one, other)) == pytest.approx(apart)
    assert rows_apart(one, other) == rows_apart(other, one)
    assert rows_apart(one, Kernel(name="named", kind=Kind.MEMORY)) == 0.0


_QK, _PV = "bf16[{0}x64x8], bf16[{0}x8x64]", "bf16[{0}x64x64], bf16[{0}x64x8]"


def test_products_of_one_place_are_told_apart_by_their_shapes() -> None:
    """Of a smaller batch the larger product is as large as the smaller one was."""

    def product(shapes: str, heads: int) -> Kernel:
        sized = shapes.format(heads)
        launch = Launch(
            function="mm", operator="aten::bmm", module="b.*", shapes=sized, identity=sized
        )
        return Kernel(name=sized, kind=Kind.GEMM, flops=2.0 * heads * 64 * 64 * 8, launch=launch)

    known = [product(_QK, 640), product(_PV, 640)]

    found = matched(known, np.ones(2, dtype=bool), [product(_PV, 128), product(_QK, 128)])

    assert [match.source for match in found] == [1, 0]
