import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from invented import PLAN
from kills import Rig
from underclock.app import main
from underclock.errors import DeviceError
from underclock.hw.base import SystemClock
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import SettableNvmlGpu
from underclock.records import Clocks, Plan
from underclock.runtime.holding.held_gpu import holding
from underclock.runtime.undo.guarded_gpu import GuardedGpu, left_behind
from underclock.runtime.undo.ownership import Process
from underclock.store import write_document
from underclock.testing import Control
from underclock.units import Domain
from users import NOBODY, as_root

FIXED = Clocks(core_mhz=1200, mem_mhz=9251)


@pytest.fixture
def plan_for(rig: Rig, tmp_path: Path) -> Callable[..., Path]:
    """Write a plan for this GPU, but for what is named."""
    info = NvmlGpu(0).info()

    def write(**changes: object) -> Path:
        gpu = msgspec.structs.replace(info, **changes.pop("gpu", {}))  # type: ignore[arg-type]
        plan: Plan = msgspec.structs.replace(PLAN, gpu=gpu, **({"fixed": FIXED} | changes))
        path = tmp_path / "plan.json"
        write_document(path, plan, force=True)
        return path

    del rig
    return write


@pytest.fixture
def interrupted_once_set(rig: Rig) -> Iterator[list[tuple[object, ...]]]:
    """Press Ctrl-C as soon as something is set; return what was."""
    seen: list[tuple[object, ...]] = []
    over = threading.Event()

    def look() -> None:
        gpu = SettableNvmlGpu(rig.uuid)
        clock = SystemClock()
        while not over.is_set():
            clock.sleep_s(0.005)
            locks = tuple(map(gpu.read, Domain))
            if None not in locks:
                clock.sleep_s(0.3)  # until it was told too
                seen.append(locks)
                os.kill(os.getpid(), signal.SIGINT)
                return

    thread = threading.Thread(target=look)
    thread.start()
    yield seen
    over.set()
    thread.join()


def test_the_best_fixed_clocks_are_held_until_ctrl_c(
    plan_for: Callable[..., Path],
    interrupted_once_set: list[tuple[object, ...]],
    rig: Rig,
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["apply", str(plan_for())])

    said = capsys.readouterr()
    assert interrupted_once_set == [((1200, 1200), (9251, 9251))]
    assert "core: asked 1200 MHz, accepted; runs at" in said.out
    assert "core given back to the driver" in said.out
    assert rig.is_clean()


@pytest.mark.slow
def test_clocks_are_given_back_where_controller_and_watchdog_are_stopped(
    plan_for: Callable[..., Path], rig: Rig
) -> None:
    def stopped() -> None:
        with holding(plan_for()) as held:
            watchdog = rig.watchdog_of(held.pid)
            assert watchdog is not None
            for pid in (watchdog, held.pid):
                os.kill(pid, signal.SIGSTOP)
            held.wait()

    with pytest.raises(DeviceError, match="said nothing"):
        stopped()
    assert rig.is_clean()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpu": {"name": "H200"}}, "the plan is for H200, this is RTX 3080 Ti"),
        ({"gpu": {"uuid": "GPU-1"}}, "made on board GPU-1"),
        ({"gpu": {"driver": "100.0"}}, "made under driver 100.0"),
        ({"fixed": None}, "nothing to hold: no fixed clock keeps its time budget"),
        ({"fixed": Clocks()}, "nothing to hold: its best fixed clocks are auto"),
        (
            {"fixed": Clocks(core_mhz=1201)},
            "core 1201 MHz, memory auto for the whole job, which this GPU does not list",
        ),
    ],
)
def test_a_plan_that_does_not_fit_sets_nothing(
    changes: dict[str, object],
    words: str,
    plan_for: Callable[..., Path],
    rig: Rig,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["apply", str(plan_for(**changes))])

    assert words in capsys.readouterr().err
    assert rig.is_clean()


def test_without_permission_it_says_so(
    plan_for: Callable[..., Path],
    control: Control,
    rig: Rig,
    capsys: pytest.CaptureFixture[str],
) -> None:
    control.fault("permission_revoked")

    with pytest.raises(SystemExit) as ended:
        main(["apply", str(plan_for())])

    assert ended.value.code == 3
    assert "could not lock the core" in capsys.readouterr().err
    assert rig.is_clean()


def _armed(rig: Rig) -> GuardedGpu:
    one = GuardedGpu(SettableNvmlGpu(rig.uuid), rig.folder, share_lock=lambda _: None)
    one.set(Domain.CORE, 1200)
    return one


def _left_by_a_run(rig: Rig) -> None:
    _armed(rig).lock.release()  # as when its processes were killed


def test_restore_undoes_what_was_left(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    _left_by_a_run(rig)

    main(["restore"])

    assert "core given back to the driver" in capsys.readouterr().out
    assert rig.is_clean()


def test_restore_leaves_a_run_that_goes_on_alone(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    one = _armed(rig)

    main(["restore"])

    assert f"set by another Underclock: process {os.getpid()}" in capsys.readouterr().out
    assert not rig.is_clean()
    one.end()


def test_restore_that_is_refused_ends_with_the_drivers_code(
    rig: Rig, control: Control, capsys: pytest.CaptureFixture[str]
) -> None:
    _left_by_a_run(rig)
    control.fault("permission_revoked")

    with pytest.raises(SystemExit) as ended:
        main(["restore"])

    assert ended.value.code == 3
    assert "the core STAYS set" in capsys.readouterr().err
    control.heal()
    main(["restore"])
    assert rig.is_clean()


def _hostile(folder: Path, journal: str, lock: str) -> None:
    """What a user may leave in the folder of his own runs."""
    (folder / "GPU-1.journal").symlink_to("/etc/shadow")
    os.mkfifo(folder / "GPU-2.journal")
    (folder / "GPU-3.journal").write_text("[" * 100_000)
    with (folder / "GPU-4.journal").open("wb") as file:
        file.truncate(64 << 30)
    for name, text in (("journal", journal), ("lock", lock)):
        (folder / f"{json.loads(journal)['uuid']}.{name}").write_text(text)


@as_root
@pytest.mark.parametrize("is_held", [True, False])
def test_no_user_steers_what_root_restores(*, is_held: bool, rig: Rig) -> None:
    temporary = Path(tempfile.mkdtemp())
    temporary.chmod(0o755)
    one = _armed(rig)
    theirs = temporary / f"underclock-{NOBODY}"
    theirs.mkdir(mode=0o700)
    journal = (rig.folder / f"{rig.uuid}.journal").read_text()
    with subprocess.Popen(["/bin/sleep", "100"]) as stopped:
        stopped.send_signal(signal.SIGSTOP)
        os.waitpid(stopped.pid, os.WUNTRACED)
        named = json.dumps({"conductor": Process.of(stopped.pid), "watcher": None})
        _hostile(theirs, journal, named)
        _owned_by_nobody(theirs)
        (temporary / "underclock-1").mkdir()  # not that user's
        (temporary / "underclock-7").symlink_to(rig.folder)
        (temporary / "underclock-x").mkdir()
        holding = os.open(theirs / f"{rig.uuid}.lock", os.O_RDWR)
        if is_held:
            fcntl.flock(holding, fcntl.LOCK_EX)

        begun_s = time.monotonic()
        subprocess.run(_for_others(temporary), check=True, timeout=20)

        assert time.monotonic() - begun_s < 12
        assert stopped.poll() is None
        stopped.kill()
    os.close(holding)
    assert rig.state()[0] == (1200, 1200)
    assert left_behind(rig.folder) == (rig.uuid,)
    one.end()
    shutil.rmtree(temporary)


def _owned_by_nobody(folder: Path) -> None:
    for path in (folder, *folder.iterdir()):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def _for_others(temporary: Path) -> list[str]:
    code = f"""
# Loaded while it may be: the package may lie where only root can read.
import underclock.hw.simulated.served.client, underclock.hw.zeusd
from pathlib import Path
from underclock.runtime.holding.restore import restore_for_others
restore_for_others(Path("/nowhere"), Path({str(temporary)!r}))
"""
    return [sys.executable, "-P", "-c", code]


def test_root_restores_its_own_whatever_lies_in_the_folders_of_others(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    _left_by_a_run(rig)

    main(["restore", "--all"])

    assert "core given back to the driver" in capsys.readouterr().out
    assert rig.is_clean()
