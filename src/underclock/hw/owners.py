"""Whose a GPU is, for the service that sets clocks for users who may not.

The operator says by which rule in a file that only root can have written. Nothing that another user
could have written is believed.
"""

import contextlib
import os
import stat
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import msgspec
import pynvml

from underclock.errors import NotPermittedError, NotSupportedError, UnderclockError, UsageError
from underclock.hw.nvml_calls import call

RULES = Path("/etc/underclock/serve.toml")
"""Where the operator says who may lease what."""
_LONGEST = 4096  # bytes of a file about owners


class Policy(StrEnum):
    """Which users may lease a GPU."""

    ANY = "any"  # all who may connect
    PROCESS = "process"  # the one user who computes on it now
    FILE = "file"  # whom the site's prolog names


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the operator's file says.

    Attributes:
        policy: Which users may lease a GPU.
        owners: Folder of one file per GPU, named by UUID, with the numbers of its users.
    """

    policy: Policy = Policy.PROCESS
    owners: str = "/run/underclock-owners"


def rules_in(path: Path | None) -> Rules:
    """Return what a file says of who may lease what; without a path, the usual one's if any.

    Raises:
        UsageError: It says something else.
        NotPermittedError: Others may write to it.
    """
    try:
        return msgspec.toml.decode(_trusted(path or RULES), type=Rules)
    except FileNotFoundError as exc:
        if path is None:
            return Rules()
        raise UsageError(f"there is no file {path}") from exc
    except (msgspec.DecodeError, ValueError, OSError) as exc:
        raise UsageError(
            f"{path or RULES} does not say who may lease which GPU: {exc}",
            hint=f"policy = one of {', '.join(Policy)}; owners = a folder",
        ) from exc


def _trusted(path: Path) -> bytes:
    """Return what is in a file that nobody but root or this user can have written.

    Raises:
        NotPermittedError: Others may write to it, or it is no file of a few lines.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        _check_owner(path, found)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LONGEST:
            raise NotPermittedError(f"{path} is no file of at most {_LONGEST} bytes")
        return os.read(fd, _LONGEST)
    finally:
        os.close(fd)


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in {0, os.geteuid()} or found.st_mode & 0o022:
        raise NotPermittedError(
            f"others than root may write to {path}, so it is not believed",
            hint=f"chown root:root {path} && chmod go-w {path}",
        )


def computing(uuid: str) -> set[int]:
    """Return which users but root compute on a GPU.

    Raises:
        UnderclockError: The driver does not tell.
    """
    handle = call(f"open GPU {uuid}", pynvml.nvmlDeviceGetHandleByUUID, uuid)
    found = set()
    for function in (
        pynvml.nvmlDeviceGetComputeRunningProcesses,
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
    ):
        try:
            running = call(f"read who computes on GPU {uuid}", function, handle)
        except NotSupportedError:
            if function is pynvml.nvmlDeviceGetComputeRunningProcesses:
                raise
            continue  # a driver before MPS was listed
        for process in running:
            try:
                found.add(Path(f"/proc/{process.pid}").stat().st_uid)
            except OSError:  # it has ended, or is of another container
                continue
    return found - {0}


class Owners:
    """Whose the GPUs are; inside an `nvml_session`.

    Root and the user who serves may lease any.

    Args:
        rules: What the operator says.
        computing: Says which users compute on a GPU.
    """

    def __init__(self, rules: Rules, *, computing: Callable[[str], set[int]] = computing) -> None:
        self.rules = rules
        self._computing = computing

    def check(self, uuid: str, uid: int) -> None:
        """Refuse a user whose a GPU is not.

        Raises:
            NotPermittedError: It is not; the error says what to do.
        """
        if self.rules.policy is Policy.ANY or uid in {0, os.geteuid()}:
            return
        whose = f"GPU {uuid} is not known to be user {uid}'s"
        if self.rules.policy is Policy.FILE:
            if uid not in (self._named(uuid) or ()):
                raise NotPermittedError(
                    f"{whose}: no file of the operator's says so",
                    hint=f"the job's prolog names its user in {self.rules.owners}/{uuid}",
                )
            return
        users = self._computing(uuid)
        if uid not in users:
            raise NotPermittedError(
                f"{whose}: none of that user's processes computes there",
                hint="start the job first, then set clocks; or ask the operator for policy = "
                f'"{Policy.FILE}" in {RULES}',
            )
        if len(users) > 1:
            raise NotPermittedError(
                f"{whose} alone: users {sorted(users)} compute there, and clocks are one for all",
                hint="lease a GPU that nobody shares, or ask the operator",
            )

    def has_lost(self, uuid: str, uid: int) -> bool:
        """Return whether a GPU is another user's now, whose it was when it was leased."""
        if self.rules.policy is Policy.ANY or uid in {0, os.geteuid()}:
            return False
        users: set[int] | None = set()
        if self.rules.policy is Policy.FILE:
            users = self._named(uuid)
        else:
            with contextlib.suppress(UnderclockError):  # who cannot be asked says nothing
                users = self._computing(uuid)
        return users is None or (bool(users) and uid not in users)

    def _named(self, uuid: str) -> set[int] | None:
        """Return whom the site names; ``None`` where it has no file.

        Nobody is named where the file cannot be believed, or is only just being written.
        """
        folder = Path(self.rules.owners)
        try:
            _check_owner(folder, folder.lstat())
            words = _trusted(folder / uuid).decode("ascii").split()
            return {int(word) for word in words}
        except FileNotFoundError:
            return None
        except (NotPermittedError, OSError, ValueError):
            return set()
