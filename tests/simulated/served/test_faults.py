"""The fault matrix, row by row, as far as it is quick; `benchmarks/faults.py` plays all of it.

Training is real, in this process: its losses must be those of a plain one, to the last bit.
"""

import dataclasses
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor as Pool
from pathlib import Path

import msgspec
import pytest
import torch

from small_training import Model, plan, training
from underclock.errors import DeviceError, NotPermittedError, UnderclockError, UsageError
from underclock.hw.clock import SystemClock
from underclock.hw.nvml_calls import READ_ONLY
from underclock.hw.served_simulator import SIMULATOR
from underclock.records import Plan
from underclock.records.runs import AskLine, EventLine, Line, StepLine
from underclock.runtime.conductor.telemetry import read_log
from underclock.runtime.undo.ownership import RUNTIME_DIR, named_in
from underclock.runtime.undo.restore import left_behind
from underclock.stages.applied import applied
from underclock.stages.doctor import examine
from underclock.stages.run import HowToRun, Ran, run
from underclock.testing import Control

Comes = Callable[[Callable[[], bool]], None]
_MOST_STEPS = 200
_SET = ("core_lock", "mem_lock", "limit_w", "persistent")
_KILL, _STOP, _TERM = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM


def _with_memory() -> Plan:
    made = plan(launch_s=1e-3)
    assert made.schedule is not None
    segments = tuple(
        msgspec.structs.replace(each, mem_mhz=5001 if each.core_mhz else None)
        for each in made.schedule.segments
    )
    schedule = msgspec.structs.replace(made.schedule, segments=segments)
    return msgspec.structs.replace(made, schedule=schedule)


@dataclasses.dataclass
class Bench:
    """A run of this process, and what is told of it.

    Attributes:
        folder: Where runs keep their files.
        log: Of the run.
        told: By this process, apart from the log.
    """

    folder: Path
    log: Path
    control: Control
    comes: Comes
    told: list[str] = dataclasses.field(default_factory=list)

    def lines(self) -> tuple[Line, ...]:
        return read_log(self.log) if self.log.exists() else ()

    def events(self) -> str:
        return "\n".join(line.text for line in self.lines() if isinstance(line, EventLine))

    def asks(self) -> int:
        return sum(isinstance(line, AskLine) for line in self.lines())

    def energies(self) -> list[float | None]:
        return [line.energy_j for line in self.lines() if isinstance(line, StepLine)]

    def state(self, gpu: int = 0) -> tuple[object, ...]:
        truth = self.control.truth(gpu)
        return tuple(truth[name] for name in _SET)

    def is_clean(self) -> bool:
        """Whether everything is as found, and no journal is left."""
        return self.state() == (None, None, 350.0, False) and not left_behind(self.folder)

    def how(self, **options: object) -> HowToRun:
        asked = HowToRun(log=self.log, tell=self.told.append)
        return dataclasses.replace(asked, **options)  # type: ignore[arg-type]

    def pids(self) -> tuple[int, int]:
        """Return who sets clocks, and who watches."""
        (lock,) = [path for path in self.folder.glob("GPU-*.lock") if path.stat().st_size]
        conductor, watcher = named_in(lock)
        assert conductor
        assert watcher
        return conductor.pid, watcher.pid

    def train(
        self, befalls: Callable[[], None], made: Plan | None = None
    ) -> tuple[list[float], list[float]]:
        """Train under a plan, and let something befall it once clocks follow.

        Returns:
            The losses until that is over, and those of a plain training for as many steps.
        """

        def act() -> None:
            self.comes(lambda: self.asks() >= 2)
            befalls()

        made = made or plan(launch_s=1e-3)
        losses = []
        torch.manual_seed(0)
        with applied(made, self.how(window=0)), Pool(1) as pool:
            acting = pool.submit(act)
            for loss in training(Model(), _MOST_STEPS):
                losses.append(loss)
                if acting.done():
                    break
                self._wait_for(len(losses) * len(made.order))
            acting.result()
        torch.manual_seed(0)
        return losses, list(training(Model(), len(losses)))

    def _wait_for(self, launches: int) -> None:
        """Wait for the GPU, as who reads the loss does; not for ever, for it may be lost."""
        clock = SystemClock()
        until_s = clock.now_s() + 0.2
        with Control(os.environ[SIMULATOR]) as control:
            while control.truth()["launches"] < launches and clock.now_s() < until_s:
                clock.sleep_s(5e-3)


@pytest.fixture
def bench(
    control: Control, comes: Comes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path / "runs"))
    (tmp_path / "runs").mkdir(mode=0o700)
    yield Bench(tmp_path / "runs", tmp_path / "log.jsonl", control, comes)
    import gc

    gc.collect()


@pytest.mark.parametrize(
    ("fault", "value", "told"),
    [
        ("locks_ignored", None, "the driver accepted the lock and does not follow it"),
        ("soft_slowdown", None, "the driver keeps the GPU under its temperature"),
        ("hard_slowdown", None, "because it is too hot"),
        ("counter_restarts", None, "the energy counter fell from"),
        ("counter_stuck", None, "the energy counter stands still"),
        ("power_limit_changed", 320.0, "somebody changed the power limit from 350 to 320 W"),
        ("marks_stuck", None, "the step stands still"),
        ("gpu_lost", None, "the GPU cannot be read: "),
    ],
)
def test_what_goes_wrong_with_a_gpu_is_told_and_harms_nothing(
    fault: str, value: float | None, told: str, bench: Bench
) -> None:
    def befalls() -> None:
        bench.comes(lambda: bench.control.truth()["energy_j"] > 100.0)  # else no fall would show
        bench.control.fault(fault, value, gpu=0)
        bench.comes(lambda: told in bench.events())
        bench.control.heal()
        if value is not None:
            assert bench.state()[2] == value
            bench.control.fault(fault, 350.0, gpu=0)

    # Where locks are not followed, two readings of one lock tell that.
    losses, usual = bench.train(befalls, plan(launch_s=8e-3 if "locks" in fault else 1e-3))

    assert losses == usual
    assert bench.is_clean()
    found = examine("nvml:0").gpus[0]
    assert (found.locked_core_mhz, found.power_limit_w) == (None, 350.0)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("permission_revoked", "the driver refused core 1110 MHz|to give the core back"),
        ("memory_refused", "the driver refused memory 5001 MHz"),
    ],
)
def test_a_clock_that_is_refused_is_given_back_as_soon_as_may_be(
    fault: str, told: str, bench: Bench
) -> None:
    def befalls() -> None:
        bench.control.fault(fault, gpu=0)
        bench.comes(lambda: re.search(told, bench.events()) is not None)
        bench.control.heal()
        bench.comes(lambda: "was given back to the driver" in bench.events())

    made = _with_memory() if fault == "memory_refused" else None
    losses, usual = bench.train(befalls, made)

    assert losses == usual
    assert bench.is_clean()


def test_what_a_step_drew_is_not_known_while_the_counter_stands_still(bench: Bench) -> None:
    def befalls() -> None:
        bench.control.fault("counter_stuck", gpu=0)
        bench.comes(lambda: "stands still" in bench.events())
        bench.comes(lambda: bench.energies()[-1:] == [None])

    bench.train(befalls)

    assert 0.0 not in bench.energies()


def test_a_page_that_is_unlinked_goes_on_for_who_has_it(bench: Bench) -> None:
    def befalls() -> None:
        pages = Path(f"/dev/shm/underclock-{os.getuid()}")  # noqa: S108 - where runs keep pages
        for page in pages.glob(f"run-{os.getpid()}-*.page"):
            page.unlink()
        before = bench.asks()
        bench.comes(lambda: bench.asks() > before + 4)

    losses, usual = bench.train(befalls)

    assert losses == usual
    assert bench.is_clean()


@pytest.mark.parametrize(
    ("who", "number", "told"),
    [
        ("conductor", _TERM, "clocks are held no more: asked to end by SIGTERM"),
        ("conductor", _KILL, "the conductor ended; GPU"),
        ("conductor", _STOP, "the conductor was stopped; GPU"),
        ("watcher", _KILL, "has ended, and is replaced by another"),
        ("both", _KILL, "clocks are held no more: .* ended .-9. and said nothing; core given back"),
    ],
)
def test_whoever_is_killed_clocks_are_given_back_and_training_goes_on(
    who: str, number: signal.Signals, told: str, bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    def befalls() -> None:
        conductor, watcher = bench.pids()
        bench.comes(lambda: bench.state()[0] is not None)
        if who == "both":
            os.kill(conductor, _STOP)  # else it might start another watcher in between
        if who != "conductor":
            os.kill(watcher, number)
        if who != "watcher":
            os.kill(conductor, number)
        if who == "conductor":
            bench.comes(bench.is_clean)
        elif who == "watcher":
            bench.comes(lambda: bench.pids()[1] != watcher)

    losses, usual = bench.train(befalls)

    assert losses == usual
    assert bench.is_clean()
    said = "\n".join([*bench.told, capfd.readouterr().err])
    assert re.search(told, said), said


def test_a_suspended_container_goes_on_where_it_was(bench: Bench) -> None:
    """Conductor and watcher are stopped with it, and the trainer waits meanwhile."""

    def befalls() -> None:
        pids = bench.pids()
        for pid in reversed(pids):
            os.kill(pid, _STOP)
        SystemClock().sleep_s(0.5)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        before = bench.asks()
        bench.comes(lambda: bench.asks() > before + 4)

    losses, usual = bench.train(befalls)

    assert losses == usual
    assert bench.is_clean()
    assert not any("no more" in each for each in bench.told)


# What a launcher does does not depend on what its command does: here it waits for a file.
_WAITS = """
import os, sys, time
open(sys.argv[1] + ".begun", "w").close()
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
"""


def _run(bench: Bench, befalls: Callable[[], None], **options: object) -> Ran:
    """Run a command that does nothing, and let something befall the run once it is armed."""
    over = bench.folder / "over"
    command = [sys.executable, "-S", "-c", _WAITS, str(over)]

    def act() -> None:
        bench.comes((bench.folder / "over.begun").exists)
        try:
            befalls()
        finally:
            over.touch()

    with Pool(1) as pool:
        acting = pool.submit(act)
        ran = run(plan(), command, bench.how(**options))
        acting.result()
    return ran


@pytest.mark.parametrize("number", [_KILL, _STOP])
def test_a_launcher_undoes_where_conductor_and_watcher_cannot(
    number: signal.Signals, bench: Bench
) -> None:
    """At once, and not when its command ends: with both stopped it would have waited for ever."""

    def befalls() -> None:
        conductor, watcher = bench.pids()
        os.kill(conductor, _STOP)  # else it might start another watcher in between
        os.kill(watcher, number)
        os.kill(conductor, number)
        bench.comes(lambda: any("clocks are held no more" in each for each in bench.told))
        assert bench.is_clean()

    ran = _run(bench, befalls)

    assert ran.code == 0
    assert "said nothing" in ran.why


@pytest.mark.slow
def test_a_launcher_undoes_where_both_are_stopped_before_anything_is_held(bench: Bench) -> None:
    def stop() -> None:
        bench.comes(lambda: bool(left_behind(bench.folder)))  # so a setter is called
        for pid in bench.pids():
            os.kill(pid, _STOP)
        bench.control.heal()

    bench.control.fault("setter_hangs", 1.0)
    with Pool(1) as pool:
        stopping = pool.submit(stop)
        with pytest.raises(DeviceError, match="said nothing"):
            run(plan(), [sys.executable, "-S", "-c", "raise SystemExit(9)"], bench.how())
        stopping.result()

    assert bench.is_clean()


def test_what_stays_set_is_told_with_when_it_will_not(bench: Bench, comes: Comes) -> None:
    def befalls() -> None:
        bench.control.fault("permission_revoked")

    ran = _run(bench, befalls)
    bench.control.heal()

    assert "the core STAYS set" in ran.undone[0]
    assert bench.told[-1].startswith("what stays set is given back within 15 s")
    comes(bench.is_clean)


def test_what_an_earlier_run_left_is_told(bench: Bench) -> None:
    def befalls() -> None:
        """It is as it should be."""

    from underclock.hw.nvml_calls import nvml_session
    from underclock.hw.settable import SettableNvmlGpu, Setting
    from underclock.runtime.undo.armed import arm

    with nvml_session():
        gpu = SettableNvmlGpu(examine("nvml:0").gpus[0].gpu.uuid or "")
        left = arm(gpu, bench.folder, share_lock=lambda _: None)
        left.set(Setting.CORE, 900)
        left.lock.release()

    _run(bench, befalls)

    assert "an earlier run had left something set: core given back to the driver" in bench.told
    assert bench.is_clean()


def test_a_log_that_cannot_be_read_again_is_not(bench: Bench) -> None:
    """`/dev/full` takes nothing and, read, never ends."""
    command = [sys.executable, "-S", "-c", "raise SystemExit(0)"]

    ran = run(plan(), command, bench.how(log=Path("/dev/full"), dry=True))

    assert (ran.code, ran.summary.steps) == (0, 0)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (".{}.journal.new", "cannot go on: .* Is a directory"),
        ("{}.lock", "cannot open the lock .*: Is a directory"),
    ],
)
def test_what_a_disk_does_not_take_keeps_anything_from_being_set(
    name: str, told: str, bench: Bench
) -> None:
    """A full disk is the benchmark's; here something else is in the way."""
    (bench.folder / name.format(examine("nvml:0").gpus[0].gpu.uuid)).mkdir()

    with pytest.raises(UnderclockError, match=told):
        run(plan(), [sys.executable, "-S", "-c", "raise SystemExit(9)"], bench.how())

    assert bench.state() == (None, None, 350.0, False)


def test_without_permission_each_way_says_why_it_is_closed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(READ_ONLY, "1")

    with pytest.raises(NotPermittedError, match=READ_ONLY) as refused:
        run(plan(), [sys.executable, "-S", "-c", "raise SystemExit(9)"], bench.how())

    assert refused.value.hint


def test_a_second_run_is_refused_and_the_first_goes_on(bench: Bench) -> None:
    refusals: list[str] = []

    def befalls() -> None:
        try:
            run(plan(), [sys.executable, "-S", "-c", "raise SystemExit(9)"], HowToRun())
        except UsageError as exc:
            refusals.append(str(exc))

    ran = _run(bench, befalls)

    assert ran.why == "the training process ended"
    assert "is set by another Underclock: process" in refusals[0]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"arms": "auto,plan", "window": 20}, "one run cannot do both"),
        ({"arms": "auto,magic"}, "there is no arm 'magic'"),
        ({"window": 1}, "cannot judge 1 steps together"),
    ],
)
def test_what_cannot_be_done_at_once_is_refused(
    options: dict[str, object], told: str, bench: Bench
) -> None:
    with pytest.raises(UsageError, match=told):
        run(plan(), ["true"], bench.how(**options))


def test_arms_alone_have_no_guard(bench: Bench) -> None:
    command = [sys.executable, "-S", "-c", "raise SystemExit(0)"]

    assert run(plan(), command, bench.how(arms="auto,plan", dry=True)).code == 0


def test_nothing_here_looks_at_the_wall_clock() -> None:
    """So a jump of the host's clock cannot matter."""
    import ast

    import underclock.runtime
    import underclock.stages.run

    named = {"time", "time_ns", "datetime", "localtime", "gmtime", "CLOCK_REALTIME", "ctime"}
    runtime = Path(str(underclock.runtime.__file__)).parent
    files = [*runtime.rglob("*.py"), Path(str(underclock.stages.run.__file__))]
    assert len(files) > 40
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                looks = node.value.id in {"time", "datetime"} and node.attr in named
                assert not looks, f"{file}:{node.lineno} looks at {node.attr}"
            if isinstance(node, ast.ImportFrom) and node.module in {"time", "datetime"}:
                assert not named & {each.name for each in node.names}, file


@pytest.mark.slow
def test_a_whole_run_with_both_stopped_ends(bench: Bench) -> None:
    """A row of the benchmark, as a user sees it: a process of its own, and real training in it."""
    from faults_rig import open_rig
    from faults_signals import ROWS

    row = next(each for each in ROWS if "for good" in each.did)
    folder = bench.folder.parent / "rig"
    folder.mkdir()
    with open_rig(folder) as rig:
        seen = row.play(rig)

    assert seen.as_found
    assert seen.losses
    assert row.was_told(seen), seen.said
