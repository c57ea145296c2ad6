"""Locks, who has them, and processes that hold them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from underclock.errors import NotPermittedError
from underclock.hw.base import SystemClock
from underclock.runtime.undo.ownership import (
    RUNTIME_DIR,
    OwnedError,
    Ownership,
    Process,
    named_in,
    runtime_folder,
)
from underclock.runtime.undo.watchdog_process import WatchdogProcess
from users import NOBODY, AsNobody, as_root

_HOLD = """
import fcntl, json, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(descriptor, fcntl.LOCK_EX)
started = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19])
me = [os.getpid(), started]
os.pwrite(descriptor, json.dumps({"conductor": me, "watcher": None}).encode(), 0)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def owner(folder: Path, word: str = "underclock") -> Iterator["subprocess.Popen[bytes]"]:
    """Another process that has the lock, with a word on its command line."""
    command = [sys.executable, "-I", "-S", "-c", _HOLD, str(folder / "GPU-0.lock"), word]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_lock_is_anothers_until_it_ends(folder: Path) -> None:
    with owner(folder) as other:
        with pytest.raises(OwnedError, match=f"process {other.pid}, for 0 s") as refused:
            Ownership.take(folder, "GPU-0")
        assert f"kill {other.pid}" in refused.value.hint
        other.kill()
        other.wait()

        Ownership.take(folder, "GPU-0").release()


def test_an_owner_that_was_stopped_does_not_keep_a_gpu(folder: Path) -> None:
    with owner(folder) as other:
        other.send_signal(signal.SIGSTOP)
        process = Process.of(other.pid)
        clock = SystemClock()
        while process is not None and not process.stopped:
            clock.sleep_s(0.001)

        Ownership.take(folder, "GPU-0").release()

        assert other.wait() == -signal.SIGKILL


def test_a_stopped_process_that_is_no_underclock_is_named_and_not_killed(folder: Path) -> None:
    with owner(folder, word="sleep") as other:
        other.send_signal(signal.SIGSTOP)
        os.waitpid(other.pid, os.WUNTRACED)

        with pytest.raises(OwnedError, match=f"process {other.pid}, for 0 s"):
            Ownership.take(folder, "GPU-0", wait_s=0)

        assert Path(f"/proc/{other.pid}").exists()
        assert other.poll() is None


def test_a_lock_whose_owner_is_not_named_yet_is_told_by_the_kernel(folder: Path) -> None:
    first = Ownership.take(folder, "GPU-0")

    with pytest.raises(OwnedError, match=f"set by another Underclock: process {os.getpid()}, for"):
        Ownership.take(folder, "GPU-0", wait_s=0)

    first.release()
    first.release()  # harmless


@pytest.mark.parametrize(
    "text",
    [
        b'{"conductor": [1, 99], "watcher": null}',
        b'{"conductor": ["1/../1", 99], "watcher": [-1, 2]}',
        b"[" * 60_000,
        b'{"conductor": [%s, 1]}' % (b"9" * 5000),
    ],
)
def test_a_name_that_is_another_process_by_now_or_none_owns_nothing(
    text: bytes, folder: Path
) -> None:
    first = Ownership.take(folder, "GPU-0")
    first.name(os.getpid())
    controller, watchdog = named_in(folder / "GPU-0.lock")
    assert controller == Process.of(os.getpid())
    assert watchdog is None

    os.ftruncate(first.descriptors[0], 0)
    os.pwrite(first.descriptors[0], text, 0)

    with pytest.raises(OwnedError, match="set by another Underclock"):
        Ownership.take(folder, "GPU-0", wait_s=0)


def test_a_user_who_sets_a_gpu_past_root_gives_way_to_root(tmp_path: Path) -> None:
    own, machine = tmp_path / "own", tmp_path / "machine"
    own.mkdir(mode=0o700)
    machine.mkdir()
    first = Ownership.take(machine, "GPU-0")

    with pytest.raises(OwnedError, match=f"process {os.getpid()}, for"):
        Ownership.take(own, "GPU-0", machine=machine)

    Ownership.take(own, "GPU-1", machine=machine).release()  # of which root has no lock yet
    first.release()
    Ownership.take(own, "GPU-0", machine=machine).release()


@as_root
def test_a_lock_that_this_user_may_not_open_is_seen_all_the_same(as_nobody: AsNobody) -> None:
    own, machine = as_nobody.folder, as_nobody.folder.with_name("machine")
    machine.mkdir()
    code = f"""
from pathlib import Path
from underclock.runtime.undo.ownership import OwnedError, Ownership
try:
    Ownership.take(Path({str(own)!r}), "GPU-0", machine=Path({str(machine)!r})).release()
    print("taken")
except OwnedError as exc:
    print(exc)
"""
    first = Ownership.take(machine, "GPU-0")

    assert f"set by another Underclock: process {os.getpid()}, for" in as_nobody(code)
    assert "of user 0" in as_nobody(code)
    first.release()
    assert as_nobody(code) == "taken\n"


@as_root
def test_nobody_but_root_can_have_roots_lock(as_nobody: AsNobody) -> None:
    machine = as_nobody.folder.with_name("machine")
    machine.mkdir()
    Ownership.take(machine, "GPU-0").release()
    code = f"""
import fcntl, os
for flags in (os.O_RDONLY, os.O_RDWR):
    try:
        fcntl.flock(os.open("{machine}/GPU-0.lock", flags), fcntl.LOCK_EX)
        print("taken")
    except PermissionError:
        pass
"""

    assert as_nobody(code) == ""


@as_root
def test_whom_the_operator_lets_open_a_lock_has_it_against_root(as_nobody: AsNobody) -> None:
    machine = as_nobody.folder.with_name("machine")
    machine.mkdir()
    Ownership.take(machine, "GPU-0").release()
    os.chown(machine / "GPU-0.lock", 0, NOBODY)
    code = f"""
import sys
from pathlib import Path
from underclock.runtime.undo.ownership import Ownership
lock = Ownership.take(Path({str(as_nobody.folder)!r}), "GPU-0", machine=Path({str(machine)!r}))
print("taken", flush=True)
sys.stdin.read()
"""

    with as_nobody.started(code) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "taken\n"
        with pytest.raises(OwnedError, match=f"process {holder.pid}, for .*, of user {NOBODY}"):
            Ownership.take(machine, "GPU-0", wait_s=0)
    Ownership.take(machine, "GPU-0").release()


@as_root
def test_root_does_not_trust_a_folder_below_another_users(
    as_nobody: AsNobody, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUNTIME_DIR, str(as_nobody.folder / "mine"))
    (as_nobody.folder / "mine").mkdir(mode=0o700)

    with pytest.raises(NotPermittedError, match="other users may write to"):
        runtime_folder()


def test_a_lock_that_is_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "GPU-0.lock").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(NotPermittedError, match="cannot open the lock"):
        Ownership.take(folder, "GPU-0")

    assert not (tmp_path / "elsewhere").exists()


def test_the_folder_is_the_one_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path / "a" / "b"))

    assert runtime_folder() == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_may_write_a_link_and_a_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, mode in (("open", 0o777), ("group", 0o720)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    (tmp_path / "link").symlink_to(tmp_path / "open")
    (tmp_path / "file").touch()
    for name, words in (
        ("open", "other users may write"),
        ("group", "other users may write"),
        ("link", "is not a folder"),
        ("file", "cannot make the folder"),
    ):
        monkeypatch.setenv(RUNTIME_DIR, str(tmp_path / name))
        with pytest.raises(NotPermittedError, match=words):
            runtime_folder()


def test_a_process_is_its_number_and_its_start() -> None:
    me = Process.of(os.getpid())

    assert me is not None
    assert me.lives
    assert me.age_s > 0
    assert not me.stopped
    assert not Process(me.pid, me.started - 1).lives
    assert Process.of(2**22 + 1) is None


def test_a_watchdog_that_starts_is_waited_for_in_peace(tmp_path: Path) -> None:
    watchdog = WatchdogProcess(tmp_path)
    try:
        now_s = watchdog.next_s + 0.01
        watchdog.poll(now_s)

        assert watchdog.next_s > now_s
    finally:
        watchdog.close()


def test_a_process_that_is_stopped_is_seen_to_be() -> None:
    with subprocess.Popen(["/bin/sleep", "100"]) as child:
        process = Process.of(child.pid)
        assert process is not None
        assert [process.stopped] == [False]
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        assert [process.stopped] == [True]
        child.send_signal(signal.SIGCONT)
        child.kill()
        child.wait()
        assert [process.stopped] == [False]
