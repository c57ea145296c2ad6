import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from underclock.errors import NotPermittedError
from underclock.hw.clock import SystemClock
from underclock.runtime.undo.ownership import (
    RUNTIME_DIR,
    OwnedError,
    Ownership,
    named_in,
    runtime_folder,
)
from underclock.runtime.undo.processes import Process

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
def owner(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Another process that has the lock."""
    command = [sys.executable, "-I", "-S", "-c", _HOLD, str(folder / "GPU-0.lock")]
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


def test_a_lock_whose_owner_is_not_named_yet_is_owned_all_the_same(folder: Path) -> None:
    first = Ownership.take(folder, "GPU-0")

    with pytest.raises(OwnedError, match="set by another Underclock") as refused:
        Ownership.take(folder, "GPU-0", wait_s=0)

    assert "only just begun" in refused.value.hint
    first.release()
    first.release()  # harmless


def test_a_name_that_is_another_process_by_now_owns_nothing(folder: Path) -> None:
    first = Ownership.take(folder, "GPU-0")
    first.name(os.getpid())
    conductor, watcher = named_in(folder / "GPU-0.lock")
    assert conductor == Process.of(os.getpid())
    assert watcher is None

    os.ftruncate(first.descriptor, 0)
    os.pwrite(first.descriptor, b'{"conductor": [1, 99], "watcher": null}', 0)

    with pytest.raises(OwnedError, match=r"set by another Underclock$"):
        Ownership.take(folder, "GPU-0", wait_s=0)


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


@pytest.mark.parametrize("mode", [0o777, 0o720])
def test_a_folder_that_others_may_write_is_refused(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path / "open"))

    with pytest.raises(NotPermittedError, match="others may write"):
        runtime_folder()


def test_a_folder_that_is_a_link_or_a_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    (tmp_path / "file").touch()
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path / "link"))
    with pytest.raises(NotPermittedError, match="is not a folder"):
        runtime_folder()

    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path / "file"))
    with pytest.raises(NotPermittedError, match="cannot make the folder"):
        runtime_folder()


def test_a_process_is_its_number_and_its_start() -> None:
    me = Process.of(os.getpid())

    assert me is not None
    assert me.lives
    assert me.age_s > 0
    assert not me.stopped
    assert not Process(me.pid, me.started - 1).lives
    assert Process.of(2**22 + 1) is None
