"""The page of marks, as both sides see it, and files that are none."""

import ctypes
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from underclock.errors import DataError
from underclock.runtime.trainer import page as pages
from underclock.runtime.trainer.page import Page

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


def test_a_device_that_writes_to_the_address_is_seen(path: Path) -> None:
    with closing(Page.open(path)) as mine, closing(Page.open(path)) as theirs:
        ctypes.c_uint32.from_address(mine.address + pages.MARK_OFFSET).value = 2

        assert theirs.reached()[0] == 2
        assert (mine.address + pages.MARK_OFFSET) % 64 == 0


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
