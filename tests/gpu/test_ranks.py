"""Steps of two ranks on the first two GPUs of this machine, as torchrun starts them.

Deselected unless asked for: `make gpu`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from underclock.records import Pass, Step
from underclock.store import read_document

torch = pytest.importorskip("torch")
if torch.cuda.device_count() < 2:
    pytest.skip("PyTorch sees less than two GPUs", allow_module_level=True)

pytestmark = pytest.mark.gpu

ZOO = Path(__file__).parents[2] / "benchmarks" / "zoo"
RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_every_rank_traces_its_own_gpu(name: str, tmp_path: Path) -> None:
    command = (sys.executable, *RANKS, "-m", "underclock", "trace", f"{ZOO}/parallel.py:{name}")
    subprocess.run(
        [*command, "-o", str(tmp_path / "step.json")],
        env=os.environ | {"NCCL_NVLS_ENABLE": "0"},
        check=True,
        timeout=120,
    )
    steps = [read_document(tmp_path / f"step.rank{rank}.json", Step) for rank in (0, 1)]

    for step in steps:
        assert {*Pass} - {Pass.OTHER} <= {kernel.pass_ for kernel in step.kernels}
    assert len(steps[0].order) == len(steps[1].order)
