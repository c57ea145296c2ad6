"""Steps of two ranks on the first two GPUs of this machine, as torchrun starts them.

Deselected unless asked for: `make gpu`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from underclock.records import Pass, Step
from underclock.store import read_document, read_samples

torch = pytest.importorskip("torch")
if torch.cuda.device_count() < 2:
    pytest.skip("PyTorch sees less than two GPUs", allow_module_level=True)

pytestmark = pytest.mark.gpu

ZOO = Path(__file__).parents[2] / "studies" / "zoo"
RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def _on_ranks(*words: str) -> None:
    subprocess.run(
        [sys.executable, *RANKS, "-m", "underclock", *words],
        env=os.environ | {"NCCL_NVLS_ENABLE": "0"},
        check=True,
        timeout=240,
    )


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_every_rank_traces_its_own_gpu(name: str, tmp_path: Path) -> None:
    _on_ranks("trace", f"{ZOO}/parallel.py:{name}", "-o", str(tmp_path / "step.json"))
    steps = [read_document(tmp_path / f"step.rank{rank}.json", Step) for rank in (0, 1)]

    for step in steps:
        assert {*Pass} - {Pass.OTHER} <= {kernel.pass_ for kernel in step.kernels}
    assert len(steps[0].order) == len(steps[1].order)


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_ranks_measure_their_step_in_lockstep(name: str, tmp_path: Path) -> None:
    source, step = f"{ZOO}/parallel.py:{name}", str(tmp_path / "step.json")
    _on_ranks("trace", source, "-o", step)
    brief = ("--core-mhz", "auto", "--window", "0.1s,0.3s", "--source", source)
    samples = tmp_path / "samples.db"
    _on_ranks("measure", step, "--gpu", "nvml:0", "-o", str(samples), *brief)
    found = read_samples(samples)

    (whole,) = found.in_situ
    assert whole.energy_j > 0
    if name == "fsdp":  # captured whole
        alone_s = {sample.kernel: sample.time_s for sample in found.samples}
        assert alone_s.keys() == {kernel.name for kernel in found.kernels}
        beside_s = sum(
            alone_s[k.name] * k.count for k in found.kernels if k.pass_ is Pass.COMMUNICATION
        )
        all_s = sum(alone_s[k.name] * k.count for k in found.kernels)
        assert all_s - beside_s == pytest.approx(whole.time_s, rel=0.1)
