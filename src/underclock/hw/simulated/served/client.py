"""Served GPUs as other processes see them: NVML's library, and control for tests and studies.

C arguments travel as JSON: what a program passes to NVML, in one process, is made again in another.
A type travels by its shape, not by its name, so that neither side need know the other's structures:
a letter for a number, ``[n, shape]`` for an array, its fields for a structure. Pointers inside
structures travel as they are: a driver's handles point nowhere.
"""

import ctypes
import functools
import os
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import msgspec
import pynvml

from underclock.errors import DeviceError, UsageError
from underclock.hw.wire import Connection, Gone, Message

Shape = str | list[Any] | dict[str, Any]
"""A type."""
Argument = dict[str, Any] | None
"""An argument; ``None`` is NULL."""

_POINTER = "P"
_TEXT = "z"
_WHOLE = "bool char byte ubyte short ushort int uint long ulong longlong ulonglong float double"
_KINDS: list[Any] = [getattr(ctypes, f"c_{name}") for name in (*_WHOLE.split(), "void_p")]
_NUMBERS: dict[str, type[Any]] = {kind._type_: kind for kind in _KINDS}
_LARGEST = 1 << 24  # bytes of one argument: far above any of NVML's
_BY_REFERENCE: Any = type(ctypes.byref(ctypes.c_int()))
_ANY_POINTER: Any = ctypes._Pointer  # noqa: SLF001 - what every pointer type is


@functools.cache
def shape_of(kind: Any) -> Shape:  # noqa: ANN401 - a type
    """Return a type's shape."""
    if issubclass(kind, ctypes.Array):
        return [kind._length_, shape_of(kind._type_)]
    if issubclass(kind, _ANY_POINTER):
        return _POINTER
    if issubclass(kind, ctypes.Structure | ctypes.Union):
        fields = [[name, shape_of(of), *bits] for name, of, *bits in getattr(kind, "_fields_", ())]
        key = "union" if issubclass(kind, ctypes.Union) else "struct"
        return {key: fields, "pack": getattr(kind, "_pack_", 0)}
    code = getattr(kind, "_type_", None)
    if code == _TEXT:
        return _POINTER
    if code in _NUMBERS:
        return str(code)
    raise TypeError(f"{kind.__name__} cannot be sent to another process")


def type_of(shape: Shape) -> Any:  # noqa: ANN401
    """Return a type of a shape."""
    return _made(msgspec.json.encode(shape))


@functools.lru_cache(maxsize=1000)
def _made(body: bytes) -> Any:  # noqa: ANN401
    shape = msgspec.json.decode(body)
    match shape:
        case str() if shape in _NUMBERS:
            return _NUMBERS[shape]
        case [int() as length, of] if 0 <= length <= _LARGEST:
            return type_of(of) * length
        case {"struct": fields, "pack": pack}:
            return _structure(ctypes.Structure, fields, pack)
        case {"union": fields, "pack": pack}:
            return _structure(ctypes.Union, fields, pack)
    raise ValueError(f"{body[:80]!r} is no shape of a C type")


def _structure(base: Any, fields: Sequence[Any], pack: int) -> Any:  # noqa: ANN401
    made: list[Any] = [(name, type_of(of), *bits) for name, of, *bits in fields]
    return type("Sent", (base,), {**({"_pack_": pack} if pack else {}), "_fields_": made})


def packed(argument: Any) -> Argument:  # noqa: ANN401 - whatever a program passes
    """Return an argument as JSON."""
    if argument is None:
        return None
    if isinstance(argument, int):
        return {"int": argument}
    if isinstance(argument, bytes | ctypes.c_char_p):
        text = argument.value if isinstance(argument, ctypes.c_char_p) else argument
        return None if text is None else {"text": text.hex()}
    target = _behind(argument)
    how = "value" if target is None else "to"
    content = argument if target is None else target
    kind: Any = type(content)
    passed = "array" if isinstance(argument, ctypes.Array) else "pointer"
    return {how: shape_of(kind), "bytes": bytes(content).hex(), "as": passed}


def _behind(argument: Any) -> Any:  # noqa: ANN401
    """Return what the function can write to; ``None`` for what is passed by value."""
    if isinstance(argument, _BY_REFERENCE):
        return argument._obj  # noqa: SLF001 - ctypes has no public way
    if isinstance(argument, ctypes.Array):
        return argument
    if isinstance(argument, _ANY_POINTER) and argument and ctypes.sizeof(argument._type_):
        return argument.contents
    return None  # a number, or a handle: nothing is known of what it points to


class Received:
    """An argument made again where the function is."""

    def __init__(self, sent: Argument) -> None:
        self.passed: Any = None
        self._target: Any = None
        match sent:
            case None:
                pass
            case {"int": int() as number}:
                self.passed = number
            case {"text": str() as text}:
                self.passed = ctypes.c_char_p(bytes.fromhex(text))
            case {"value": shape, "bytes": str() as content}:
                self.passed = _filled(shape, content)
            case {"to": shape, "bytes": str() as content, "as": how}:
                self._target = _filled(shape, content)
                array = how == "array"
                self.passed = self._target if array else ctypes.byref(self._target)
            case _:
                raise ValueError(f"{sent!r} is no argument of a C function")

    def answer(self) -> str | None:
        """Return what the function wrote; ``None`` where it could not."""
        return None if self._target is None else bytes(self._target).hex()


def _filled(shape: Shape, content: str) -> Any:  # noqa: ANN401
    kind, body = type_of(shape), bytes.fromhex(content)
    if len(body) != ctypes.sizeof(kind) or len(body) > _LARGEST:
        raise ValueError(f"{len(body)} bytes do not fill a C type of {ctypes.sizeof(kind)}")
    return kind.from_buffer_copy(body)


def write_back(argument: Any, content: str | None) -> None:  # noqa: ANN401
    """Put what a function wrote where its caller looks for it."""
    target = _behind(argument)
    if target is not None and content is not None:
        ctypes.memmove(ctypes.addressof(target), bytes.fromhex(content), ctypes.sizeof(target))


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
