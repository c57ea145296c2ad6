"""The fault matrix, as far as the launcher or what it refuses is concerned."""

import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor as Pool
from pathlib import Path

import pytest

from fault_bench import Bench
from small_training import plan
from underclock.errors import DeviceError, NotPermittedError, UnderclockError, UsageError
from underclock.hw.nvml_calls import READ_ONLY, nvml_session
from underclock.hw.settable import SettableNvmlGpu, Setting
from underclock.runtime.holding.run import HowToRun, Ran, run
from underclock.runtime.undo.armed import arm, left_behind
from underclock.stages.doctor import examine

_KILL, _STOP = signal.SIGKILL, signal.SIGSTOP
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
    if number is _KILL:  # one that is stopped goes on when its conductor dies, and may be quicker
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


def test_a_log_that_cannot_be_read_again_is_not(bench: Bench) -> None:
    """`/dev/full` takes nothing and, read, never ends. Arms are without a guard, by default."""
    command = [sys.executable, "-S", "-c", "raise SystemExit(0)"]

    ran = run(plan(), command, bench.how(log=Path("/dev/full"), dry=True, arms="auto,plan"))

    assert (ran.code, ran.summary.steps) == (0, 0)


def test_where_there_can_be_no_lock_nothing_is_set_and_the_reason_is_told(bench: Bench) -> None:
    """A full disk is the benchmark's; here something else is in the way."""
    (bench.folder / f"{examine('nvml:0').gpus[0].gpu.uuid}.lock").mkdir()

    with pytest.raises(UnderclockError, match=r"cannot open the lock .* Is a directory"):
        run(plan(), [sys.executable, "-S", "-c", "raise SystemExit(9)"], bench.how())

    assert bench.state() == (None, None, 350.0, False)


def test_without_permission_each_way_says_why_it_is_closed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(READ_ONLY, "1")

    with pytest.raises(NotPermittedError, match=READ_ONLY) as refused:
        run(plan(), [sys.executable, "-S", "-c", "raise SystemExit(9)"], bench.how())

    assert refused.value.hint


def test_a_run_mends_what_another_left_and_a_third_is_refused(bench: Bench) -> None:
    refusals: list[str] = []

    def befalls() -> None:
        try:
            run(plan(), [sys.executable, "-S", "-c", "raise SystemExit(9)"], HowToRun())
        except UsageError as exc:
            refusals.append(str(exc))

    with nvml_session():
        gpu = SettableNvmlGpu(examine("nvml:0").gpus[0].gpu.uuid or "")
        left = arm(gpu, bench.folder, share_lock=lambda _: None)
        left.set(Setting.CORE, 900)
        left.lock.release()

    ran = _run(bench, befalls)

    assert "an earlier run had left something set: core given back to the driver" in bench.told
    assert "is set by another Underclock: process" in refusals[0]
    assert ran.why == "the training process ended"
    assert bench.is_clean()


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


def test_nothing_here_looks_at_the_wall_clock() -> None:
    """So a jump of the host's clock cannot matter."""
    import ast

    import underclock.runtime
    import underclock.stages

    named = {"time", "time_ns", "datetime", "localtime", "gmtime", "CLOCK_REALTIME", "ctime"}
    runtime = Path(str(underclock.runtime.__file__)).parent
    stages = Path(str(underclock.stages.__file__)).parent
    launcher = [stages / f"{name}.py" for name in ("run", "held_run", "how_to_run")]
    files = [*runtime.rglob("*.py"), *launcher]
    assert len(files) > 40
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                looks = node.value.id in {"time", "datetime"} and node.attr in named
                assert not looks, f"{file}:{node.lineno} looks at {node.attr}"
            if isinstance(node, ast.ImportFrom) and node.module in {"time", "datetime"}:
                assert not named & {each.name for each in node.names}, file
