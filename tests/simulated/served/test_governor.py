"""A governor on a served GPU: its clocks are held step by step, and given back by every end."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import underclock
from invented import SERVING_PLAN
from kills import Rig
from underclock.errors import DataError, UnderclockError, UsageError
from underclock.hw.nvml import NvmlGpu
from underclock.hw.settable import SettableNvmlGpu, Setting
from underclock.records import Clocks
from underclock.records.serving import ServingPlan
from underclock.runtime.trainer.notes import Hook
from underclock.store import write_document

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
    return lambda: gpu.read(Setting.CORE)


def test_each_phase_has_its_clocks_and_a_late_request_none(
    plan: ServingPlan, core: Callable[[], object], rig: Rig, comes: Comes
) -> None:
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

    assert rig.is_clean()


def test_notes_that_nobody_reads_stop_no_server() -> None:
    reads, writes = os.pipe()
    hook = Hook(writes)
    for _ in range(10_000):
        hook.begin("decode", 2**40, within_s=0.01)
    os.close(reads)
    hook.late()
    os.close(writes)

    assert hook.lost > 5000
    with pytest.raises(KeyError):
        hook.begin("training", 1)


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


@pytest.mark.slow
@pytest.mark.parametrize("who", ["server", "conductor"])
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
        goes_on = who == "conductor" and all(server.stdout.readline() for _ in range(5))
        assert goes_on == (who == "conductor")  # a server without its conductor serves on


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


def test_clocks_that_the_gpu_does_not_list_are_refused(plan: ServingPlan, rig: Rig) -> None:
    (first, *others) = plan.buckets
    odd = msgspec.structs.replace(first.chosen, clocks=Clocks(core_mhz=1201))
    buckets = (msgspec.structs.replace(first, chosen=odd), *others)

    with (
        pytest.raises(DataError, match="1201 MHz, memory auto for decode of 8"),
        underclock.governor(msgspec.structs.replace(plan, buckets=buckets)),
    ):
        pass
    assert rig.is_clean()
