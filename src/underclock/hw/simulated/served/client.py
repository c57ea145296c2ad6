"""NVML's library, as a program sees it whose GPUs are served by another process."""

import os
import socket
import threading
from typing import Any

import pynvml

from underclock.errors import DeviceError
from underclock.hw.nvml_calls import SIMULATOR
from underclock.hw.simulated.served.ctypes_json import packed, write_back
from underclock.hw.wire import Gone, Message, Reader, send

_INITS = {"nvmlInitWithFlags", "nvmlInit_v2"}
_SHUTDOWN = "nvmlShutdown"
_NOT_LOADED = int(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
_OK = int(pynvml.NVML_SUCCESS)


def connected(path: str) -> socket.socket:
    """Return a connection to served GPUs.

    Raises:
        DeviceError: Nobody answers there.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except OSError as exc:
        connection.close()
        raise DeviceError(
            f"no simulated GPU answers at {path}: {exc.strerror}",
            hint=f"start one with `underclock simulate rtx3080ti --socket {path}`, or unset "
            f"{SIMULATOR}",
        ) from exc
    return connection


class ServedLibrary:
    """Stands in NVML's place, and has another process answer.

    A process that was forked off connects anew, and so does one whose server came back; sessions
    that were begun go on, as far as the caller can tell.

    Args:
        path: Of the socket.

    Raises:
        DeviceError: Nobody answers there.
    """

    simulated = True  # what is read through it was never measured

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._pid = -1
        self._connection: socket.socket | None = None
        self._reader: Reader | None = None
        self._sessions = 0
        self._connect()
        names = self._ask({"do": "functions"})["functions"]
        self._functions = {name: _Function(self, name) for name in names}

    def __getattr__(self, name: str) -> "_Function":
        """Return a C function, as a loaded library does."""
        functions = self.__dict__.get("_functions", {})
        if name not in functions:
            raise AttributeError(name)
        function: _Function = functions[name]
        return function

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._drop()

    def call(self, name: str, arguments: tuple[Any, ...]) -> int | bytes:
        """Call a function where the GPUs are."""
        message = {"do": "call", "name": name, "arguments": [packed(each) for each in arguments]}
        with self._lock:
            try:
                answer = self._ask_again(message)
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

    def _ask_again(self, message: Message) -> Message:
        """Ask, on a new connection where this one is another process's or broken."""
        if self._pid != os.getpid() or self._connection is None:
            self._begin_again()
        try:
            return self._ask(message)
        except Gone:
            self._begin_again()
            return self._ask(message)

    def _begin_again(self) -> None:
        self._connect()
        for _ in range(self._sessions):
            self._ask({"do": "call", "name": "nvmlInitWithFlags", "arguments": [{"int": 0}]})

    def _connect(self) -> None:
        self._drop()
        self._connection = connected(self.path)
        self._reader = Reader(self._connection)
        self._pid = os.getpid()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._reader = None

    def _ask(self, message: Message) -> Message:
        if self._connection is None or self._reader is None:
            raise AssertionError("it was connected")
        try:
            send(self._connection, message)
            return self._reader.receive()
        except Gone:
            self._drop()
            raise


class _Function:
    """One of the library's functions; nvidia-ml-py sets attributes on some."""

    def __init__(self, library: ServedLibrary, name: str) -> None:
        self._library = library
        self._name = name

    def __call__(self, *arguments: Any) -> int | bytes:  # noqa: ANN401 - whatever ctypes made
        """Have it called where the GPUs are."""
        return self._library.call(self._name, arguments)
