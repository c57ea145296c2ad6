"""A job's plan held while ranks train, and kills of who holds it."""

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import job_kills
from kills import served
from launched import TWO_RANKS
from made_jobs import job, slow_forwards
from underclock.errors import DataError, UsageError
from underclock.hw.nvml_calls import SIMULATOR
from underclock.records import GpuInfo
from underclock.records.job import JobPlan
from underclock.records.runs import AskLine, EventLine, StepLine
from underclock.runtime.controller.log import read_log
from underclock.runtime.holding.run import HowToRun, Ran, run
from underclock.runtime.undo.ownership import RUNTIME_DIR
from underclock.store import write_document
from underclock.testing import Control, served_gpus

_TESTS = Path(__file__).parents[2]
_SLOW_MHZ = 1500


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path / "runs"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # else torchrun says that it sets it
    return tmp_path / "runs"


@pytest.fixture
def control(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Control]:
    del folder
    path = tmp_path / "s"
    with served_gpus("rtx3080ti", path, count=4), Control(str(path)) as made:
        monkeypatch.setenv(SIMULATOR, str(path))
        yield made


def _plan(data: int = 1, unit_s: float = 0.02) -> JobPlan:
    return slow_forwards(job(data=data, transfer_s=(1e-3,), reduce_s=2e-3, unit_s=unit_s))


def _as_found(control: Control, ranks: int = 4) -> bool:
    return all(
        (truth["core_lock"], truth["limit_w"]) == (None, 350.0)
        for truth in map(control.truth, range(ranks))
    )


def _events(log: Path) -> list[str]:
    return [line.text for line in read_log(log) if isinstance(line, EventLine)]


@pytest.mark.slow
def test_each_rank_is_held_by_its_part_and_given_back(control: Control, tmp_path: Path) -> None:
    log, plan = tmp_path / "log.jsonl", tmp_path / "job.plan.json"
    write_document(plan, _plan(unit_s=0.01))
    told: list[str] = []
    ran = run(
        plan,
        [*TWO_RANKS, str(_TESTS / "pipelined.py"), "32"],
        HowToRun(window=8, log=log, tell=told.append),
    )

    assert (ran.code, ran.why) == (0, "the training process ended")
    assert _as_found(control)
    (line,) = [words for words in told if "; clocks were" in words]
    assert "than its iterations at auto before, warm-up left out" in line
    assert line.endswith("kWh drawn; clocks were given back")
    assert not [words for words in told if "held no more" in words]
    lines = read_log(log)
    asked = {rank: set[int | None]() for rank in range(2)}
    for each in lines:
        if isinstance(each, AskLine):
            asked[each.gpu].add(each.to_mhz)
    assert {_SLOW_MHZ, 1755} <= asked[0] & asked[1]
    held = [each for each in lines if isinstance(each, StepLine) and each.arm == "plan"]
    assert {each.gpu for each in held} == {0, 1}
    assert any("order 1: steps are as promised" in words for words in _events(log))


def _refused(plan: JobPlan, how: HowToRun) -> Ran:
    return run(plan, [sys.executable, "-c", "raise SystemExit(9)"], how)


@pytest.mark.parametrize(
    ("plan", "how", "error", "reason"),
    [
        (_plan(), HowToRun(arms="auto,plan"), UsageError, "ranks of a job are held together"),
        (_plan(), HowToRun(gpus=("nvml:0",)), UsageError, "has 2 ranks and 1 GPUs are named"),
        (_plan(), HowToRun(gpus=("nvml:1", "nvml:1")), UsageError, "named twice"),
        (
            _plan(),
            HowToRun(gpus=("nvml:0",), first_rank=2, leader="node0:1"),
            UsageError,
            "1 GPUs are named, for ranks 2 to 2",
        ),
        (
            _plan(),
            HowToRun(gpus=("nvml:0",), leader="node0"),
            UsageError,
            "'node0' is no host and port",
        ),
        (_plan(data=3), HowToRun(), UsageError, "the job has 6 ranks and 4 GPUs"),
        (
            msgspec.structs.replace(_plan(), job=job(gpu=GpuInfo(name="A100"), transfer_s=(1e-3,))),
            HowToRun(),
            DataError,
            "rank 0 is planned for A100, and its GPU is RTX 3080 Ti",
        ),
    ],
)
def test_what_no_rank_can_hold_is_refused_before_anything_runs(
    plan: JobPlan, how: HowToRun, error: type[Exception], reason: str, control: Control
) -> None:
    with pytest.raises(error, match=reason):
        _refused(plan, how)
    assert _as_found(control)
    folder = Path(os.environ[RUNTIME_DIR])
    assert not folder.exists() or not [*folder.glob("run-*")]


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[job_kills.Rig]:
    studies = str(Path(job_kills.__file__).parent)
    paths = [studies, os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    for name in (SIMULATOR, RUNTIME_DIR):  # which the rig sets, and pytest puts back
        monkeypatch.setenv(name, "")
    with served(tmp_path, job_kills.RANKS):
        yield job_kills.Rig(tmp_path)


@pytest.mark.slow
def test_whoever_of_a_job_is_killed_every_gpu_is_as_found(rig: job_kills.Rig) -> None:
    draw = random.Random(3)  # noqa: S311 - which kill comes next
    kills = [job_kills.kill_once(rig, draw, (job_kills.R,))]
    orders = [line.text for line in read_log(rig.log) if isinstance(line, EventLine)]
    # Its launcher ends the other ranks only later; clocks do not wait for that.
    (order,) = [words for words in orders if words.startswith("order 2")]
    assert "the training process ended; from now on: auto on all ranks" in order
    kills.append(job_kills.kill_once(rig, draw))
    assert all(kill.good for kill in kills), kills
    assert kills[0].was_set
    said = job_kills.summary(kills)
    assert "Every GPU as found: **2 of 2**" in said
    assert len(job_kills.rows(kills).splitlines()) == 2 + len({kill.who for kill in kills})
