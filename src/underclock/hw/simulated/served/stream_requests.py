"""What a process asks of its stream: launches, writes into its page, and to be told of the end."""

import contextlib
import os
from collections.abc import Callable, Sequence

import msgspec

from underclock.errors import DeviceError, UsageError
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.faults import FaultKind
from underclock.hw.simulated.served.paced import PacedClock
from underclock.hw.simulated.served.streams import Stream
from underclock.hw.wire import Message, Reader
from underclock.records import Step

_WAITING = 1024  # launches that a stream holds; whoever launches more waits, as with CUDA
_LOOK_S = 0.05
_WORD = 4
_MARK = 0xFFFF  # of a word: above it is the number of the step


class StreamRequests:
    """The streams of one process; it has at most one.

    Args:
        gpus: On which it may be.
        clock: Their time.
        reader: Where the page comes from.
        pid: Of the process.
    """

    def __init__(
        self, gpus: Sequence[VirtualGpu], clock: PacedClock, reader: Reader, *, pid: int
    ) -> None:
        self._gpus = gpus
        self._clock = clock
        self._reader = reader
        self._pid = pid
        self._stream: Stream | None = None
        self._page: tuple[int, int] | None = None  # descriptor and length
        self._greatest = 0  # of the marks written
        self._failed = ""  # of what was put there without waiting for an answer

    def table(self) -> dict[str, Callable[[Message], Message | None]]:
        """Return what can be asked."""
        return {
            "attach": self._attach,
            "work": self._quietly(self._work),
            "write": self._quietly(self._write),
            "synchronise": self._synchronise,
        }

    def close(self) -> None:
        """End, as when the process does."""
        with self._clock.lock:
            self._clock.catch_up()
            if self._stream is not None:
                self._stream.close()  # so that no write of its is left
        for fd in (*self._reader.fds, *(self._page or ())[:1]):
            os.close(fd)

    def _attach(self, message: Message) -> Message:
        """Load a step, and the page that marks are written to."""
        index = int(message["gpu"])
        if self._stream is not None:
            raise ValueError("this connection has a stream")
        if not 0 <= index < len(self._gpus):
            raise UsageError(f"there is no GPU {index}", hint=f"{len(self._gpus)} are served")
        step = msgspec.convert(message["step"], Step)
        if self._reader.fds:
            fd = self._reader.fds.pop(0)
            self._page = fd, os.fstat(fd).st_size
        with self._clock.lock:
            self._clock.catch_up()
            self._stream = Stream(self._gpus[index], step, pid=self._pid)
        return {"launches": self._stream.launches}

    def _quietly(self, put: Callable[[Message, Stream], None]) -> Callable[[Message], None]:
        """Put something in the row; what is wrong with it is told at the next synchronisation."""

        def quiet(message: Message) -> None:
            try:
                with self._clock.lock:
                    put(message, self._attached())
                    self._clock.look_again()
            except (ValueError, KeyError, DeviceError) as exc:
                self._failed = self._failed or str(exc)

        return quiet

    def _attached(self) -> Stream:
        if self._stream is None:
            raise ValueError("no step was loaded")
        if self._stream.lost:
            raise DeviceError("the GPU fell off the bus", hint="reboot the machine")
        return self._stream

    def _work(self, message: Message, stream: Stream) -> None:
        while stream.waiting >= _WAITING and not stream.lost:
            self._clock.changed.wait(_LOOK_S)
        self._clock.catch_up()
        stream.work(int(message["first"]), int(message["end"]))

    def _write(self, message: Message, stream: Stream) -> None:
        page, offset, value = self._page, int(message["offset"]), int(message["value"])
        if page is None:
            raise ValueError("no page came with the step")
        fd, length = page
        if offset % _WORD or not 0 <= offset <= length - _WORD:
            raise ValueError(f"there is no word at {offset} in a page of {length} bytes")
        if not 0 <= value < 1 << 32:
            raise ValueError(f"{value} is no word of 32 bits")

        def write() -> None:
            shown = self._shown(stream.gpu, value)
            if shown is not None:
                with contextlib.suppress(OSError):  # a GPU would not mind either
                    os.pwrite(fd, shown.to_bytes(_WORD, "little"), offset)

        self._clock.catch_up()
        stream.then(write)

    def _synchronise(self, _message: Message) -> Message:
        """Answer when everything put there has ended."""
        ended: list[bool] = []
        with self._clock.lock:
            stream = self._attached()
            self._clock.catch_up()
            stream.then(lambda: ended.append(True))
            self._clock.look_again()
            while not ended and not stream.lost:
                self._clock.changed.wait(_LOOK_S)
            if not ended:
                raise DeviceError("the GPU fell off the bus", hint="reboot the machine")
        if self._failed:
            failed, self._failed = self._failed, ""
            raise ValueError(failed)
        return {}

    def _shown(self, gpu: VirtualGpu, value: int) -> int | None:
        """Return what a write leaves in memory; ``None`` where it never comes."""
        mark = value & _MARK
        self._greatest = max(self._greatest, mark)
        if FaultKind.MARKS_STUCK in gpu.faults:
            return None
        if FaultKind.MARKS_BACKWARDS in gpu.faults:
            return value - mark + self._greatest + 1 - mark
        return value
