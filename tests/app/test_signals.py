"""Commands that are told to end, each in a child whose simulated GPU tells what is locked."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from free_time import free_s
from underclock.app import main
from underclock.app.measuring import measure
from underclock.app.output import INCONCLUSIVE, share_bar
from underclock.app.planning import plan
from underclock.campaign.grid import Campaign
from underclock.core.planning.best_choice import Goal
from underclock.gpus.models import Bounds
from underclock.hw.base import SystemClock
from underclock.hw.interrupts import InterruptedBySignal, interruptible
from underclock.hw.lease import ClockLeases
from underclock.hw.simulated.device import VirtualGpu
from underclock.records import Clocks, Kernel, Kind, MeasurementSettings, Step
from underclock.runtime.controller.starting import ControllerProcess
from underclock.runtime.undo.ownership import Process
from underclock.store import write_document

pytestmark = pytest.mark.slow

_PLACES = 5  # of every command; one signal each


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a step, and a plan for it that locks clocks."""
    folder = tmp_path_factory.mktemp("signals")
    copy = Kernel(name="copy", kind=Kind.MEMORY, flops=0.0, bytes_moved=9e9)
    step = Step(name="s", kernels=(copy,), order=(0,))
    write_document(folder / "step.json", step)
    sample_set = measure(
        step,
        gpu="sim:rtx3080ti",
        to=folder / "samples.db",
        campaign=Campaign(core_mhz=(1050, 1500, None), mem_mhz=(9251, None), in_situ=False),
        measuring=MeasurementSettings(kernel_warm_s=1.0, window_s=1.0),
    )
    write_document(folder / "plan.json", plan(sample_set, Goal(max_slowdown=0.5)))
    return folder


class _Child:
    """Runs a command in a fork; a signal comes as virtual time passes for the nth time."""

    def __init__(self, arguments: Sequence[str], number: int, place: int) -> None:
        reading, writing = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            os.close(reading)
            _run(arguments, number, place, writing)
        os.close(writing)
        with os.fdopen(reading) as lines:
            self.told = lines.read().splitlines()
        self.code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def lines(self, kind: str) -> list[str]:
        return [line.removeprefix(f"{kind} ") for line in self.told if line.startswith(kind)]

    @property
    def locked(self) -> list[str]:
        last = {line.split()[0]: line for line in self.lines("lock")}
        return [line for line in last.values() if not line.endswith("None")]


def _run(arguments: Sequence[str], number: int, place: int, writing: int) -> None:
    """Be the child; never return."""
    code = 99
    passed = 0
    told = os.fdopen(writing, "w", buffering=1)
    lock_core, lock_mem, advance = VirtualGpu.lock_core, VirtualGpu.lock_mem, VirtualGpu.advance

    def watched(
        domain: str, lock: Callable[[VirtualGpu, Bounds | None], None]
    ) -> Callable[[VirtualGpu, Bounds | None], None]:
        def locked(gpu: VirtualGpu, bounds: Bounds | None) -> None:
            told.write(f"lock {domain} {bounds}\n")
            lock(gpu, bounds)

        return locked

    def counted(gpu: VirtualGpu, duration_s: float) -> None:
        nonlocal passed
        passed += 1
        if passed == place:
            os.kill(os.getpid(), number)
        advance(gpu, duration_s)

    try:
        # This process ends here: nothing needs to be put back.
        methods = {
            "lock_core": watched("core", lock_core),
            "lock_mem": watched("memory", lock_mem),
            "advance": counted,
        }
        for name, method in methods.items():
            setattr(VirtualGpu, name, method)
        sys.stdout = sys.stderr = told
        main(arguments)
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        told.write(f"passed {passed}\n")
        told.close()
        os._exit(code)


_COMMANDS = {
    "measure": "measure {0}/step.json --gpu sim:rtx3080ti -o {1}/s.db --core-mhz 1050,1500,auto "
    "--mem-mhz 5001,auto --window 1s,1s",
    "latency": "latency --gpu sim:a100 --targets 900 -o {1}/l.json",
    "validate": "validate {0}/plan.json --gpu sim:rtx3080ti --repeats 2 -o {1}/v.json",
}


@pytest.mark.parametrize("command", _COMMANDS)
def test_a_signal_at_any_time_leaves_nothing_locked(
    command: str, folder: Path, tmp_path: Path
) -> None:
    whole = _Child(_COMMANDS[command].format(folder, tmp_path).split(), signal.SIGINT, -1)
    assert whole.code in {0, INCONCLUSIVE}
    assert len(whole.lines("lock")) > 3
    passed = int(whole.lines("passed")[0])
    signals = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    for run in range(_PLACES):
        number = signals[run % 3]
        place = 1 + (2 * run + 1) * passed // (2 * _PLACES)
        output = tmp_path / f"{run}"
        output.mkdir()
        child = _Child(_COMMANDS[command].format(folder, output).split(), number, place)

        assert child.code == 128 + number, child.told
        assert child.locked == []
        assert child.lines("underclock:") == ["interrupted; nothing is left locked"]


def test_what_a_process_ignores_stays_ignored(folder: Path, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        child = _Child(_COMMANDS["measure"].format(folder, tmp_path).split(), signal.SIGHUP, 50)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert child.code == 0


def _ask_and_lose(number: signal.Signals) -> None:
    """Have a signal come where what its handler raises is swallowed, as an import's may be."""
    with contextlib.suppress(BaseException):
        signal.raise_signal(number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_was_swallowed_ends_what_begins_next(number: signal.Signals) -> None:
    gpu: Any = None  # it is not asked for anything
    begun: list[str] = []

    def lock() -> None:
        with ClockLeases(gpu).hold(Clocks(core_mhz=1050)):
            begun.append("a lock")

    def control() -> None:
        begun.append(f"{ControllerProcess.start([], work='nothing:here', options={})}")

    def show() -> None:
        with share_bar("planning"):
            begun.append("a stage")

    def command() -> None:
        with interruptible():
            begun.append("a command")

    for begin in (lock, control, show, command):
        with interruptible():
            _ask_and_lose(number)
            with pytest.raises(InterruptedBySignal) as ended:
                begin()
        assert ended.value.exit_code == 128 + number
    assert begun == []


_LOSES = """
import os, signal, sys
try:
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000): pass
except BaseException:
    pass
sys.path.remove(os.path.dirname(__file__))
del sys.modules["click"]
import click
"""


def test_a_signal_that_is_lost_while_the_commands_load_ends_the_command(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text(_LOSES)
    ended = subprocess.run(
        [sys.executable, "-m", "underclock", "doctor", "--gpu", "sim:a100"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )

    assert (ended.returncode, ended.stdout) == (143, "")
    assert ended.stderr == "underclock: interrupted\n"


_DEAF = """
import pathlib, signal, subprocess, sys, time
for number in (1, 2, 15):
    signal.signal(number, signal.SIG_IGN)  # what it starts ignores them too
child = subprocess.Popen(["/bin/sleep", "60"], start_new_session=True)
pathlib.Path("child.new").write_text(str(child.pid))
pathlib.Path("child.new").rename("child")
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_tune_ends_a_script_that_is_deaf_to_signals_with_all_that_it_started(
    number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "deaf.py").write_text(_DEAF)
    words = ["tune", "--gpu", "sim:rtx3080ti", "--", sys.executable, "deaf.py"]
    clock = SystemClock()
    with subprocess.Popen(
        [sys.executable, "-m", "underclock", *words],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        until_s = clock.now_s() + 60.0
        while not (tmp_path / "child").exists() and clock.now_s() < until_s:
            clock.sleep_s(0.02)
        asked_s = free_s()
        process.send_signal(number)
        assert process.wait(60.0) == 128 + number
        assert free_s() - asked_s < 5.0

    child = Process.of(int((tmp_path / "child").read_text()))
    assert child is None or not child.lives
