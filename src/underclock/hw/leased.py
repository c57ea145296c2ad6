"""Setting GPUs through `underclock serve`, a service of the machine's operator.

A lease of one GPU comes with the first setting, and ends with the connection: the service then puts
back what was set, whatever became of this process. A thread says that it lives.
"""

import os
import stat
import threading
from typing import Any

from underclock import errors
from underclock.errors import DeviceError, NotPermittedError, UnderclockError, UsageError
from underclock.hw.nvml_calls import check_writable
from underclock.hw.settable import SettableNvmlGpu, Setting, Value
from underclock.hw.wire import Connection, Gone, Message, peer_of

HELPER = "UNDERCLOCK_HELPER"
"""Names the socket of `underclock serve`."""
USUAL = "/run/underclock.sock"
HEARTBEAT_S = 1.0
"""How often the owner of a lease says that it lives."""


def helper_path() -> str:
    """Return where the service listens, as the environment says, or where it usually does."""
    return os.environ.get(HELPER, "") or USUAL


class HelperGoneError(DeviceError):
    """The service ended the connection, and the lease with it."""


class Helper:
    """A connection to the service at a socket.

    Raises:
        DeviceError: No service answers there.
        NotPermittedError: This process may not connect, or the socket cannot be trusted.
    """

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._connection = _connected(path)

    def ask(self, message: Message) -> Message:
        """Ask for something.

        Raises:
            HelperGoneError: It does not answer any more.
            UnderclockError: It refuses.
        """
        with self._lock:
            try:
                answer = self._connection.ask(message)
            except Gone as exc:
                raise HelperGoneError(
                    f"`underclock serve` ended the lease: {exc}",
                    hint="it puts back what it had set; what it says tells why",
                ) from exc
        if answer.get("ends"):
            raise HelperGoneError(
                f"`underclock serve` ended the connection: {answer.get('error')}",
                hint=str(answer.get("hint", "")),
            )
        if "error" in answer:
            raise _refusal(answer)
        return answer

    def close(self) -> None:
        """End the connection, and the leases taken on it."""
        self._connection.close()


def _connected(path: str) -> Connection:
    try:
        if os.stat(path).st_mode & stat.S_IWOTH:  # noqa: PTH116 - pathlib is one more import
            raise NotPermittedError(
                f"every user may write to {path}: no service of ours makes such a socket",
                hint="whoever operates it lets a group in, with --group",
            )
        connection = Connection(path)
    except PermissionError as exc:
        raise NotPermittedError(
            f"this user may not use `underclock serve` at {path}",
            hint=f"its operator lets the group of {path} in: ask to be in it",
        ) from exc
    except OSError as exc:
        raise DeviceError(
            f"nobody serves clocks at {path}: {exc.strerror}",
            hint="root can: `underclock serve --group GROUP`",
        ) from exc
    _, uid, _ = peer_of(connection.socket)
    if uid not in {0, os.getuid()}:
        connection.close()
        raise NotPermittedError(
            f"user {uid} answers at {path}, who is not root and not this one",
            hint=f"let {HELPER} name the operator's socket",
        )
    return connection


def _refusal(answer: Message) -> UnderclockError:
    kind = getattr(errors, str(answer.get("kind")), UsageError)
    error: UnderclockError = kind(str(answer["error"]), hint=str(answer.get("hint", "")))
    return error


class LeasedGpu(SettableNvmlGpu):
    """One NVIDIA GPU, read through NVML and set by the service; inside an `nvml_session`."""

    def __init__(self, uuid: str, path: str) -> None:
        super().__init__(uuid)
        self._path = path
        self._helper: Helper | None = None
        self._ended = threading.Event()

    def write(self, setting: Setting, value: Value) -> None:
        """Have it set; ``None`` gives a clock back to the driver."""
        check_writable(f"set the {setting}")
        try:
            self._leased().ask({"do": "set", "gpu": self.uuid, "setting": setting, "value": value})
        except HelperGoneError:
            self.close()  # what is set next takes another lease
            raise

    def close(self) -> None:
        """Give the lease back; the service undoes what is still set."""
        self._ended.set()
        if self._helper is not None:
            self._helper.close()
            self._helper = None

    def _leased(self) -> Helper:
        if self._helper is None:
            helper = Helper(self._path)
            try:
                helper.ask({"do": "lease", "gpu": self.uuid})
            except UnderclockError:
                helper.close()
                raise
            self._helper, self._ended = helper, threading.Event()
            threading.Thread(target=_beat, args=(helper, self._ended), daemon=True).start()
        return self._helper


def _beat(helper: Helper, ended: threading.Event) -> None:
    """Say that the owner lives, until it ends or the service is gone."""
    while not ended.wait(HEARTBEAT_S):
        try:
            helper.ask({"do": "beat"})
        except (UnderclockError, OSError):  # the next setting raises it
            return


def served_by(path: str) -> dict[str, Any]:
    """Return what the service at a socket says of itself.

    Raises:
        UnderclockError: There is none, or it lets this process do nothing.
    """
    helper = Helper(path)
    try:
        return helper.ask({"do": "who"})
    finally:
        helper.close()
