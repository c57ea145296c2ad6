"""Tensor and sequence parallelism: the GPUs together do the work of one, each with less to move."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.errors import UsageError
from underclock.records import Kernel, Kind, Step
from underclock.workloads import workload
from underclock.workloads.gpt3 import Shape

_DEGREES = (1, 2, 4, 8, 16)


@st.composite
def _shapes(draw: st.DrawFn) -> Shape:
    """Draw sizes that divide among 16 GPUs, and so among fewer."""
    heads = 16 * draw(st.integers(1, 3))
    return Shape(
        layers=draw(st.integers(1, 3)),
        hidden=heads * draw(st.sampled_from([32, 64, 128])),
        heads=heads,
        batch=draw(st.integers(1, 40)),
        sequence=16 * draw(st.integers(1, 64)),
        vocabulary=draw(st.integers(1, 60_000)),
    )


def _step(shape: Shape, tp: int) -> Step:
    return shape.changed({"tp": tp, "collectives": 0}).step("drawn")


def _collectives(step: Step) -> list[Kernel]:
    return [kernel for kernel in step.kernels if kernel.kind is Kind.COLLECTIVE]


def _by_name(step: Step) -> dict[str, Kernel]:
    return {kernel.name: kernel for kernel in step.kernels}


def _flops(kernel: Kernel) -> float:
    assert kernel.flops is not None
    return kernel.flops


def _bytes(kernel: Kernel) -> float:
    assert kernel.bytes_moved is not None
    return kernel.bytes_moved


@given(_shapes(), st.sampled_from(_DEGREES))
def test_the_gpus_together_do_the_products_of_one(shape: Shape, tp: int) -> None:
    whole, part = _by_name(_step(shape, 1)), _by_name(_step(shape, tp))
    products = [name for name, kernel in whole.items() if kernel.kind is Kind.GEMM]

    assert products == [name for name, kernel in part.items() if kernel.kind is Kind.GEMM]
    for name in products:
        assert tp * _flops(part[name]) == _flops(whole[name]), name
        assert part[name].count == whole[name].count


@given(_shapes(), st.sampled_from(_DEGREES[1:]))
def test_more_gpus_move_fewer_bytes_each(shape: Shape, tp: int) -> None:
    fewer, more = _by_name(_step(shape, tp // 2)), _by_name(_step(shape, tp))

    for name, kernel in fewer.items():
        # The rows of this one fill the GPU whatever the width, so it may even grow a little.
        if not name.startswith("reduce_add_sum"):
            assert _bytes(more[name]) < _bytes(kernel), name
    assert sum(_bytes(k) * k.count for k in more.values()) < sum(
        _bytes(k) * k.count for k in fewer.values()
    )


@given(_shapes(), st.sampled_from(_DEGREES))
def test_the_gpus_together_hold_every_parameter(shape: Shape, tp: int) -> None:
    part = shape.changed({"tp": tp})
    replicated = shape.positions * shape.hidden + (6 * shape.layers + 2) * shape.hidden

    assert part.parameters == shape.parameters
    assert tp * part.rank_parameters == shape.parameters + (tp - 1) * replicated


@given(_shapes(), st.sampled_from(_DEGREES[1:]))
def test_a_layer_gathers_before_columns_and_scatters_after_rows(shape: Shape, tp: int) -> None:
    step = shape.changed({"tp": tp}).step("drawn")
    words = [
        kernel.name if kernel.kind is Kind.COLLECTIVE else kernel.name.split()[-1]
        for kernel in step.kernels
        if kernel.kind in {Kind.GEMM, Kind.COLLECTIVE} and kernel.section == "Lf"
    ]

    assert words == [
        "all-gather qkv",
        *("qkv", "QK^T", "att.V", "attproj"),
        "reduce-scatter attproj",
        "all-gather fc",
        *("fc", "fcproj"),
        "reduce-scatter fcproj",
    ]
    backward = Counter(
        kernel.name.split()[0] for kernel in _collectives(step) if kernel.section == "Lb"
    )
    assert backward == {"all-gather": 4, "reduce-scatter": 2}


@given(_shapes(), st.sampled_from(_DEGREES[1:]))
def test_a_gpu_of_a_ring_sends_all_but_its_own_part(shape: Shape, tp: int) -> None:
    tokens = shape.batch * shape.sequence
    for kernel in _collectives(shape.changed({"tp": tp}).step("drawn")):
        if "loss" in kernel.name:
            sums = 2 if "sums" in kernel.name else 1
            whole = 2 * 4 * tokens * sums  # there and back, in single precision
        elif "replicated" in kernel.name:
            whole = 2 * 2 * shape.replicated_parameters
        elif "norm" in kernel.name:
            whole = 2 * 4
        else:
            whole = 2 * tokens * shape.hidden
        assert _bytes(kernel) == pytest.approx(whole * (tp - 1) / tp), kernel.name
        assert (_flops(kernel) == 0.0) == kernel.name.startswith("all-gather")


@given(_shapes(), st.sampled_from(_DEGREES))
def test_without_its_collectives_the_step_is_the_papers(shape: Shape, tp: int) -> None:
    listed, bare = shape.changed({"tp": tp}).step("drawn"), _step(shape, tp)

    assert not _collectives(bare)
    assert "collectives" not in bare.parameters
    assert [k for k in listed.kernels if k.kind is not Kind.COLLECTIVE] == list(bare.kernels)
    assert bool(_collectives(listed)) == (tp > 1) == ("collectives" in listed.parameters)
    order = [listed.kernels[k].name for k in listed.order if listed.kernels[k] in bare.kernels]
    assert order == [bare.kernels[k].name for k in bare.order]


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"collectives": 2}, "collectives are listed or not"),
        ({"tp": 0}, "tp must be at least 1"),
        ({"tp": 3}, "heads 16 does not divide among tp 3 GPUs; tp may be 1, 2, 4, 8, 16$"),
        ({"tp": 32}, "heads 16 does not divide among tp 32"),
        ({"tp": 16, "sequence": 1000}, "sequence 1000 does not divide"),
        ({"tp": 5, "heads": 5, "hidden": 1280}, "padded vocabulary 50304 does not divide"),
    ],
)
def test_what_does_not_divide_is_refused(sizes: dict[str, int], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        workload("gpt3-xl", sizes)
