"""A governor on a served GPU: its clocks are held step by step, and given back by every end."""

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import underclock
from invented import SERVING_PLAN
from kills import Rig
from underclock.errors import DataError, UnderclockError, UsageError
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import SettableNvmlGpu
from underclock.ledger import LEDGER, SavedAgainst, read_runs
from underclock.records import AUTO, Clocks
from underclock.records.serving import ServingPlan
from underclock.runtime.controller.governor import Governor, Note
from underclock.runtime.trainer.notes import LATE, Hook
from underclock.store import write_document
from underclock.units import Domain

Comes = Callable[[Callable[[], bool]], None]
SERVER = """
import sys, time, underclock
with underclock.governor(sys.argv[1], latency="1ms") as governor:
    while True:
        for phase in ("decode", "prefill"):
            governor.begin(phase, 1)
            print(phase, flush=True)
            time.sleep(0.02)
"""


@pytest.fixture
def plan(rig: Rig) -> ServingPlan:
    del rig
    return msgspec.structs.replace(SERVING_PLAN, gpu=NvmlGpu(0).info())


@pytest.fixture
def core(rig: Rig) -> Callable[[], object]:
    gpu = SettableNvmlGpu(rig.uuid)
    return lambda: gpu.read(Domain.CORE)


def test_each_phase_has_its_clocks_and_a_late_request_none(
    plan: ServingPlan,
    core: Callable[[], object],
    rig: Rig,
    comes: Comes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(LEDGER, str(tmp_path / "ledger.jsonl"))
    with underclock.governor(plan, latency="1ms") as governor:
        assert not rig.is_clean() or core() is None  # armed, nothing asked for yet
        governor.begin("decode", 3, 100)
        comes(lambda: core() == (900, 900))
        governor.begin("prefill", 1, 100)
        comes(lambda: core() == (1800, 1800))
        governor.end()
        comes(lambda: core() == (900, 900))
        governor.late()
        comes(lambda: core() is None)
        assert governor.lost == 0
        threading.Event().wait(2.0)  # in which the energy counter climbs

    assert rig.is_clean()
    assert "underclock: governed 2 steps in " in capfd.readouterr().err
    ((run,), _) = read_runs(tmp_path / "ledger.jsonl")
    assert (run.job, run.against, run.gpus[0].untold) == (plan.workload, SavedAgainst.OBSERVED, "")


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reads, writes = os.pipe()
    yield reads, writes
    os.close(reads)
    os.close(writes)


def test_where_nobody_reads_the_oldest_notes_make_room_for_the_latest(
    pipe: tuple[int, int],
) -> None:
    hook = Hook(pipe[1], pipe[0])
    for number in range(10_000):
        hook.begin("decode", number + 1, within_s=0.01)
    hook.late()

    kept = Note.read(os.read(pipe[0], 1 << 20))
    assert hook.lost > 5000
    assert len(kept) == 10_001 - hook.lost
    assert kept[-1].kind == LATE
    assert [note.batch for note in kept[:-1]] == list(range(hook.lost + 1, 10_001))


@pytest.mark.parametrize(
    ("phase", "batch", "context", "within_s"),
    [
        ("training", 1, 1, None),
        (None, 1, 1, None),
        ([], 1, 1, None),
        ("decode", -5, 1, None),
        ("decode", 0, 1, None),
        ("decode", 1.5, 1, None),
        ("decode", None, 1, None),
        ("decode", 1, "long", None),
        ("decode", 1, 1, "soon"),
        ("decode", 1, 1, math.nan),
    ],
)
def test_what_no_table_can_have_runs_at_auto_and_stops_no_server(
    pipe: tuple[int, int], phase: Any, batch: Any, context: Any, within_s: Any
) -> None:
    hook = Hook(pipe[1], pipe[0])
    hook.begin(phase, batch, context, within_s=within_s)
    hook.end(within_s=within_s)

    governor = Governor(SERVING_PLAN, 0.01)
    governor.changed(Clocks(core_mhz=900), 0.0)
    begun, _ended = Note.read(os.read(pipe[0], 1 << 20))
    governor.noted(begun, 1.0)
    assert governor.ask(1.0) == AUTO
    assert (hook.unknown, hook.lost) == (1, 0)
    assert repr(phase) in hook.first_unknown


@contextlib.contextmanager
def _serving(plan: ServingPlan, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    path = folder / "plan.json"
    write_document(path, plan)
    command = [sys.executable, "-c", SERVER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        try:
            assert server.stdout.readline() == b"decode\n"
            yield server
        finally:
            server.kill()


@pytest.mark.parametrize("who", ["server", "controller"])
def test_who_is_killed_leaves_no_clocks(
    who: str,
    plan: ServingPlan,
    core: Callable[[], object],
    rig: Rig,
    comes: Comes,
    tmp_path: Path,
) -> None:
    with _serving(plan, tmp_path) as server:
        comes(lambda: core() is not None)
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        pid = server.pid if who == "server" else int(children[0])
        os.kill(pid, signal.SIGKILL)
        comes(rig.is_clean)
        assert server.stdout is not None
        goes_on = who == "controller" and all(server.stdout.readline() for _ in range(5))
        assert goes_on == (who == "controller")  # a server without its controller serves on


@pytest.mark.parametrize(
    ("changes", "gpu", "words", "kind"),
    [
        ({"name": "H200"}, "nvml:0", "the plan is for H200, this is RTX 3080 Ti", DataError),
        ({"uuid": "GPU-1"}, "nvml:0", "made on board GPU-1", DataError),
        ({}, "sim:rtx3080ti", "is gone with this process", UsageError),
    ],
)
def test_a_plan_that_does_not_fit_sets_nothing(
    changes: dict[str, str],
    gpu: str,
    words: str,
    kind: type[UnderclockError],
    plan: ServingPlan,
    rig: Rig,
) -> None:
    other = msgspec.structs.replace(plan, gpu=msgspec.structs.replace(plan.gpu, **changes))

    with pytest.raises(kind, match=words), underclock.governor(other, gpu=gpu):
        pass
    assert rig.is_clean()
