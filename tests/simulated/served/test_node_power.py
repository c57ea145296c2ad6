"""Watts moved to a replica that its power limit holds down, on served GPUs, and given back."""

import functools
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from made_jobs import job, job_plan
from small_training import plan as plan_of_one
from underclock.errors import NotPermittedError, UnderclockError, UsageError
from underclock.hw.nvml_calls import READ_ONLY, SIMULATOR
from underclock.hw.simulated.device import VirtualGpu
from underclock.records import Plan
from underclock.records.job import JobPlan
from underclock.records.runs import EventLine, StepLine
from underclock.runtime.conductor.log import read_log
from underclock.runtime.holding.run import HowToRun, run
from underclock.runtime.undo.armed import left_behind
from underclock.runtime.undo.ownership import RUNTIME_DIR, named_in
from underclock.store import write_document
from underclock.testing import Control, Served, served_gpus

_TRAINER = Path(__file__).parents[2] / "replicated.py"
_FOUND_W, _BUDGET_W = [350.0, 150.0], 500.0
_Comes = Callable[[Callable[[], bool], float], None]


def _plan(data: int = 2) -> JobPlan:
    """Replicas of one stage at 1620 MHz, and slower plans for those that wait for another."""
    of = job(stages=1, data=data, reduce_s=1e-3, unit_s=0.005)
    return msgspec.structs.replace(job_plan(of, row=5), max_slowdown=0.99, latency_s=4e-3)


class Node:
    """Two GPUs, of which somebody has limited the second to 150 W."""

    def __init__(self, folder: Path, served: Served, control: Control) -> None:
        control.fault("power_limit_changed", _FOUND_W[1], gpu=1)
        self.served, self.control = served, control
        self.runs, self.log, self.plan = folder / "runs", folder / "log", folder / "job.plan.json"
        write_document(self.plan, _plan())
        self.words, self.sums_w = "", list[float]()
        for gpu in served.gpus:
            gpu.limit_power = functools.partial(self._limit, gpu)  # type: ignore[method-assign]

    def _limit(self, gpu: VirtualGpu, limit_w: float) -> None:
        VirtualGpu.limit_power(gpu, limit_w)
        self.sums_w.append(math.fsum(each.limit_w for each in self.served.gpus))

    def limits_w(self) -> list[float]:
        return [self.control.truth(gpu)["limit_w"] for gpu in range(2)]

    def is_clean(self) -> bool:
        locks = [self.control.truth(gpu)["core_lock"] for gpu in range(2)]
        return (self.limits_w(), locks, left_behind(self.runs)) == (_FOUND_W, [None, None], ())

    def events(self) -> list[str]:
        return [line.text for line in read_log(self.log) if isinstance(line, EventLine)]

    def how(self, *, budget_w: float = _BUDGET_W, dry: bool = False) -> HowToRun:
        return HowToRun(window=0, node_power_w=budget_w, log=self.log, dry=dry, tell=self.said)

    def said(self, words: str) -> None:
        self.words = words if words.startswith("power limits") else self.words


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path / "runs"))
    monkeypatch.setenv(SIMULATOR, str(tmp_path / "s"))
    with (
        served_gpus("rtx3080ti", tmp_path / "s", count=2) as served,
        Control(str(tmp_path / "s")) as control,
    ):
        yield Node(tmp_path, served, control)


def _training(iterations: int) -> list[str]:
    return [sys.executable, str(_TRAINER), str(iterations)]


@pytest.mark.slow
def test_a_replica_that_its_limit_holds_down_is_given_watts_once(node: Node) -> None:
    ran = run(node.plan, _training(45), node.how())

    assert ran.code == 0
    assert node.is_clean()
    assert "add up to 500 of 500 W, and ranks could spare 98 W under the plan and " in node.words
    moved = sorted(words for words in node.events() if words.startswith("the power limit"))
    assert moved[0].startswith("the power limit is 225 W from now on: the rest goes to a rank")
    assert moved[1].startswith("the power limit is 275 W from now on: for it holds this rank down")
    assert not [words for words in node.events() if "somebody changed the power limit" in words]
    steps = [each for each in read_log(node.log) if isinstance(each, StepLine) and each.gpu == 1]
    assert steps[-1].time_s < 0.7 * steps[8].time_s
    assert max(node.sums_w) <= _BUDGET_W
    assert node.sums_w[-2:] == [375.0, _BUDGET_W]  # what was raised falls first


@pytest.mark.slow
@pytest.mark.parametrize("who", [(0,), (0, 1)], ids=["the conductor", "and its watcher"])
def test_whoever_is_killed_every_limit_is_as_found(
    node: Node, comes: _Comes, who: tuple[int, ...]
) -> None:
    underclock = [sys.executable, "-m", "underclock", "run", str(node.plan), "--guard", "0"]
    underclock += ["--node-power", "500", "--log", str(node.log), "--", *_training(1000)]
    with subprocess.Popen(underclock, stderr=subprocess.DEVNULL) as held:
        try:
            comes(lambda: node.limits_w() == [225.0, 275.0], 60.0)
            guardians = named_in(next(node.runs.glob("*.lock")))
            for each in who:
                one = guardians[each]
                assert one is not None
                os.kill(one.pid, signal.SIGKILL)
            comes(node.is_clean, 10.0)
            assert held.poll() is None  # training goes on
            assert max(node.sums_w) <= _BUDGET_W
        finally:
            held.terminate()


@pytest.mark.slow
def test_a_dry_run_says_what_it_would_ask_for(node: Node) -> None:
    assert run(node.plan, _training(70), node.how(dry=True)).code == 0
    assert node.is_clean()
    assert node.words.endswith("held down by its limit, other limits would be asked for")
    told = [words for words in node.events() if "the power limit would be" in words]
    giver, receiver = sorted(told, key=lambda words: "holds this" in words)
    would = r"the power limit would be, were this no dry run, (2\d\d) W from now on"
    limits_w = [re.match(would, words) for words in (giver, receiver)]
    # It draws what it does at auto, so that it may seem to need more.
    assert 225.0 <= float(limits_w[0][1]) == _BUDGET_W - float(limits_w[1][1])  # type: ignore[index]
    assert receiver.endswith("for it holds this rank down, and the others wait for that")


@pytest.mark.parametrize(
    ("plan", "budget_w", "reason"),
    [
        (_plan(), 499.0, "share 499 W, and their power limits add up to 500 W already"),
        (job_plan(job(transfer_s=(1e-3,))), 500.0, "the job has one replica"),
        (plan_of_one(launch_s=1e-3), 500.0, "this plan is of one GPU"),
    ],
)
def test_what_cannot_be_moved_is_refused_before_anything_runs(
    node: Node, plan: Plan | JobPlan, budget_w: float, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        run(plan, ["false"], node.how(budget_w=budget_w))
    assert node.is_clean()


@pytest.mark.parametrize("forbids", ["the environment", "the driver"])
def test_where_a_limit_may_not_be_set_the_run_is_refused(
    node: Node, monkeypatch: pytest.MonkeyPatch, forbids: str
) -> None:
    refused: type[UnderclockError] = NotPermittedError
    if forbids == "the driver":
        node.control.fault("permission_revoked")
    else:
        monkeypatch.setenv(READ_ONLY, "1")
    with pytest.raises(refused):
        run(_plan(), _training(1), node.how())
    node.control.heal()
    assert node.is_clean()
