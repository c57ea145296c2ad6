"""Steps of serving: what runs through the weights, and what a cache adds."""

import pytest

from underclock.errors import UsageError
from underclock.records import Kernel, Pass, Step
from underclock.workloads import workload
from underclock.workloads.llama import MODELS

PARAMETERS = {"llama3-8b": 8.03e9, "llama3-70b": 70.55e9}


def products(step: Step) -> list[Kernel]:
    return [kernel for kernel in step.kernels if kernel.kind == "gemm"]


def flops(step: Step) -> float:
    return sum(kernel.count * (kernel.flops or 0.0) for kernel in products(step))


def moved(step: Step, *, name: str = "") -> float:
    return sum(k.count * (k.bytes_moved or 0.0) for k in step.kernels if k.name.startswith(name))


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_token_runs_through_every_weight_but_those_of_the_embedding(name: str) -> None:
    step = workload(f"{name}-decode", {"batch": 1})
    shape = MODELS[f"{name}-decode"]
    weights = PARAMETERS[name] - shape.vocabulary * shape.hidden

    assert flops(step) == pytest.approx(2 * weights, rel=0.002)
    assert sum(k.count * (k.bytes_moved or 0) for k in products(step)) == pytest.approx(
        2 * weights, rel=0.002
    )
    assert {kernel.pass_ for kernel in step.kernels} == {Pass.DECODE}


def test_a_cache_is_read_by_decode_in_proportion_to_batch_and_context() -> None:
    def cache(batch: int, context: int) -> float:
        step = workload("llama3-8b-decode", {"batch": batch, "context": context})
        return moved(step, name="attention")

    assert cache(8, 1024) == pytest.approx(32 * 2 * 2 * 8 * 1024 * 8 * 128, rel=0.01)
    assert cache(32, 8192) == pytest.approx(32 * cache(8, 1024), rel=0.01)


def test_a_prompt_attends_to_what_stands_before_each_token() -> None:
    one, two = (workload("llama3-8b-prefill", {"context": tokens}) for tokens in (1024, 2048))

    def attention(step: Step) -> float:
        (kernel,) = [k for k in step.kernels if k.name == "attention of prompts"]
        return kernel.flops or 0.0

    assert attention(one) == pytest.approx(4 * 4096 * 1024 * 1025 / 2)
    assert attention(two) == pytest.approx(4 * attention(one), rel=0.01)


def test_a_chunk_rides_on_a_decode() -> None:
    sizes = {"batch": 32, "context": 4096}
    mixed = workload("llama3-8b-mixed", sizes | {"chunk": 512})

    assert {"attention of tokens", "attention of a chunk"} < {k.name for k in mixed.kernels}
    assert {kernel.pass_ for kernel in mixed.kernels} == {Pass.MIXED}
    qkv = next(k for k in mixed.kernels if k.name == "qkv")
    assert qkv.shape == "6144x544x4096"
    assert "chunk" not in workload("llama3-8b-decode", sizes).parameters


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"sequence": 8}, "no parameter named 'sequence'"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"kv_heads": 5}, "must divide one another"),
        ({"chunk": 2048}, "a chunk of 2048 exceeds the context 1024"),
    ],
)
def test_sizes_that_make_no_step_are_refused(sizes: dict[str, int], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        workload("llama3-8b-mixed", sizes)
