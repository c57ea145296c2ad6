"""The page of marks, as both sides see it, and what writes into it."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from underclock.errors import DataError, NotSupportedError
from underclock.runtime.trainer import page as pages
from underclock.runtime.trainer.page import Page
from underclock.runtime.trainer.streams import CudaStream

DIGEST = bytes(range(32))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with closing(Page.create(tmp_path / "run.page", digest=DIGEST, marks=(0, 3, 9))):
        return tmp_path / "run.page"


def test_what_one_writes_the_other_reads(path: Path) -> None:
    with closing(Page.open(path)) as mine, closing(Page.open(path)) as theirs:
        assert (theirs.digest, theirs.marks, theirs.reached()[0], theirs.pid) == (
            DIGEST,
            (0, 3, 9),
            0,
            0,
        )

        mine.write(3)
        mine.tell(pages.MARKING, "all of them")

        assert (theirs.reached()[0], theirs.state, theirs.sentence) == (
            3,
            pages.MARKING,
            "all of them",
        )
        assert theirs.pid == os.getpid()


def test_one_process_only_has_a_page(path: Path) -> None:
    script = (
        "import sys; from underclock.runtime.trainer.page import Page; "
        "page = Page.open(sys.argv[1]); print(page.claim())"
    )
    with closing(Page.open(path)) as page:
        assert page.claim()
        ended = subprocess.run(
            [sys.executable, "-c", script, path], capture_output=True, text=True, check=True
        )

    assert ended.stdout == "False\n"


@pytest.mark.parametrize("marks", [(), tuple(range(65536))])
def test_marks_that_no_page_has_are_refused(tmp_path: Path, marks: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="1 to 65535 marks"):
        Page.create(tmp_path / "run.page", digest=DIGEST, marks=marks)

    assert not (tmp_path / "run.page").exists()


def test_another_versions_page_is_refused(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8] = pages.VERSION + 1
    path.write_bytes(content)

    with pytest.raises(DataError, match=f"version {pages.VERSION + 1}, this underclock reads"):
        Page.open(path)


def test_what_is_no_page_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.page").write_bytes(b"")
    (tmp_path / "run.page").chmod(0o600)

    with pytest.raises(DataError, match="is no page of marks"):
        Page.open(tmp_path / "run.page")


def test_a_page_cut_short_is_refused(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:600])

    with pytest.raises(DataError, match="is damaged"):
        Page.open(path)


def test_a_page_that_others_may_write_is_refused(path: Path) -> None:
    path.chmod(0o622)

    with pytest.raises(DataError, match="other users"):
        Page.open(path)


def test_a_page_behind_a_link_is_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link.page").symlink_to(path)

    with pytest.raises(OSError, match="symbolic link"):
        Page.open(tmp_path / "link.page")


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
