"""What goes wrong with a GPU, or with what a run writes, while a plan is held."""

import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor as Pool
from pathlib import Path

import msgspec
import pytest

from fault_bench import Bench
from free_time import free_s
from small_training import Model, plan, training, with_memory
from underclock.app.doctor import examine
from underclock.errors import DeviceError, UnderclockError, UsageError
from underclock.hw.base import SystemClock
from underclock.hw.nvml_calls import SettableNvmlGpu, nvml_session
from underclock.records.runs import StepLine
from underclock.runtime.holding.held_gpu import applied
from underclock.runtime.holding.run import HowToRun, Ran, run
from underclock.runtime.undo.guarded_gpu import GuardedGpu, left_behind
from underclock.runtime.undo.ownership import Process
from underclock.units import Domain
from windows import with_step

_KILL, _STOP, _TERM = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM


_GPU_FAULTS: tuple[tuple[str, float | None, str], ...] = (
    ("locks_ignored", None, "the driver accepted the lock and does not follow it"),
    ("soft_slowdown", None, "the driver keeps the GPU under its temperature"),
    ("hard_slowdown", None, "because it is too hot"),
    ("counter_restarts", None, "the energy counter fell from"),
    ("counter_stuck", None, "the energy counter stands still"),
    ("power_limit_changed", 320.0, "the power limit was changed from 350 to 320 W"),
    ("marks_stuck", None, "s: the step stands still"),
    ("gpu_lost", None, "the GPU cannot be read: "),
)


@pytest.mark.slow
def test_what_goes_wrong_with_a_gpu_is_told_and_harms_nothing(bench: Bench) -> None:
    def befalls() -> None:
        bench.until("energy", lambda: bench.control.truth()["energy_j"] > 100.0)
        for fault, value, told in _GPU_FAULTS:
            before = bench.events().count(told)  # a busy machine holds a step up as well
            bench.control.fault(fault, value, gpu=0)
            bench.until(fault, lambda: bench.events().count(told) > before)  # noqa: B023 - at once
            bench.control.heal()
            if fault == "power_limit_changed":
                assert bench.state()[2] == value
                bench.control.fault(fault, 350.0, gpu=0)

    # With long stretches two readings of one lock tell that it is not followed.
    losses, usual = bench.train(befalls, plan(launch_s=8e-3))

    assert losses == usual
    assert bench.is_clean()
    found = examine("nvml:0").gpus[0]
    assert (found.locked_core_mhz, found.power_limit_w) == (None, 350.0)
    energies = [line.energy_j for line in bench.lines() if isinstance(line, StepLine)]
    assert None in energies
    assert 0.0 not in energies


@pytest.mark.untraced
def test_a_clock_that_is_refused_is_given_back_as_soon_as_may_be(bench: Bench) -> None:
    def befalls() -> None:
        for fault, told in (
            ("memory_refused", r"the driver refused memory 5001 MHz"),
            ("permission_revoked", r"the driver refused (core 1110 MHz|to give the core back)"),
        ):
            bench.control.fault(fault, gpu=0)
            bench.until(fault, lambda told=told: re.search(told, bench.events()))  # type: ignore[misc]
            bench.control.heal()
        for domain in ("memory", "core"):
            words = f"the {domain} was given back to the driver"
            bench.until(domain, lambda words=words: words in bench.events())  # type: ignore[misc]

    losses, usual = bench.train(befalls, with_memory(plan(launch_s=1e-3)))

    assert losses == usual
    assert bench.is_clean()


@pytest.mark.untraced
def test_what_does_not_end_a_run_leaves_it_as_it_was(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    def goes_on(what: str) -> None:
        before = bench.asks()
        bench.until(what, lambda: bench.asks() > before + 4)

    def befalls() -> None:
        pages = Path(f"/dev/shm/underclock-{os.getuid()}")  # noqa: S108 - where runs keep pages
        for page in pages.glob(f"run-{os.getpid()}-*.page"):
            page.unlink()
        goes_on("page")
        pids = bench.pids()
        for pid in reversed(pids):
            os.kill(pid, _STOP)
        SystemClock().sleep_s(0.5)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        goes_on("suspended")
        assert bench.pids() == pids
        os.kill(pids[1], _KILL)
        bench.until("watchdog", lambda: bench.has_another_watchdog(pids[1]))
        goes_on("watchdog")

    losses, usual = bench.train(befalls)

    assert losses == usual
    assert bench.is_clean()
    assert not any("no more" in each for each in bench.told)
    assert "has ended, and is replaced by another" in capfd.readouterr().err


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("who", "number", "told"),
    [
        ("controller", _TERM, "clocks are held no more: asked to end by SIGTERM"),
        ("controller", _KILL, "the controller ended; GPU"),
        ("controller", _STOP, "the controller was stopped; GPU"),
        ("both", _KILL, "clocks are held no more: .* ended .-9. and said nothing; core given back"),
    ],
)
def test_whoever_is_killed_clocks_are_given_back_and_training_goes_on(
    who: str, number: signal.Signals, told: str, bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    def befalls() -> None:
        controller, watchdog = bench.pids()
        bench.until("held", lambda: bench.state()[0] is not None)
        if who == "both":
            os.kill(controller, _STOP)  # else it might start another watchdog in between
            os.kill(watchdog, number)
        os.kill(controller, number)
        bench.until("ended", lambda: Process.of(controller) is None or _is_zombie(controller))
        if who == "controller":
            bench.until("as found", bench.is_clean)

    losses, usual = bench.train(befalls)

    assert losses == usual
    assert bench.is_clean()
    said = "\n".join([*bench.told, capfd.readouterr().err])
    assert re.search(told, said), said


def _is_zombie(pid: int) -> bool:
    found = Process.of(pid)
    return found is not None and not found.lives


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
def test_a_launcher_undoes_where_controller_and_watchdog_cannot(
    number: signal.Signals, bench: Bench
) -> None:
    def befalls() -> None:
        controller, watchdog = bench.pids()
        os.kill(controller, _STOP)  # else it might start another watchdog in between
        os.kill(watchdog, number)
        os.kill(controller, number)
        bench.comes(lambda: any("clocks are held no more" in each for each in bench.told))
        assert bench.is_clean()

    ran = _run(bench, befalls)

    assert ran.code == 0
    assert "said nothing" in ran.why
    if number is _KILL:  # one that is stopped goes on when its controller dies, and may be quicker
        assert ran.undone == ("core given back to the driver",)
        assert ran.why.endswith("; core given back to the driver")


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


def test_what_stays_set_is_told_with_when_it_will_not(bench: Bench) -> None:
    def befalls() -> None:
        bench.control.fault("permission_revoked")

    ran = _run(bench, befalls)
    bench.control.heal()

    assert "the core STAYS set" in ran.undone[0]
    assert bench.told[-2].startswith("what stays set is given back within 15 s")
    assert bench.told[-1].endswith("STAYS set for now: `underclock restore` gives it back")
    bench.comes(bench.is_clean)


def test_where_there_can_be_no_lock_nothing_is_set_and_the_reason_is_told(bench: Bench) -> None:
    (bench.folder / f"{examine('nvml:0').gpus[0].gpu.uuid}.lock").mkdir()

    with pytest.raises(UnderclockError, match=r"cannot open the lock .* Is a directory"):
        run(plan(), [sys.executable, "-S", "-c", "raise SystemExit(9)"], bench.how())

    assert bench.state() == (None, None, 350.0, False)


def test_a_run_mends_what_another_left_and_a_third_is_refused(bench: Bench) -> None:
    refusals: list[str] = []

    def befalls() -> None:
        try:
            run(plan(), [sys.executable, "-S", "-c", "raise SystemExit(9)"], HowToRun())
        except UsageError as exc:
            refusals.append(str(exc))

    with nvml_session():
        gpu = SettableNvmlGpu(examine("nvml:0").gpus[0].gpu.uuid or "")
        left = GuardedGpu(gpu, bench.folder, share_lock=lambda _: None)
        left.set(Domain.CORE, 900)
        left.lock.release()

    ran = _run(bench, befalls)

    assert "an earlier run had left something set: core given back to the driver" in bench.told
    assert "is set by another Underclock: process" in refusals[0]
    assert ran.why == "the training process ended"
    assert bench.is_clean()


def test_nothing_here_looks_at_the_wall_clock() -> None:
    import ast

    import underclock.runtime

    named = {"time", "time_ns", "datetime", "localtime", "gmtime", "CLOCK_REALTIME", "ctime"}
    runtime = Path(str(underclock.runtime.__file__)).parent
    files = list(runtime.rglob("*.py"))
    assert len(files) > 40
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                looks = node.value.id in {"time", "datetime"} and node.attr in named
                assert not looks, f"{file}:{node.lineno} looks at {node.attr}"
            if isinstance(node, ast.ImportFrom) and node.module in {"time", "datetime"}:
                assert not named & {each.name for each in node.names}, file


def _has_no_reader() -> None:
    reads, writes = os.pipe()
    os.dup2(writes, 2)
    os.close(writes)
    os.close(reads)


def _is_full() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 2)


def _runs(bench: Bench, path: Path) -> None:
    """Run a command, kill the watchdog meanwhile, and see that another one watches."""
    over = bench.folder / "over"

    def act() -> None:
        try:
            bench.comes((bench.folder / "over.begun").exists)
            controller, watchdog = bench.pids()
            os.kill(watchdog, signal.SIGKILL)  # of which the controller tells on stderr
            bench.comes(lambda: bench.has_another_watchdog(watchdog))
            assert bench.pids()[0] == controller
        finally:
            over.touch()

    with Pool(1) as pool:
        acting = pool.submit(act)
        ran = run(plan(), [sys.executable, "-S", "-c", _WAITS, str(over)], bench.how())
        acting.result()
    path.write_text(ran.why)


@pytest.mark.untraced
@pytest.mark.parametrize(
    "spoil", [lambda: os.close(2), _has_no_reader, _is_full], ids=["closed", "no reader", "full"]
)
def test_a_run_lives_without_stderr(
    spoil: Callable[[], None], bench: Bench, tmp_path: Path
) -> None:
    pid = os.fork()
    if not pid:
        code = 1
        try:
            sys.stderr = None
            spoil()
            _runs(bench, tmp_path / "why")
            code = 0
        except BaseException:  # noqa: BLE001 - told in a file, for want of stderr
            (tmp_path / "failed").write_text(traceback.format_exc())
        finally:
            os._exit(code)
    os.waitpid(pid, 0)

    assert not (tmp_path / "failed").exists(), (tmp_path / "failed").read_text()
    assert (tmp_path / "why").read_text() == "the training process ended"
    assert bench.is_clean()


_LONGEST_S = 15.0  # of waiting for the guard, while processors are free
# Every Python that is started with it notes what it imports, and what it does to journals.
_NOTES = """
import os, sys
if "underclock.runtime.controller.starting" in sys.orig_argv[-2]:
    noted = os.open({path!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    def note(event, of):
        if event == "import":
            os.write(noted, f"{{of[0]}}\\n".encode())
        elif event in ("os.rename", "os.remove") and ".journal" in str(of[0]):
            os.write(noted, f"{{event}}\\n".encode())
    sys.addaudithook(note)
"""


@pytest.mark.slow
def test_nothing_is_loaded_while_clocks_are_held(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "first").mkdir()
    noted = tmp_path / "noted"
    (tmp_path / "first" / "sitecustomize.py").write_text(_NOTES.format(path=str(noted)))
    paths = [str(tmp_path / "first"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))

    made = plan(launch_s=2e-3)
    bound_by_core = tuple(
        msgspec.structs.replace(each, flops=2e10, bytes_moved=2e6) for each in made.step.kernels
    )
    with applied(with_step(made, kernels=bound_by_core), bench.how(window=5)):
        until_s = free_s() + _LONGEST_S
        for step, _ in enumerate(training(Model(), sys.maxsize)):  # who is ahead waits
            if step % 10 == 0 and ("slower than promised" in bench.events() or free_s() > until_s):
                break

    assert "slower than promised" in bench.events()
    names = noted.read_text().split()
    armed = names.index("os.rename")  # the first journal is in its place
    undone = len(names) - names[::-1].index("os.remove")
    assert set(names[armed:undone]) <= {"os.rename", "os.remove"}
    assert "msgspec" in names[:armed]
    assert not {"numpy", "scipy"} & set(names)
