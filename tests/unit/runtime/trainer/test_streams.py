"""Marks that CUDA's driver is asked to write, with a driver that writes at once."""

import ctypes
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from underclock.errors import NotSupportedError
from underclock.runtime.trainer.page import Page
from underclock.runtime.trainer.streams import CudaStream

_DEVICE_OFFSET = 1 << 40  # where the GPU sees what the host has elsewhere


class Driver:
    """As libcuda, where the GPU is done with everything at once."""

    def __init__(self, **codes: int) -> None:
        self.codes = codes
        self.asked: list[tuple[Any, ...]] = []
        self.cuStreamWriteValue32_v2 = self._writer()

    def _writer(self) -> Any:
        def write(stream: int, address: int, value: int, flags: int) -> int:
            self.asked.append((stream, value, flags))
            if "write" not in self.codes:
                ctypes.c_uint32.from_address(address - _DEVICE_OFFSET).value = value
            return self.codes.get("write", 0)

        return write

    def cuMemHostRegister_v2(  # noqa: N802 - the driver's name
        self, address: Any, size: Any, flags: Any
    ) -> int:
        self.asked.append(("register", address.value, size.value, flags.value))
        return self.codes.get("register", 0)

    def cuMemHostGetDevicePointer_v2(  # noqa: N802 - the driver's name
        self, address: Any, host: Any, flags: Any
    ) -> int:
        del flags
        address._obj.value = host.value + _DEVICE_OFFSET  # noqa: SLF001 - what byref holds
        return self.codes.get("pointer", 0)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with closing(Page.create(tmp_path / "run.page", digest=bytes(32), marks=(0, 5))) as made:
        yield made


def test_the_gpu_writes_on_the_stream_that_is_current(page: Page) -> None:
    driver, current = Driver(), iter([7, 8])
    stream = CudaStream(page, lambda: next(current), driver)

    stream.mark(2)
    assert page.reached()[0] == 2
    stream.mark(1)

    assert page.reached()[0] == 1
    assert driver.asked == [("register", page.address, page.size, 3), (7, 2, 0), (8, 1, 0)]
    stream.close()


@pytest.mark.parametrize(
    ("codes", "reason"),
    [
        ({"register": 1}, "cuMemHostRegister returned 1"),
        ({"pointer": 1}, "does not see the page"),
    ],
)
def test_a_page_that_the_gpu_cannot_write_is_an_error(
    page: Page, codes: dict[str, int], reason: str
) -> None:
    with pytest.raises(NotSupportedError, match=reason):
        CudaStream(page, lambda: 0, Driver(**codes))


def test_a_driver_without_the_call_is_too_old(page: Page) -> None:
    driver = Driver()
    del driver.cuStreamWriteValue32_v2

    with pytest.raises(NotSupportedError, match=r"CUDA 11\.7|cuStreamWriteValue32"):
        CudaStream(page, lambda: 0, driver)


def test_a_mark_that_the_driver_does_not_take_is_an_error(page: Page) -> None:
    stream = CudaStream(page, lambda: 0, Driver(write=700))

    with pytest.raises(NotSupportedError, match="returned 700"):
        stream.mark(1)


def test_without_a_driver_there_are_no_marks(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)

    with pytest.raises(NotSupportedError, match="no libcuda"):
        CudaStream(page, lambda: 0)
