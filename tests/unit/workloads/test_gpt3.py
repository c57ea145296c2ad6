"""GPT-3 steps: the published kernel table row by row, and what must hold at every size."""

import csv
import itertools
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.errors import UsageError
from underclock.records import Kernel, Kind, Pass, Step
from underclock.workloads import workload
from underclock.workloads.gpt3 import MODELS, Shape

PUBLISHED = Path(__file__).resolve().parents[4] / "shared" / "data" / "llmc_gpt3xl_kernels_b40.csv"

every_model = pytest.mark.parametrize("name", sorted(MODELS))


def flops(step: Step) -> float:
    return sum(kernel.count * (kernel.flops or 0.0) for kernel in step.kernels)


def row(kernel: Kernel) -> list[str]:
    """Write a kernel as a row of the published table."""
    return [
        kernel.section,
        kernel.name,
        str(kernel.kind),
        kernel.shape,
        str(kernel.count),
        f"{(kernel.flops or 0.0) / 1e9:.3f}",
        f"{(kernel.bytes_moved or 0.0) / 1e6:.2f}",
    ]


@pytest.mark.skipif(not PUBLISHED.is_file(), reason=f"the published table is not at {PUBLISHED}")
def test_gpt3_xl_is_the_published_table_row_by_row() -> None:
    with PUBLISHED.open(newline="") as file:
        _, *published = csv.reader(file)

    # The published rows end with a ratio of the two columns before it.
    assert [row(kernel) for kernel in workload("gpt3-xl").kernels] == [
        cells[:-1] for cells in published
    ]


@every_model
def test_a_step_takes_six_flops_per_parameter_and_token_and_some_for_attention(name: str) -> None:
    shape = MODELS[name]
    # Positions are looked up, not multiplied with.
    matrices = shape.parameters - shape.positions * shape.hidden
    tokens = shape.batch * shape.sequence
    attention = 12 * shape.layers * shape.hidden * shape.sequence * tokens

    assert flops(workload(name)) == pytest.approx(6 * matrices * tokens + attention, rel=0.01)


@every_model
def test_the_launch_order_agrees_with_the_counts_and_the_passes_follow_one_another(
    name: str,
) -> None:
    step = workload(name)

    launches = Counter(step.order)
    assert [launches[k] for k in range(len(step.kernels))] == [k.count for k in step.kernels]
    passes = [step.kernels[k].pass_ for k in step.order]
    assert list(dict.fromkeys(passes)) == [Pass.FORWARD, Pass.BACKWARD, Pass.OPTIMIZER]
    changes = sum(one is not other for one, other in itertools.pairwise(passes))
    assert changes == 2


@every_model
def test_a_layers_kernels_run_together_once_per_layer(name: str) -> None:
    step = workload(name)

    for section in ("Lf", "Lb"):
        layer = tuple(k for k, kernel in enumerate(step.kernels) if kernel.section == section)
        run = tuple(k for k in step.order if k in layer)
        assert run == layer * MODELS[name].layers
        start = step.order.index(layer[0])
        assert step.order[start : start + len(run)] == run


def test_other_sizes_are_another_step_and_the_same_sizes_the_same() -> None:
    step = workload("gpt3-xl")

    assert workload("gpt3-xl", {}).fingerprint == step.fingerprint
    assert workload("gpt3-xl", {"batch": 40}).fingerprint == step.fingerprint
    for change in ({"batch": 8}, {"sequence": 512}, {"layers": 23}, {"sm_count": 132}):
        assert workload("gpt3-xl", change).fingerprint != step.fingerprint


@pytest.mark.parametrize(
    ("name", "meant"),
    [("gpt3xl", "gpt3-xl"), ("gpt-3-13b", "gpt3-13b"), ("GPT3-6.7b", "gpt3-6.7b")],
)
def test_an_unknown_name_suggests_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(UsageError, match="unknown workload") as caught:
        workload(name)

    assert repr(name) in str(caught.value)
    assert f"did you mean {meant!r}" in caught.value.hint


@pytest.mark.parametrize(
    ("overrides", "word"),
    [
        ({"batch": 0}, "batch must be at least 1"),
        ({"layers": -1}, "layers must be at least 1"),
        ({"sm_count": 0}, "sm_count must be at least 1"),
        ({"heads": 7}, "not a multiple of 7 heads"),
        ({"sequence": 4096}, "exceeds 2048 positions"),
        ({"bach": 8}, "no parameter named 'bach'"),
    ],
)
def test_sizes_that_make_no_model_are_a_usage_error_that_says_which(
    overrides: dict[str, int], word: str
) -> None:
    with pytest.raises(UsageError, match=word) as caught:
        workload("gpt3-xl", overrides)

    assert "gpt3-xl" in str(caught.value)


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
