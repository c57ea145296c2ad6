"""restore: undo what an Underclock that was killed left set."""

import contextlib
import os
import pwd
import select
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from underclock.hw.base import parse_gpu
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import SIMULATOR, nvml_session, settable_gpu
from underclock.runtime.undo.guarded_gpu import Undone, left_behind
from underclock.runtime.undo.guarded_gpu import restore as undo_in
from underclock.runtime.undo.ownership import RUNTIME_DIR, runtime_folder, usual_folder

_SESSIONS = Path("/run/user")
_EACH_S, _ALL_S = 5.0, 30.0  # another user's folder may hang a process that reads it
_NOBODY = 65534
_KEPT = (SIMULATOR, "PATH")  # of root's environment, for a process that becomes another user
_CODE = "from underclock.runtime.holding.restore import restore_for_others; restore_for_others()"


def restore(gpu: str | None = None, *, everybody: bool = False) -> tuple[Undone, ...]:
    """Undo by the journals that were left behind.

    Args:
        gpu: Only of this one, such as ``nvml:0``.
        everybody: Whether to look in the folders of other users too, as root does after a job. What
            those say is done as far as that user could do it himself, and never fails this.

    Raises:
        UsageError: No such GPU.
        DeviceError: The driver does not answer.
    """
    undone = _restore_own(gpu)
    if everybody and os.geteuid() == 0:
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        with contextlib.suppress(subprocess.TimeoutExpired):  # it was killed
            subprocess.run(
                [sys.executable, "-P", "-c", _CODE],
                env=environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_ALL_S,
                check=False,
            )
    return undone


def _restore_own(gpu: str | None) -> tuple[Undone, ...]:
    folder = runtime_folder()
    left = left_behind(folder)
    if not left and gpu is None:
        return ()
    with nvml_session():
        only = None if gpu is None else NvmlGpu(parse_gpu(gpu).index).uuid()
        return undo_in(folder, [uuid for uuid in left if only in {None, uuid}], settable_gpu)


def restore_for_others(sessions: Path = _SESSIONS, temporary: Path | None = None) -> None:
    """As root, restore each other user's folder in a process that has that user's rights alone."""
    for uid, folder in _others(sessions, temporary or usual_folder(0).parent):
        child = os.fork()
        if child == 0:
            try:
                _restore_as(uid, folder)
            finally:
                os._exit(0)  # its code is not read
        pidfd = os.pidfd_open(child)  # whatever becomes of the child, this goes on in time
        if not select.select([pidfd], [], [], _EACH_S)[0]:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            select.select([pidfd], [], [], _EACH_S)
        os.close(pidfd)
        os.waitpid(child, os.WNOHANG)


def _restore_as(uid: int, folder: Path) -> None:
    gid, groups = _NOBODY, list[int]()
    with contextlib.suppress(KeyError):
        user = pwd.getpwuid(uid)
        gid, groups = user.pw_gid, os.getgrouplist(user.pw_name, user.pw_gid)
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if folder.is_dir():
        os.environ[RUNTIME_DIR] = str(folder)
        _restore_own(None)


def _others(sessions: Path, temporary: Path) -> Iterator[tuple[int, Path]]:
    """Yield users and the folders where their runs keep their files by default."""
    usual = usual_folder(0).name.removesuffix("0")
    for parent, before, after in ((sessions, "", "underclock"), (temporary, usual, "")):
        for path in parent.glob(f"{before}[0-9]*"):
            with contextlib.suppress(OSError, ValueError):
                found, uid = path.lstat(), int(path.name.removeprefix(before))
                if stat.S_ISDIR(found.st_mode) and found.st_uid == uid != 0:
                    yield uid, path / after
