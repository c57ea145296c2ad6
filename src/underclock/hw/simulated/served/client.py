"""Served GPUs as other processes see them: NVML's library, and control for those who judge."""

import os
import threading
from functools import partial
from typing import Any, Self

import pynvml

from underclock.errors import DeviceError, UsageError
from underclock.hw.simulated.served.ctypes_json import packed, write_back
from underclock.hw.wire import Connection, Gone, Message

_INITS = {"nvmlInitWithFlags", "nvmlInit_v2"}
_SHUTDOWN = "nvmlShutdown"
_BEGIN = {"do": "call", "name": "nvmlInitWithFlags", "arguments": [{"int": 0}]}
_NOT_LOADED = int(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
_OK = int(pynvml.NVML_SUCCESS)


def connected(path: str) -> Connection:
    """Return a connection to served GPUs."""
    try:
        return Connection(path)
    except OSError as exc:
        raise DeviceError(
            f"no simulated GPU answers at {path}: {exc.strerror}",
            hint=f"start one with `underclock simulate rtx3080ti --socket {path}`, or unset "
            "UNDERCLOCK_SIMULATOR",
        ) from exc


class ServedLibrary:
    """Stands in NVML's place, and has another process answer.

    A process that was forked off connects anew, and so does one whose server came back; sessions
    that were begun go on, as far as the caller can tell.
    """

    simulated = True  # what is read through it was never measured

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._connection: Connection | None = connected(path)
        self._sessions = 0
        names = self._connection.ask({"do": "functions"})["functions"]
        self._functions = {name: partial(self.call, name) for name in names}

    def __getattr__(self, name: str) -> "partial[int | bytes]":
        functions: dict[str, partial[int | bytes]] = self.__dict__.get("_functions", {})
        if name not in functions:
            raise AttributeError(name)
        return functions[name]

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._drop()

    def call(self, name: str, *arguments: Any) -> int | bytes:  # noqa: ANN401 - what ctypes made
        """Call a function where the GPUs are."""
        message = {"do": "call", "name": name, "arguments": [packed(each) for each in arguments]}
        with self._lock:
            try:
                answer = self._ask(message)
            except (Gone, DeviceError):
                if name != _SHUTDOWN:
                    return _NOT_LOADED
                answer = {"code": _OK, "out": []}  # the session ended with who kept it
        if "error" in answer:
            return int(pynvml.NVML_ERROR_UNKNOWN)
        if "text" in answer:
            return str(answer["text"]).encode()
        for argument, content in zip(arguments, answer["out"], strict=True):
            write_back(argument, content)
        code = int(answer["code"])
        if code == _OK and name in _INITS:
            self._sessions += 1
        if code == _OK and name == _SHUTDOWN:
            self._sessions -= 1
        return code

    def _ask(self, message: Message) -> Message:
        """Ask, on a new connection where this one is another process's or broken."""
        if self._pid == os.getpid() and self._connection is not None:
            try:
                return self._connection.ask(message)
            except Gone:
                pass
        self._drop()
        connection = self._connection = connected(self.path)
        self._pid = os.getpid()
        try:
            for _ in range(self._sessions):
                connection.ask(_BEGIN)
            return connection.ask(message)
        except Gone:
            self._drop()
            raise

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class Control:
    """A connection over which things go wrong, for tests and studies."""

    def __init__(self, path: str) -> None:
        self._connection = connected(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def fault(self, name: str, value: float | None = None, *, gpu: int | None = None) -> None:
        """Let something go wrong on a GPU or on all, until `heal`.

        The value is for how many seconds setters hang, or the power limit in W that is set.
        """
        self._ask({"do": "fault", "name": name, "value": value, "gpu": gpu})

    def heal(self, *, gpu: int | None = None) -> None:
        """End what is wrong with a GPU, or with all; a lost one comes back without locks."""
        self._ask({"do": "heal", "gpu": gpu})

    def truth(self, gpu: int = 0) -> dict[str, Any]:
        """Return what is true of a GPU: time, energy, clocks, locks, limit, launches."""
        return self._ask({"do": "truth", "gpu": gpu})

    def _ask(self, message: Message) -> Message:
        try:
            answer = self._connection.ask(message)
        except Gone as exc:
            raise DeviceError(
                f"the simulated GPUs are gone: {exc}", hint="start them anew"
            ) from exc
        if "error" in answer:
            raise UsageError(answer["error"], hint=answer.get("hint", ""))
        return answer
