"""Sizes of traced kernels, which say what their inputs are."""

import numpy as np
import pytest

from underclock.core.transfer.matching import matched, work_of
from underclock.records import Kernel, Kind, Launch
from underclock.records.carried import MatchWay


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
        ("fp32[2x3], i64[]", 24),
        ("3 tensors[12]", 12),
        ("", 0),
    ],
)
def test_a_traced_kernel_moves_what_its_inputs_hold(shapes: str, moved: int) -> None:
    assert work_of([_traced(shapes, "a")])[1, 0] == moved


def test_a_traced_kernel_of_another_batch_has_the_role_of_the_one_known() -> None:
    known, wanted = _traced("bf16[40x1024]", "a"), _traced("bf16[8x1024]", "b")

    (match,) = matched([known], np.array([True]), [wanted])

    assert match.way is MatchWay.ROLE
    assert match.source == 0
