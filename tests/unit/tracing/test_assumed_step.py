"""Steps traced without a GPU, by PyTorch on the CPU: alone, and by two ranks with gloo."""

import gzip
import json
import os
import statistics
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from launched import TWO_RANKS
from recorded import read
from traced_ranks import BACKWARD_S, FORWARD_S, durations_s
from underclock.app import main
from underclock.core.job.network import network_of
from underclock.core.tracing.job_traces import traced_job
from underclock.core.tracing.names import flops_of
from underclock.core.tracing.rank_trace import rank_trace
from underclock.records import Kind, Step
from underclock.records.job import Job
from underclock.records.work import module_calls
from underclock.runtime.trainer.sites import sites_of
from underclock.store import read_document
from underclock.tracing import job_files
from underclock.tracing.held import trace
from underclock.tracing.source import StepFile, load_step

pytestmark = pytest.mark.slow

_ROOT = Path(__file__).parents[3]
_SCRIPT = """
import sys
import torch
sys.path.insert(0, {tests!r})
from small_training import Model, batches

torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = batches()

def step():
    x, y = next(data)
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()

if __name__ == "__main__":
    for _ in range(int(sys.argv[1])):
        step()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(_SCRIPT.format(tests=str(_ROOT / "tests")))
    return path


def _launches(step: Step) -> list[tuple[str, str]]:
    launches = [step.kernels[index].launch for index in step.order]
    return [(each.operator, each.shapes) for each in launches if each]


def test_a_gpt_step_has_the_products_that_an_h200_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(_ROOT / "studies" / "zoo"))
    recorded = read(_ROOT / "tests" / "data" / "traces" / "tiny.json.gz")

    tiny = load_step(f"{_ROOT / 'studies/zoo/gpt.py'}:tiny")
    gpt = sys.modules["gpt"]
    monkeypatch.setattr(
        gpt, "TINY", replace(gpt.TINY, dtype=torch.float32)
    )  # CPUs are slow in bf16
    step = trace(tiny, assume=True)

    def products(some: list[tuple[str, str, str]]) -> Counter[tuple[str, str, str]]:
        return Counter(each for each in some if flops_of(*each[:2]))

    assumed = [
        (*launch, str(step.kernels[index].pass_))
        for launch, index in zip(_launches(step), step.order, strict=True)
    ]
    seen = [
        (one.operator, one.shapes.replace("bf16", "fp32"), str(one.pass_)) for one in recorded.seen
    ]
    assert products(assumed) == products(seen)
    flops = sum(each.count * (each.flops or 0) for each in step.kernels if each.kind is Kind.GEMM)
    assert flops == sum(flops_of(*each[:2]) or 0 for each in seen)
    for operator in ("native_layer_norm", "_softmax", "gelu", "gelu_backward", "_fused_adamw_"):
        ran = {(kind, shapes) for kind, shapes, _ in seen if kind == f"aten::{operator}"}
        assert {name for name, _ in ran} <= {name for name, _, _ in assumed}


def test_a_function_is_left_as_it_was(script: Path) -> None:
    function = load_step(f"{script}:step")
    loaded = sys.modules["train"]
    before, drawn = [each.clone() for each in loaded.model.parameters()], torch.get_rng_state()

    step = trace(function, assume=True)

    assert step.is_assumed
    assert not loaded.optimizer.state
    assert all(group["foreach"] is None for group in loaded.optimizer.param_groups)
    for weight, kept in zip(loaded.model.parameters(), before, strict=True):
        assert weight.grad is None
        assert torch.equal(weight, kept)
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_script_and_its_function_are_one_step_whose_modules_can_be_marked(
    script: Path,
) -> None:
    main(["trace", str(script), "--assume", "-o", "script.json", "--", "4"])
    main(["trace", f"{script}:step", "--assume", "-o", "function.json"])

    of_script = read_document(Path("script.json"), Step)
    of_function = read_document(Path("function.json"), Step)
    assert _launches(of_script) == _launches(of_function)
    assert of_script.modules == of_function.modules
    assert module_calls(of_script.modules[3]) is not None
    paths = {
        place.path
        for place in sites_of(
            of_script.modules, [of_script.kernels[index].pass_ for index in of_script.order]
        )
    }
    assert {"blocks.0", "blocks.1", "blocks.2"} <= {
        path.rpartition(".up")[0] or path for path in paths
    }


_SERVED = """
import torch

steps = 0
weight = torch.ones(8, 8)

def decode(batch=2, context=4):
    global steps
    steps += 1
    torch.ones(batch, context) @ torch.ones(context, 8) @ weight
"""


def test_a_function_is_traced_at_several_sizes_and_run_again_at_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("serve.py").write_text(_SERVED)
    main(
        [
            "trace",
            "serve.py:decode",
            "--assume",
            "--grid",
            "batch=1,2",
            "context=1k,4",
            "-o",
            "family",
        ]
    )

    names = ["decode-b1-c1024", "decode-b1-c4", "decode-b2-c1024", "decode-b2-c4"]
    assert sorted(path.stem for path in Path("family").iterdir()) == names
    steps = [read_document(Path(f"family/{name}.json"), Step) for name in names]
    assert [step.name for step in steps] == names
    shapes = [sorted(shapes for _, shapes in _launches(step)) for step in steps]
    assert len({tuple(each) for each in shapes}) == len(names)
    source = steps[0].source
    assert source is not None
    assert str(source) == "../serve.py:decode --size batch=1 --size context=1024"
    assert "kernels run at more than one of these sizes" in capsys.readouterr().out

    again = StepFile(folder=tmp_path / "family", named="serve.py:decode").load(source)
    assert callable(again)
    seen = trace(again, assume=True)
    assert (seen.name, seen.kernels) == (steps[0].name, steps[0].kernels)
    assert sys.modules["serve"].steps == 0, "what the function counts is as it was"


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
    command = [sys.executable, "-m", "underclock", "trace", "--assume"]
    command += ["-o", str(folder / "1F1B.json"), "--", *TWO_RANKS]
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
