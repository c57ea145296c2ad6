"""Training commands as people write them, looked at as they run: on CPUs, over gloo."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from free_time import free_s
from launched import TORCHRUN, TWO_RANKS
from underclock.app import launching
from underclock.app.looking import TraceRequest
from underclock.errors import UsageError
from underclock.records import Pass, Step
from underclock.store import read_document
from underclock.tracing.source import TrainingCommand

pytest.importorskip("torch")

pytestmark = pytest.mark.slow

_ALONE = """
import atexit, os, signal, sys, threading, time
import torch
kind = sys.argv[1]
torch.set_num_threads(1)
assert threading.current_thread() is threading.main_thread()
assert sys.modules["__main__"].__file__.endswith("train.py"), "it is the main module"
assert "UNDERCLOCK_LOOK" in os.environ
signal.signal(signal.SIGUSR1, lambda *_: None)  # may be done in the main thread alone
atexit.register(lambda: open("at-exit", "w").close())
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
other = torch.nn.Linear(16, 16)
optimizer = torch.optim.AdamW(model.parameters())
second = torch.optim.SGD(other.parameters(), lr=0.1)

def loss():
    return other(model(torch.randn(8, 16))).square().mean()

def steps():
    try:
        for step in range(int(sys.argv[2])):
            if kind == "catches" and step == 1:
                raise ValueError("no such batch")
            if kind == "waits" and step == 1:
                time.sleep(1000)
            for _ in range(3 if kind == "thread" else 1):
                try:
                    loss().backward()
                except:  # which must not keep it going
                    continue
            optimizer.step()
            second.step()
            optimizer.zero_grad()
            open("last.pt", "w").write(str(step))
    finally:
        open("finally", "w").close()

if kind == "thread":
    trains = threading.Thread(target=steps)
    trains.start()
    trains.join()
elif kind == "catches":
    try:
        steps()
    except Exception as exc:
        print(exc)
        sys.exit(4)
else:
    steps()
sys.exit(3)
"""
_TOGETHER = """
import os, signal, sys, time
import torch
from torch import distributed, nn
torch.set_num_threads(1)
kind, *also = sys.argv[1].split("-")

def train(rank=None):
    options = {} if rank is None else {"init_method": "file://" + os.path.abspath("met")}
    if rank is not None:
        options |= {"rank": rank, "world_size": 2}
    distributed.init_process_group("gloo", **options)
    rank = distributed.get_rank()
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    mesh = distributed.init_device_mesh("cpu", (2,))
    forward = lambda: model(torch.randn(8, 16)).square().mean().backward()
    if kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard
        fully_shard(model, mesh=mesh)
    elif kind == "tp":
        from torch.distributed.tensor import parallel
        plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
        parallel.parallelize_module(model, mesh, plan)
    elif kind == "pipeline":
        from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
        model = nn.Linear(16, 16)
        stage = PipelineStage(model, rank, 2, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, 2, loss_fn=lambda out, _: out.square().mean())
        given = {"target": torch.zeros(8, 16)} if rank else {}
        forward = lambda: schedule.step(*[torch.randn(8, 16)][rank:], **given)
    else:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    try:
        for step in range(100000):
            if rank == 1 and step == (2 if "later" in also else 1):
                if kind == "raises":
                    raise ValueError("no such batch")
                if kind == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                if kind == "stopped":
                    os.kill(os.getpid(), signal.SIGSTOP)
                if kind == "late":
                    time.sleep(10)
            forward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        distributed.destroy_process_group()

if __name__ == "__main__":
    if "spawned" in also:
        torch.multiprocessing.spawn(train, (), 2)
    else:
        train()
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(_ALONE)
    Path("ranks.py").write_text(_TOGETHER)
    Path("last.pt").write_text("step 90000")


def trace(*command: str) -> subprocess.CompletedProcess[str]:
    """Trace a command, and see that nothing of it is left."""
    ours = [sys.executable, "-m", "underclock", "trace", "--assume", "-o", "step.json", "--"]
    done = subprocess.run(
        [*ours, *command],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert not processes_of(*command[-2:])
    assert Path("last.pt").read_text() == "step 90000"
    return done


def processes_of(*words: str) -> list[str]:
    """Return the processes in this folder whose command lines end so."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdecimal() or (entry / "cwd").readlink() != Path.cwd():
                continue
            line = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if tuple(line[-1 - len(words) : -1]) == words:
            found.append(entry.name)
    return found


def test_a_script_that_trains_in_a_thread_is_traced_as_it_runs_by_itself() -> None:
    done = trace(sys.executable, "train.py", "thread", "1000")

    assert done.returncode == 0, done.stderr
    step = read_document(Path("step.json"), Step)
    backward = sum(k.count for k in step.kernels if k.pass_ is Pass.BACKWARD and "mm" in k.name)
    # Products of three backward passes, whose gradients are summed: of three weights, two inputs.
    assert backward == 5 * 3
    assert not Path("finally").exists()
    assert not Path("at-exit").exists()
    assert f"running {sys.executable} train.py thread 1000 for real" in done.stderr
    assert "put back as it was: " in done.stderr


def test_a_script_that_does_not_come_so_far_is_a_sentence() -> None:
    done = trace(sys.executable, "train.py", "catches", "9")

    assert done.returncode == 5
    assert "ended with exit code 4 in step 1: ValueError: no such batch, at" in done.stderr
    assert not Path("step.json").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_ends_the_launcher_ends_the_command(number: signal.Signals) -> None:
    words = ("train.py", "waits", "9")
    command = [sys.executable, "-m", "underclock", "trace", "--assume", "--"]
    with subprocess.Popen([*command, sys.executable, *words], stderr=subprocess.DEVNULL) as tracing:
        deadline_s = time.monotonic() + 60.0
        while not Path("last.pt").with_name("last.pt.underclock-kept").exists():
            assert time.monotonic() < deadline_s
            threading.Event().wait(0.1)
        tracing.send_signal(number)
        asked_s = free_s()
        tracing.wait(60.0)
    while processes_of(*words):
        assert free_s() < asked_s + 5.0
        threading.Event().wait(0.1)
    # A SIGKILL leaves the file that was set aside.
    assert number == signal.SIGKILL or Path("last.pt").read_text() == "step 90000"


def look_at(folder: Path, words: tuple[str, ...] = ()) -> TraceRequest:
    return TraceRequest(folder=str(folder), name="sh", latest=20, measure=words, cwd=".")


@pytest.mark.parametrize("kind", ["fsdp2", "tp", "ddp", "late-spawned"])
def test_ranks_are_looked_at_in_the_same_step(kind: str) -> None:
    launcher = TORCHRUN if kind == "ddp" else TWO_RANKS
    done = trace(*([sys.executable] if "spawned" in kind else launcher), "ranks.py", kind)

    assert done.returncode == 0, done.stderr
    steps = [read_document(Path(f"step.rank{rank}.json"), Step) for rank in (0, 1)]
    sent = {
        (kernel.launch.operator, kernel.bytes_moved)
        for kernel in steps[0].kernels
        if kernel.pass_ is Pass.COMMUNICATION and kernel.launch
    }
    assert sent, "collectives are in it"
    weights = 4 * (16 * 32 + 32 + 32 * 16 + 16)  # bytes; a rank has and sends half of them
    assert kind != "fsdp2" or sent == {
        ("nccl::_allgather_base", weights / 2),
        ("nccl::_reduce_scatter_base", weights / 2),
    }
    assert steps[0].kernels == steps[1].kernels
    assert "2 ranks: step.rank0.json, step.rank1.json" in done.stdout


def test_ranks_of_a_pipeline_have_steps_of_their_own() -> None:
    done = trace(*TWO_RANKS, "ranks.py", "pipeline")

    assert done.returncode == 0, done.stderr
    first, last = (read_document(Path(f"step.rank{rank}.json"), Step) for rank in (0, 1))
    assert "mean" in " ".join(kernel.name for kernel in last.kernels), "the loss is in it"
    assert "mean" not in " ".join(kernel.name for kernel in first.kernels)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("raises-later", "rank 1 of 2: ranks failed in step 2: ValueError: no such batch"),
        ("killed", "ended in step 1 before it was looked at"),
        ("stopped", "was stopped in step 1 before it was looked at"),
    ],
)
def test_a_rank_that_cannot_go_on_ends_all_and_is_named(kind: str, words: str) -> None:
    done = trace(*TWO_RANKS, "ranks.py", kind)

    assert done.returncode == 5
    assert words in done.stderr
    assert "rank 1 of 2" in done.stderr


@pytest.mark.parametrize("rank", ["", "RANK=0 WORLD_SIZE=2 "])
def test_what_does_not_train_is_said_and_how_to_name_a_step(
    monkeypatch: pytest.MonkeyPatch, rank: str
) -> None:
    """A server; also where a launcher started it as a rank."""
    monkeypatch.setattr(launching, "_SAY_S", 1.0)
    monkeypatch.setattr(launching, "_NO_STEP_S", 2.0)
    monkeypatch.setattr(launching, "_NEXT_STEP_S", 2.0)
    serves = f"{rank}{sys.executable} -c 'import time; time.sleep(60)'"
    said: list[str] = []
    command = TrainingCommand.of(["sh", "-c", serves])
    with launching.looking_folder() as folder, pytest.raises(UsageError) as caught:
        launching.looked_at(command, look_at(folder), say=said.append)
    assert "took no step of training in 2" in str(caught.value)
    assert "underclock.step()" in caught.value.hint
    assert said == [f"no step of training was seen in 1 s; {caught.value.hint}"]


@pytest.mark.parametrize("measures", [True, False])
def test_only_what_measures_is_asked_to_end_for_it_may_have_locked_clocks(
    monkeypatch: pytest.MonkeyPatch, *, measures: bool
) -> None:
    waits = "trap 'touch asked; exit' TERM; sleep 60 & wait"
    monkeypatch.setattr(launching, "_NO_STEP_S", 2.0)
    words = ("step.json",) if measures else ()
    command, said = TrainingCommand.of(["sh", "-c", waits]), list[str]()
    with launching.looking_folder() as folder, pytest.raises(UsageError, match="took no step"):
        launching.looked_at(command, look_at(folder, words), say=said.append)
    assert Path("asked").exists() is measures


@pytest.mark.parametrize("needs", ["import time", "import torch"])
def test_a_step_without_pytorch_is_a_sentence_that_says_how_to_install_it(needs: str) -> None:
    Path("torch").mkdir()
    Path("torch/__init__.py").write_text('raise ImportError("no", name="torch")\n')
    Path("t.py").write_text(f"{needs}\ndef step():\n    pass\n")
    done = subprocess.run(
        [sys.executable, "-m", "underclock", "trace", "t.py:step", "-o", "step.json"],
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "pip install 'torch>=2.8'" in done.stderr
    assert done.returncode not in {0, 1}
