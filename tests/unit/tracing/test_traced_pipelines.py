"""PyTorch's pipeline schedules, run by two ranks on the CPU with gloo, as jobs of their traces."""

import gzip
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from traced_ranks import BACKWARD_S, FORWARD_S, durations_s
from underclock.core.job.network import network_of
from underclock.core.tracing.job_traces import traced_job
from underclock.core.tracing.rank_trace import rank_trace
from underclock.records.job import Job
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
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, "-m", "underclock", "trace", "--assume"]
    command += ["-o", str(folder / "1F1B.json"), "--", *torchrun]
    command += [str(_TESTS / "pipelined_training.py"), str(folder), *_NAMES]
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
        for kind, pause_s in (("forward", FORWARD_S), ("backward", BACKWARD_S)):
            taken_s = profiles[f"stage {stage} {kind}"].rows[0].time_s
            assert 0.99 * pause_s < taken_s < 2.0 * pause_s  # on an idle machine 1.05


def test_the_iteration_takes_what_it_took(folder: Path) -> None:
    as_seen, by_medians = [], []
    for name in _NAMES:
        files = sorted(folder.glob(f"{name}.rank*{job_files.SUFFIX}"))
        traces = [
            rank_trace(json.loads(gzip.decompress(file.read_bytes())), file.name) for file in files
        ]
        job, took_s = traced_job(traces, workload=name)
        network = network_of(job)
        seen_s = [
            piece.ends_s - piece.begins_s
            if piece.microbatch is not None
            else sum(ends_s - begins_s for begins_s, ends_s in piece.work)
            for trace in traces
            for piece in trace.steps[0].pieces
        ]
        as_seen.append(float(network.iteration_s(np.array(seen_s))) / took_s)
        by_medians.append(float(network.iteration_s(durations_s(job))) / took_s)
    # What ranks waited for is all that the network has them wait for: it is never later than they
    # were. A loaded machine delays hosts between their passes too, and scatters what these take.
    assert max(as_seen) < 1.01
    assert statistics.median(as_seen) > 0.85
    assert statistics.median(by_medians) == pytest.approx(1.0, abs=0.15)
