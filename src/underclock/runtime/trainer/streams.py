"""Who writes a mark when the GPU reaches it.

A mark is enqueued on the stream that trains and written by the GPU itself. The host never waits,
and no function of the host runs on the stream: those cost 3 to 6 % of a step. Standard library and
ctypes only: this is loaded into the training process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

from underclock.errors import DeviceError, NotSupportedError, UsageError
from underclock.runtime.trainer.page import MARK_OFFSET, STEP_OFFSET, identity, mark_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol, Self

    from underclock.runtime.trainer.page import Page

    class MarkStream(Protocol):
        """Writes marks in the order of the work around them."""

        def mark(self, word: int) -> None:
            """Have a mark word written as soon as all that was enqueued before is done."""
            ...

        def count(self, steps: int) -> None:
            """Have the step word written likewise."""
            ...

        def close(self) -> None:
            """Give back what it holds; no mark is under way."""
            ...


_DEVICE_MAPPED, _PORTABLE = 0x02, 0x01
_REGISTERED_ALREADY = 712
_BUFFERED_BYTES = 4096
_DONE_S = 300.0  # that the simulated GPU may take for what is in its row


class HostStream:
    """Writes at once: where the host itself does the work."""

    def __init__(self, page: Page) -> None:
        self.mark: Callable[[int], None] = page.write
        self.count: Callable[[int], None] = lambda steps: page.write(steps, STEP_OFFSET)

    def close(self) -> None:
        """Hold nothing."""


class CudaStream:
    """Has the GPU write, by a memory operation on whatever stream is current.

    While a stream is captured the operation becomes a node of the graph, and is done at each
    replay.
    """

    def __init__(self, page: Page, current: Callable[[], int], driver: Any = None) -> None:
        """Let the GPU write into a page, on the stream whose handle `current` returns.

        Raises:
            NotSupportedError: There is no such driver, or it cannot write into the page.
        """
        self._current = current
        try:
            self._driver = ctypes.CDLL("libcuda.so.1") if driver is None else driver
        except OSError as exc:
            raise NotSupportedError(
                "marks need NVIDIA's driver, and there is no libcuda.so.1",
                hint="run it on a machine with an NVIDIA GPU, or on the simulator",
            ) from exc
        write: Any = getattr(self._driver, "cuStreamWriteValue32_v2", None) or getattr(
            self._driver, "cuStreamWriteValue32", None
        )
        if write is None:
            raise NotSupportedError(
                "this CUDA driver cannot write marks: it has no cuStreamWriteValue32",
                hint="a driver of CUDA 11.7 or newer has",
            )
        self._write = write
        write.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint]
        code = self._driver.cuMemHostRegister_v2(
            ctypes.c_void_p(page.address),
            ctypes.c_size_t(page.size),
            ctypes.c_uint(_DEVICE_MAPPED | _PORTABLE),
        )
        if code not in {0, _REGISTERED_ALREADY}:
            raise NotSupportedError(
                f"the GPU cannot write into {page.path}: cuMemHostRegister returned {code}",
                hint="the page must be in memory: let UNDERCLOCK_RUNTIME_DIR name a tmpfs such as "
                "/dev/shm",
            )
        address = ctypes.c_uint64()
        code = self._driver.cuMemHostGetDevicePointer_v2(
            ctypes.byref(address), ctypes.c_void_p(page.address), ctypes.c_uint(0)
        )
        if code != 0:
            raise NotSupportedError(
                f"the GPU does not see the page of marks: the driver returned {code}"
            )
        self._begin = address.value

    def mark(self, word: int) -> None:
        """Have a mark word written; `NotSupportedError` where the driver refuses."""
        self._put(MARK_OFFSET, word)

    def count(self, steps: int) -> None:
        """Have the step word written likewise."""
        self._put(STEP_OFFSET, steps)

    def _put(self, offset: int, value: int) -> None:
        code = self._write(self._current(), self._begin + offset, value, 0)
        if code != 0:
            raise NotSupportedError(f"the driver did not take a mark: it returned {code}")

    def close(self) -> None:
        """Leave the page registered: a graph of the trainer's may yet write into it."""


class ServedStream:
    """Launches and marks on a simulated GPU that another process serves, in turn.

    A process that trains on the CPU puts launches of the step it was planned for there, and marks
    between them; the virtual GPU does them in virtual time, at the clocks that it then has.
    """

    def __init__(
        self, connection: socket.socket, marks: Sequence[int], *, waits: bool = False
    ) -> None:
        from underclock.hw.wire import MessageReader  # noqa: PLC0415 - of simulated GPUs only

        self._connection, self._waits, self._reader = connection, waits, MessageReader(connection)
        self._socket, self._pid = identity(connection.fileno()), os.getpid()
        self._marks = tuple(marks)
        self._at, self._began = 0, False  # the launch that comes next; whether a mark was put
        self.launches = 0

    @classmethod
    def connect(
        cls,
        path: str | os.PathLike[str],
        *,
        gpu: int = 0,
        step: str | os.PathLike[str],
        page: str | os.PathLike[str] | None = None,
        marks: Sequence[int] = (),
        waits: bool = False,
    ) -> Self:
        """Load a step on a GPU, and have the server map a page.

        Args:
            page: File that writes go to; ``None`` for no writes.
            marks: Launch before which each mark is; `mark` puts the launches before it there too.
            waits: Whether `mark` waits until they are done, as who hands on what they compute.

        Raises:
            DeviceError: No process answers there.
            UsageError: The server cannot run the step.
            OSError: A file cannot be read.
        """
        import json  # noqa: PLC0415 - so that importing this costs nothing
        import socket  # noqa: PLC0415

        with open(step, "rb") as file:  # noqa: PTH123 - pathlib takes longer to import than this
            content = json.load(file)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Else it holds a hundred steps beyond the launches that the server lets wait.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFERED_BYTES)
        connection.settimeout(_DONE_S)
        try:
            connection.connect(os.fspath(path))
            stream = cls(connection, marks, waits=waits)
            with open(page, "r+b") if page else contextlib.nullcontext() as mapped:  # noqa: PTH123
                fds = () if mapped is None else (mapped.fileno(),)
                stream._put({"do": "attach", "gpu": gpu, "step": content}, fds)
            stream.launches = int(stream._answer()["launches"])
        except OSError as exc:
            connection.close()
            raise DeviceError(
                f"no simulated GPU answers at {os.fspath(path)}: {exc.strerror}",
                hint="start one with `underclock simulate NAME --socket PATH`",
            ) from exc
        except BaseException:
            connection.close()
            raise
        return stream

    def work(self, first: int, end: int) -> None:
        """Launch a part of the step, from one launch up to another.

        An error is raised by `synchronise`, as with a real GPU.
        """
        self._put({"do": "work", "first": first, "end": end})
        self._at = end

    def write(self, offset: int, value: int) -> None:
        """Have a word written into the page when all that was put there before is done."""
        self._put({"do": "write", "offset": offset, "value": value})

    def mark(self, word: int) -> None:
        """Have a mark word written as soon as all that was put there before is done.

        Where it is known which launches lie before it, they are put there first; a mark not
        greater than the one before begins the step again.
        """
        if self._marks:
            launch = self._marks[mark_of(word) - 1]
            if launch < self._at or (launch == 0 and self._began):
                self.work(self._at, self.launches)
                self._at = 0
            self._began = True
            if launch > self._at:
                self.work(self._at, launch)
        self.write(MARK_OFFSET, word)
        if self._waits:
            self.synchronise()

    def count(self, steps: int) -> None:
        """Have the step word written likewise."""
        self.write(STEP_OFFSET, steps)

    def synchronise(self) -> None:
        """Wait until everything that was put there is done.

        Raises:
            DeviceError: The GPU, or who serves it, is gone.
            UsageError: Something that was put there cannot be done.
        """
        self._put({"do": "synchronise"})
        self._answer()

    def close(self) -> None:
        """End the stream: what has not run never will."""
        if self._is_ours:
            self._connection.close()
        else:
            self._connection.detach()  # else the file that has that number now would be closed

    @property
    def _is_ours(self) -> bool:
        """Whether the connection is what it was: a trainer may close what it did not open."""
        return self._socket is not None and identity(self._connection.fileno()) == self._socket

    def _put(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        if not self._is_ours or os.getpid() != self._pid:  # a child would write into its parent's
            raise DeviceError("this process has no connection to the simulated GPU any more")
        from underclock.hw.wire import Gone, send  # noqa: PLC0415

        try:
            send(self._connection, message, fds)
        except Gone as exc:
            raise DeviceError(f"the simulated GPU is gone: {exc}") from exc

    def _answer(self) -> dict[str, Any]:
        from underclock.hw.wire import Gone  # noqa: PLC0415

        try:
            answer = self._reader.receive()
        except Gone as exc:
            raise DeviceError(f"the simulated GPU is gone: {exc}", hint="serve it again") from exc
        if "error" in answer:
            lost = answer.get("kind") == "device"
            kind = DeviceError if lost else UsageError
            raise kind(str(answer["error"]), hint=str(answer.get("hint", "")))
        return answer
