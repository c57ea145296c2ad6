"""A served GPU, one whole `underclock run` on it that something befalls, and what came of it."""

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import faults_training
from small_training import plan
from underclock.hw.clock import SystemClock
from underclock.hw.nvml_calls import SIMULATOR
from underclock.records import Plan
from underclock.records.runs import EventLine
from underclock.runtime.conductor.log import read_log
from underclock.runtime.undo.armed import left_behind
from underclock.runtime.undo.ownership import RUNTIME_DIR, named_in
from underclock.runtime.undo.processes import Process
from underclock.store import write_document
from underclock.testing import Control

CLOCK = SystemClock()
STEPS = 36
PATIENCE_S = 90.0
_LOOK_S = 2e-3
_SET = ("core_lock", "mem_lock", "limit_w", "persistent")
_TRAINING = Path(__file__).with_name("faults_training.py")


class Rig:
    """Simulated GPUs that a process of its own serves, and a folder for runs.

    Attributes:
        folder: For the files of everything here.
        runs: Where runs keep theirs.
        control: Lets things go wrong.
        environment: Of every command.
    """

    def __init__(self, folder: Path, control: Control, count: int) -> None:
        self.folder, self.runs, self.control = folder, folder / "runs", control
        self.environment = dict(os.environ)
        self._count = count
        self.found = self.state()

    def state(self) -> tuple[object, ...]:
        """Return everything that may be set."""
        truths = [self.control.truth(gpu) for gpu in range(self._count)]
        return tuple(truth[name] for truth in truths for name in _SET)

    def is_clean(self) -> bool:
        """Whether all is as found, and no journal is left."""
        return self.state() == self.found and not left_behind(self.runs)

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of Underclock's to its end."""
        return subprocess.run(
            [sys.executable, "-m", "underclock", *arguments],
            env=self.environment,
            check=False,
            capture_output=True,
            text=True,
        )


@contextmanager
def open_rig(folder: Path, model: str = "rtx3080ti", count: int = 2) -> Iterator[Rig]:
    """Serve GPUs."""
    socket = folder / "s"
    (folder / "runs").mkdir(mode=0o700)
    os.environ[SIMULATOR], os.environ[RUNTIME_DIR] = str(socket), str(folder / "runs")
    arguments = ["simulate", model, "--socket", str(socket), "--count", str(count)]
    server = subprocess.Popen(
        [sys.executable, "-m", "underclock", *arguments], stderr=subprocess.DEVNULL
    )
    try:
        while not socket.exists():
            CLOCK.sleep_s(0.01)
        with Control(str(socket)) as control:
            yield Rig(folder, control, count)
    finally:
        server.terminate()
        server.wait()


class Trial:
    """One run.

    Attributes:
        log: Its log.
        losses: File of the losses.
        ended_s: When what ended the holding of clocks did: by default the trainer's end.
    """

    def __init__(
        self,
        rig: Rig,
        *,
        how: str = "plain",
        steps: int = STEPS,
        held: Plan | None = None,
        options: Sequence[str] = (),
        log: Path | None = None,
        command: Sequence[str] = (),
    ) -> None:
        number = len(list(rig.folder.glob("*.said")))
        self.rig, self.how, self.steps = rig, how, steps
        self.log = log or rig.folder / f"{number}.jsonl"
        self.losses = rig.folder / f"{number}.losses"
        self._said = rig.folder / f"{number}.said"
        plan_file = rig.folder / f"{number}.plan.json"
        write_document(plan_file, held or plan())
        training = command or [sys.executable, str(_TRAINING), str(steps), str(self.losses), how]
        arguments = ["run", str(plan_file), "--log", str(self.log), "--guard", "0", *options]
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "underclock", *arguments, "--", *training],
                env=rig.environment,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.ended_s: float | None = None
        self._last_set_s = CLOCK.now_s()
        self._over = threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True)
        self._trainer: Process | None = None

    def _look(self) -> None:
        """Note when something was set last, and when the trainer ended."""
        with Control(os.environ[SIMULATOR]) as control:
            own = Rig(self.rig.folder, control, 1)
            while not self._over.is_set():
                looked_s = CLOCK.now_s()
                if own.state() != self.rig.found[: len(_SET)]:
                    self._last_set_s = looked_s
                if self.ended_s is None and self._trainer and not self._trainer.lives:
                    self.ended_s = looked_s
                CLOCK.sleep_s(_LOOK_S)

    def until(self, condition: Callable[[], object], within_s: float = PATIENCE_S) -> None:
        """Wait for something."""
        until_s = CLOCK.now_s() + within_s
        while not condition():
            if CLOCK.now_s() > until_s:
                raise TimeoutError(f"it never came: {self.said()}")
            CLOCK.sleep_s(0.005)

    def held(self, asks: int = 6) -> "Trial":
        """Wait until clocks follow the plan."""
        self.until(lambda: self.process.poll() is not None or self.asks() >= asks)
        if self.process.poll() is not None:
            raise RuntimeError(f"it ended before anything was held: {self.said()}")
        self._trainer = self.trainer
        self._looking.start()
        return self

    def asks(self) -> int:
        """Return how often clocks were asked for."""
        return self.log.read_bytes().count(b'"line":"ask"') if self.log.is_file() else 0

    def set_now(self) -> "Trial":
        """Wait until a clock is locked."""
        self.until(lambda: self.rig.control.truth()["core_lock"])
        return self

    @property
    def conductor(self) -> Process:
        """Who sets clocks."""
        return self._named()[0]

    @property
    def watcher(self) -> Process:
        """Who undoes when the conductor does not."""
        return self._named()[1]

    def _named(self) -> tuple[Process, Process]:
        (lock, *_) = sorted(self.rig.runs.glob("GPU-*.lock"), key=lambda p: -p.stat().st_size)
        conductor, watcher = named_in(lock)
        if conductor is None or watcher is None:
            raise RuntimeError(f"{lock} names nobody")
        return conductor, watcher

    @property
    def trainer(self) -> Process:
        """Who trains: the launcher's child that is not the conductor."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        (one,) = {int(child) for child in children} - {self.conductor.pid}
        found = Process.of(one)
        if found is None:
            raise RuntimeError("the trainer has ended")
        return found

    def kill(self, number: signal.Signals, *victims: Process, ends: bool = True) -> "Trial":
        """Send a signal to processes, one after the other; note when, where it ends the holding."""
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim.pid, number)
        if ends:
            self.ended_s = CLOCK.now_s()
        return self

    def wait(self, within_s: float = PATIENCE_S) -> int:
        """Wait for the launcher's end; return its code."""
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            with contextlib.suppress(TimeoutError):
                self.until(self.rig.is_clean, 2.0)
            CLOCK.sleep_s(3 * _LOOK_S)
            self._over.set()
        return code

    def took_s(self) -> float | None:
        """Return how long after the end something was still set; ``None`` where nobody looked."""
        if not self._looking.ident or self.ended_s is None:
            return None
        return max(0.0, self._last_set_s - self.ended_s)

    def said(self) -> str:
        """Return what the user was told: by the command, and by its log."""
        lines = read_log(self.log) if self.log.is_file() else ()
        events = [line.text for line in lines if isinstance(line, EventLine)]
        return "\n".join((*events, self._said.read_text()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a row.

    Attributes:
        as_found: Whether locks, limit and persistence are as found, and no journal is left.
        took_s: How long after the end of what held them; ``None`` where nothing was held.
        losses: Whether they are those of the plain training, as far as it went; ``None`` where
            nothing trained.
        said: What the user was told.
    """

    as_found: bool
    took_s: float | None
    losses: bool | None
    said: str


@dataclass(frozen=True, slots=True)
class Row:
    """One fault.

    Attributes:
        name: Of the fault.
        did: What was done.
        says: A regular expression of what the user must be told; empty where nothing need be.
        play: Does it.
    """

    name: str
    did: str
    says: str
    play: Callable[[Rig], Outcome]

    def sentence(self, seen: Outcome) -> str:
        """Return what was told; empty where it was not."""
        found = re.search(self.says, seen.said)
        return found[0] if found else ""

    def was_told(self, seen: Outcome) -> bool:
        """Whether the user was told, where there is something to tell."""
        return not self.says or bool(self.sentence(seen))


@functools.cache
def plain_losses(how: str, steps: int) -> tuple[float, ...]:
    """Return the losses of a training without any of this."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "losses"
        command = [sys.executable, faults_training.__file__, str(steps), str(file), how]
        subprocess.run(command, check=how != "breaks", capture_output=True)
        return losses_in(file)


def losses_in(file: Path) -> tuple[float, ...]:
    """Return the losses that a training wrote; none where it never began."""
    if not file.exists():
        return ()
    return tuple(json.loads(line) for line in file.read_text().splitlines())


def outcome(trial: Trial, *, killed: bool = False) -> Outcome:
    """Wait for the end of a run, and look.

    Args:
        trial: The run.
        killed: Whether training was: then its losses are compared as far as they go.
    """
    trial.wait()
    losses, usual = losses_in(trial.losses), plain_losses(trial.how, trial.steps)
    same = losses == (usual[: len(losses)] if killed else usual) and bool(losses)
    return Outcome(
        as_found=trial.rig.is_clean() and doctor_finds_nothing(trial.rig),
        took_s=trial.took_s(),
        losses=same,
        said=trial.said(),
    )


def doctor_finds_nothing(rig: Rig) -> bool:
    """Whether `underclock doctor` shows no lock, and the power limit that was found."""
    found = json.loads(rig.command("doctor", "--json").stdout)["gpus"]
    real = [gpu for gpu in found if gpu["spec"].startswith("nvml:")]
    none = {(gpu["locked_core_mhz"], gpu["locked_mem_mhz"]) for gpu in real} == {(None, None)}
    return none and {gpu["power_limit_w"] for gpu in real} <= {rig.found[2]}
