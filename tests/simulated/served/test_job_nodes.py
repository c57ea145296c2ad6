"""A job's plan held on two machines: a rank on each, under its own `underclock run`."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import job_kills
from free_time import free_s
from made_jobs import job, slow_forwards
from underclock.hw.base import SystemClock
from underclock.hw.nvml_calls import SIMULATOR
from underclock.records.runs import EventLine
from underclock.runtime.controller.log import read_log
from underclock.runtime.undo.ownership import RUNTIME_DIR
from underclock.store import write_document
from underclock.testing import Control, served_gpus

# Marks iterations at the times of the plan until its parent ends, without PyTorch.
_RANK = (
    "import os, sys, job_kills_work; sys.argv += ['0', str(os.getppid())]; job_kills_work.rank()"
)
_CLOCK, _STUDIES = SystemClock(), str(Path(job_kills.__file__).parent)


class Nodes:
    """Two machines of one rank each, on one host; runs and GPUs are each one's own."""

    def __init__(self, folder: Path, control: Control) -> None:
        self.control, self.folder = control, folder
        write_document(
            folder / "job.plan.json", slow_forwards(job(transfer_s=(1e-3,), unit_s=0.01))
        )
        leader = _free_port()
        self.runs = [self._run(rank, leader) for rank in (1, 0)][::-1]

    def _run(self, rank: int, leader: int) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "2",
            "PYTHONPATH": os.pathsep.join([_STUDIES, os.environ.get("PYTHONPATH", "")]),
            RUNTIME_DIR: str(self.folder / f"node{rank}"),
            SIMULATOR: str(self.folder / "s"),
        }
        underclock = [sys.executable, "-m", "underclock", "run", "job.plan.json"]
        underclock += ["--gpu", f"nvml:{rank}", "--first-rank", str(rank)]
        underclock += ["--leader", f"127.0.0.1:{leader}", "--guard", "0", "--log", f"{rank}.jsonl"]
        training = [sys.executable, "-P", "-c", _RANK]
        with (self.folder / f"{rank}.err").open("wb") as said:
            return subprocess.Popen(
                [*underclock, "--", *training], cwd=self.folder, env=environment, stderr=said
            )

    @property
    def clocks_are_set(self) -> list[bool]:
        """Whether anything is set, on each GPU."""
        truths = [self.control.truth(rank) for rank in range(2)]
        return [(each["core_lock"], each["limit_w"]) != (None, 350.0) for each in truths]

    def events(self, rank: int) -> list[str]:
        log = self.folder / f"{rank}.jsonl"
        lines = read_log(log) if log.exists() else ()
        return [each.text for each in lines if isinstance(each, EventLine)]

    def said(self) -> str:
        return "".join((self.folder / f"{rank}.err").read_text() for rank in range(2))

    def controller(self, rank: int) -> int:
        """Return the pid of the controller of a machine."""
        run = self.runs[rank].pid
        children = Path(f"/proc/{run}/task/{run}/children").read_text().split()
        named = [p for p in children if b"controller" in Path(f"/proc/{p}/cmdline").read_bytes()]
        return int(named[0])


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        stack.enter_context(served_gpus("rtx3080ti", tmp_path / "s", count=2))
        monkeypatch.setenv(SIMULATOR, str(tmp_path / "s"))
        yield stack


def _nodes(started: ExitStack, folder: Path) -> Nodes:
    nodes = Nodes(folder, started.enter_context(Control(str(folder / "s"))))
    for each in nodes.runs:
        started.callback(each.wait)
        started.callback(each.terminate)
    return nodes


def _waited_s(nodes: Nodes, until: Callable[[], bool], most_s: float = 60.0) -> float:
    began_s = free_s()
    while not until():
        waited_s = free_s() - began_s
        assert waited_s < most_s, (nodes.events(0), nodes.events(1), nodes.said())
        _CLOCK.sleep_s(2e-3)
    return free_s() - began_s


@pytest.mark.slow
def test_two_machines_hold_a_plan_together_until_the_one_that_decides_is_killed(
    started: ExitStack, tmp_path: Path
) -> None:
    nodes = _nodes(started, tmp_path)
    # Clocks are set, and given back, before anything is held as well.
    _waited_s(nodes, lambda: all("has armed" in str(nodes.events(rank)) for rank in range(2)))
    _waited_s(nodes, lambda: all(nodes.clocks_are_set))
    os.kill(nodes.controller(0), signal.SIGKILL)
    assert _waited_s(nodes, lambda: not any(nodes.clocks_are_set), 5.0) < 5.0
    _CLOCK.sleep_s(0.5)
    assert nodes.clocks_are_set == [False, False]  # for good, though training goes on
    assert [each.poll() for each in nodes.runs] == [None, None]
    assert any(" is lost: " in words for words in nodes.events(1))
    orders = [words for rank in range(2) for words in nodes.events(rank) if "has armed" in words]
    assert len(orders) == 2
    assert len({words.rpartition("order 1: ")[2] for words in orders}) == 1
    assert "from iteration" in orders[0]
