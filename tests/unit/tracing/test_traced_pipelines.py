"""PyTorch's pipeline schedules, run by two ranks on the CPU with gloo, as jobs of their traces."""

import os
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipelined_training import BACKWARD_S, FORWARD_S
from traced_ranks import durations_s
from underclock.core.job.network import network_of
from underclock.core.tracing.job_traces import traced_job
from underclock.records import Step
from underclock.records.job import Job
from underclock.store import read_document
from underclock.tracing import job_files

pytestmark = pytest.mark.slow

_TESTS = Path(__file__).parents[2]
_ORDERS = {
    "GPipe": ["f0 f1 f2 f3 b0 b1 b2 b3", "f0 f1 f2 f3 b0 b1 b2 b3"],
    "1F1B": ["f0 f1 b0 f2 b1 f3 b2 b3", "f0 b0 f1 b1 f2 b2 f3 b3"],
    "Interleaved1F1B": [
        "f0 f1 f0' f1' f2 b0' f3 b1' f2' b0 f3' b1 b2' b3' b2 b3",
        "f0 f1 f0' b0' f1' b1' f2 b0 f3 b1 f2' b2' f3' b3' b2 b3",
    ],
    "InterleavedZeroBubble": [
        "f0 f1 f0' f1' b0' w0' f2 b1' w1' f3 b0 w0 f2' b1 w1 f3' b2' w2' b3' w3' b2 w2 b3 w3",
        "f0 f1 f0' b0' f1' b1' w0' f2 b0 w1' f3 b1 w0 f2' b2' w1 f3' b3' w2' b2 w3' b3 w2 w3",
    ],
    "ZBVZeroBubble": [
        "f0 f1 f2 f0' b0' w0' f1' b1' w1' f3 b0 w0 f2' b2' w2' b1 w1 f3' b3' w3' b2 w2 b3 w3",
        "f0 f0' f1 f1' b0' w0' f2 b0 w0 f2' b1' w1' f3 b1 w1 f3' b2' w2' b2 b3' b3 w2 w3' w3",
    ],
}
"""As the schedules of torch 2.13 run them: a prime is the second chunk of a rank."""
_NAMES = ["GPipe", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "1F1B"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where two ranks left the traces of all schedules; the last one's by the command."""
    folder = tmp_path_factory.mktemp("traces")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "underclock", "trace", str(_TESTS / "pipelined_training.py"), "--assume"]
    command += ["-o", str(folder / "1F1B.json"), "--", str(folder), *_NAMES]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(_TESTS)}
    done = subprocess.run(
        command, check=False, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def _job(folder: Path, name: str) -> Job:
    return job_files.job_of_traces(sorted(folder.glob(f"{name}.rank*{job_files.SUFFIX}")))


def _order(job: Job) -> list[str]:
    return [
        " ".join(
            f"{each.kind[0]}{each.microbatch}{chr(39) * each.chunk}"
            for each in rank.instructions
            if each.microbatch is not None
        )
        for rank in job.ranks
    ]


@pytest.mark.parametrize("name", _NAMES)
def test_instructions_are_those_of_the_schedule(folder: Path, name: str) -> None:
    job = _job(folder, name)
    assert _order(job) == _ORDERS[name]
    assert [rank.stage for rank in job.ranks] == [0, 1]
    assert job.microbatches == 4
    assert all(each.stream == 0 for rank in job.ranks for each in rank.instructions)


@pytest.mark.parametrize("name", ["GPipe", "1F1B"])
def test_instructions_take_what_stages_take(folder: Path, name: str) -> None:
    profiles = _job(folder, name).profiles
    for stage in (0, 1):
        forward, backward = (
            profiles[f"stage {stage} {kind}"].rows[0].time_s for kind in ("forward", "backward")
        )
        assert forward == pytest.approx(FORWARD_S, rel=0.3)
        assert backward == pytest.approx(BACKWARD_S, rel=0.3)


def test_the_iteration_takes_what_it_took(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    took_s = []

    def noting(*given: object, **options: object) -> tuple[Job, float]:
        job, seconds = traced_job(*given, **options)  # type: ignore[arg-type]
        took_s.append(seconds)
        return job, seconds

    monkeypatch.setattr(job_files, "traced_job", noting)
    laid_s = [_iteration_s(_job(folder, name)) for name in _NAMES]
    ratios = np.array(laid_s) / took_s
    # A loaded machine delays a host now and then, which medians of instructions leave out: on an
    # idle one all are within a few per cent, on one with three times its cores' load most are.
    assert statistics.median(ratios) == pytest.approx(1.0, abs=0.15)
    assert max(ratios) < 1.1


def _iteration_s(job: Job) -> float:
    return float(network_of(job).iteration_s(durations_s(job)))


def test_a_slower_last_stage_keeps_its_neighbour_waiting(folder: Path) -> None:
    job = _job(folder, "1F1B")
    network, taken_s = network_of(job), durations_s(job)
    slower_s = np.where(network.rank == 1, 1.5, 1.0) * taken_s
    assert network.blocked_s(slower_s)[0] > 1.5 * network.blocked_s(taken_s)[0]


def test_every_rank_has_its_step_too(folder: Path) -> None:
    steps = [read_document(folder / f"1F1B.rank{rank}.json", Step) for rank in (0, 1)]
    assert all(step.is_assumed and step.order for step in steps)
