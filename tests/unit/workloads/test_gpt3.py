"""GPT-3 steps: the published kernel table row by row, and what must hold at every size."""

import csv
import itertools
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.errors import UsageError
from underclock.records import Kernel, Pass, Step
from underclock.workloads import workload
from underclock.workloads.gpt3 import MODELS

PUBLISHED = Path(__file__).resolve().parents[4] / "shared" / "data" / "llmc_gpt3xl_kernels_b40.csv"
PARAMETERS_B = {  # billions, from the models' names
    "gpt3-125m": 0.125,
    "gpt3-350m": 0.350,
    "gpt3-760m": 0.760,
    "gpt3-xl": 1.3,
    "gpt3-2.7b": 2.7,
    "gpt3-6.7b": 6.7,
    "gpt3-13b": 13.0,
    "gpt3-175b": 175.0,
}

every_model = pytest.mark.parametrize("name", sorted(MODELS))
batches = st.integers(1, 128)


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
def test_a_model_has_about_the_parameters_in_its_name(name: str) -> None:
    assert MODELS[name].parameters / 1e9 == pytest.approx(PARAMETERS_B[name], rel=0.06)


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


@given(batches, batches)
def test_flops_are_linear_in_the_batch(one: int, other: int) -> None:
    """What is left at no batch at all is the optimizer, and the second stage of the biases."""
    a, b = workload("gpt3-xl", {"batch": one}), workload("gpt3-xl", {"batch": other})
    both = workload("gpt3-xl", {"batch": one + other})

    fixed = flops(a) + flops(b) - flops(both)

    independent = sum(
        kernel.count * (kernel.flops or 0.0)
        for kernel in both.kernels
        if kernel.pass_ is Pass.OPTIMIZER or kernel.name.startswith("reduce_add")
    )
    assert fixed == pytest.approx(independent, rel=1e-4)


def test_other_sizes_are_another_step_and_the_same_sizes_the_same() -> None:
    step = workload("gpt3-xl")

    assert workload("gpt3-xl", {}).fingerprint == step.fingerprint
    assert workload("gpt3-xl", {"batch": 40}).fingerprint == step.fingerprint
    for change in ({"batch": 8}, {"sequence": 512}, {"layers": 23}, {"sm_count": 132}):
        assert workload("gpt3-xl", change).fingerprint != step.fingerprint


@given(st.integers(1, 200), st.sampled_from([1536, 2048]))
def test_a_bias_has_a_second_stage_where_one_block_row_does_not_fill_the_gpu(
    sm_count: int, threads: int
) -> None:
    step = workload("gpt3-xl", {"sm_count": sm_count, "threads_per_sm": threads})

    blocks = 2 * sm_count  # either GPU runs two of llm.c's blocks on an SM
    columns = {"fcproj": 32, "attproj": 32, "qkv": 96, "fc": 128}  # 64 channels each
    second_stages = {
        kernel.name.split()[1]: kernel.shape
        for kernel in step.kernels
        if kernel.name.startswith("reduce_add")
    }
    assert second_stages == {
        name: f"{64 * count}x{blocks // count}"
        for name, count in columns.items()
        if blocks // count > 1
    }


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
