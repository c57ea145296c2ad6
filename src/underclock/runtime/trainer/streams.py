"""Who writes a mark when the GPU reaches it.

A mark is enqueued on the stream that trains and written by the GPU itself. The host never waits,
and no function of the host runs on the stream: those cost 3 to 6 % of a step. Standard library and
ctypes only: this is loaded into the training process.
"""

from __future__ import annotations

import ctypes

from underclock.errors import NotSupportedError
from underclock.runtime.trainer.page import MARK_OFFSET, STEP_OFFSET

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

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
        """Let the GPU write into a page.

        Args:
            page: Where to.
            current: Returns the handle of the stream that is current on the training device.
            driver: Its library; by default the machine's.

        Raises:
            NotSupportedError: There is no such driver, or it cannot write into the page.
        """
        self._current = current
        self._driver = _library() if driver is None else driver
        self._page_address = page.address
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
        self._register(page)
        self._begin = self._device_address()

    def _register(self, page: Page) -> None:
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

    def _device_address(self) -> int:
        address = ctypes.c_uint64()
        code = self._driver.cuMemHostGetDevicePointer_v2(
            ctypes.byref(address), ctypes.c_void_p(self._page_address), ctypes.c_uint(0)
        )
        if code != 0:
            raise NotSupportedError(
                f"the GPU does not see the page of marks: the driver returned {code}"
            )
        return address.value

    def mark(self, word: int) -> None:
        """Have a mark word written as soon as all that was enqueued before is done.

        Raises:
            NotSupportedError: The driver refused.
        """
        self._put(MARK_OFFSET, word)

    def count(self, steps: int) -> None:
        """Have the step word written likewise.

        Raises:
            NotSupportedError: The driver refused.
        """
        self._put(STEP_OFFSET, steps)

    def _put(self, offset: int, value: int) -> None:
        code = self._write(self._current(), self._begin + offset, value, 0)
        if code != 0:
            raise NotSupportedError(f"the driver did not take a mark: it returned {code}")

    def close(self) -> None:
        """Leave the page registered: a graph of the trainer's may yet write into it."""


def _library() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as exc:
        raise NotSupportedError(
            "marks need NVIDIA's driver, and there is no libcuda.so.1",
            hint="run it on a machine with an NVIDIA GPU, or on the simulator",
        ) from exc
