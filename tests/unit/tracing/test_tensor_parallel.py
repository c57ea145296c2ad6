"""PyTorch's tensor and sequence parallelism, traced by two ranks on the CPU with gloo."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from underclock.records import Kernel, Kind, Pass, Step
from underclock.store import read_document

pytestmark = pytest.mark.slow

_EXAMPLE = Path(__file__).parents[3] / "docs/examples/parallel.py"
_LAYERS, _HIDDEN, _TOKENS, _VOCABULARY, _FP32 = 2, 64, 64, 128, 4


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[Step]:
    """Return the step as each rank has it, by the command that torchrun's users write."""
    folder = tmp_path_factory.mktemp("parallel")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, "-m", "underclock", "trace", "--assume"]
    command += ["-o", str(folder / "step.json"), "--", *torchrun, str(_EXAMPLE)]
    done = subprocess.run(
        command,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [read_document(folder / f"step.rank{rank}.json", Step) for rank in (0, 1)]


def _collectives(step: Step) -> list[Kernel]:
    return [kernel for kernel in step.kernels if kernel.kind is Kind.COLLECTIVE]


def test_collectives_are_those_of_sequence_parallelism_with_what_a_rank_sends(
    steps: list[Step],
) -> None:
    sent: Counter[tuple[str, float]] = Counter()
    for kernel in _collectives(steps[0]):
        assert kernel.pass_ is Pass.COMMUNICATION
        assert kernel.launch is not None
        assert "among 2 ranks" in kernel.launch.shapes
        sent[kernel.launch.operator.removeprefix("nccl::"), kernel.bytes_moved or 0.0] += (
            kernel.count
        )

    half = _FP32 * _TOKENS * _HIDDEN / 2
    # Of a layer two each way, of the head and of tokens and places one.
    assert sent["_allgather_base", half] == 2 * 2 * _LAYERS + 2
    assert sent["_reduce_scatter_base", half] == 2 * 2 * _LAYERS + 2
    assert sent["_allgather_base", half / 2] == sent["_reduce_scatter_base", half / 2] == 1
    # The loss's, and gradients of norms and of biases that both have.
    assert sent["allreduce", _FP32 * _HIDDEN] > 4 * _LAYERS
    assert set(sent) == {
        *((name, part) for name in ("_allgather_base", "_reduce_scatter_base")
          for part in (half, half / 2)),
        ("allreduce", _FP32 * _HIDDEN),
    }  # fmt: skip


def test_products_are_those_of_one_rank_and_nothing_that_has_no_work_is_listed(
    steps: list[Step],
) -> None:
    step = steps[0]
    flops = sum(
        k.count * (k.flops or 0.0) for k in step.kernels if " mm" in k.name or "addmm" in k.name
    )
    matrices = _LAYERS * 12 * _HIDDEN**2 + _HIDDEN * _VOCABULARY
    assert flops == 6 * matrices * _TOKENS / 2
    names = " ".join(kernel.name for kernel in step.kernels)
    assert "wait_tensor" not in names
    assert "_wrap_tensor" not in names
