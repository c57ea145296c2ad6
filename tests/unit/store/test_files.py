"""Output goes where it may, whole or not at all."""

import os
import resource
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.errors import UsageError
from underclock.store import check_output, write_text

LONGEST_NAME = 255  # bytes, on every file system Linux is used with


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_what_is_written_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("out") / "file.txt"

    write_text(path, text)

    assert path.read_bytes() == text.encode()
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "old")

    with pytest.raises(UsageError, match="will not overwrite") as caught:
        write_text(path, "new")
    assert str(path) in str(caught.value)
    assert "--force" in caught.value.hint
    assert path.read_text() == "old"

    write_text(path, "new", force=True)
    assert path.read_text() == "new"


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (".", "is a folder"),
        ("missing/file.txt", "no folder .*missing"),
        ("file/below", "no folder"),
        ("n" * (LONGEST_NAME + 1), "cannot write"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_where_no_file_can_be_is_our_error(
    tmp_path: Path, place: str, words: str, *, force: bool
) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError, match=words):
        write_text(tmp_path / place, "text", force=force)


@pytest.mark.parametrize("before", [None, "old"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, before: str | None
) -> None:
    path = tmp_path / "file.txt"
    if before is not None:
        path.write_text(before)

    # The failure comes after much was written: a lone surrogate has no UTF-8 form.
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "x" * 100_000 + "\ud800", force=True)

    assert [p.name for p in tmp_path.iterdir()] == ([] if before is None else ["file.txt"])
    assert before is None or path.read_text() == before


def test_a_disk_without_room_is_our_error_and_nothing_is_left(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(UsageError, match="cannot write"):
            write_text(tmp_path / "file.txt", "x" * 200_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert list(tmp_path.iterdir()) == []


@given(mask=st.sampled_from([0o022, 0o077, 0o027, 0o000]))
def test_a_file_has_the_mode_any_new_file_would_have(
    tmp_path_factory: pytest.TempPathFactory, mask: int
) -> None:
    path = tmp_path_factory.mktemp("out") / "file.txt"
    old = os.umask(mask)
    try:
        write_text(path, "text")
        assert os.umask(mask) == mask  # reading the mask did not change it
    finally:
        os.umask(old)

    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


class TestWhatIsNoRegularFile:
    @pytest.mark.parametrize("force", [False, True])
    def test_a_pipe_is_written_through(self, tmp_path: Path, *, force: bool) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        try:
            write_text(pipe, "text", force=force)
            assert os.read(reader, 10) == b"text"
        finally:
            os.close(reader)

        assert stat.S_ISFIFO(pipe.stat().st_mode)
        assert [p.name for p in tmp_path.iterdir()] == ["pipe"]

    def test_a_link_to_a_file_is_followed(self, tmp_path: Path) -> None:
        (tmp_path / "far").mkdir()
        target, link = tmp_path / "far" / "file.txt", tmp_path / "link"
        target.write_text("old")
        link.symlink_to(target)

        with pytest.raises(UsageError, match="will not overwrite"):
            write_text(link, "new")
        write_text(link, "new", force=True)

        assert link.is_symlink()
        assert target.read_text() == "new"
        assert [p.name for p in target.parent.iterdir()] == ["file.txt"]


class TestWhatIsNeverReplaced:
    def test_measurements_are_kept_even_when_forced(self, tmp_path: Path) -> None:
        path = tmp_path / "samples.db"
        path.write_bytes(b"SQLite format 3\x00" + b"much work")

        for force in (False, True):
            with pytest.raises(UsageError, match="it holds measurements") as caught:
                write_text(path, "{}", force=force)
        assert "remove it yourself" in caught.value.hint
        assert path.read_bytes().endswith(b"much work")
        check_output(path, force=True, over_samples=True)

    @pytest.mark.parametrize("there", ["gpu,kernel,time_s\n", "import torch\n", "\x89PNG"])
    def test_a_file_of_another_kind_is_kept_even_when_forced(
        self, tmp_path: Path, there: str
    ) -> None:
        path = tmp_path / "mine"
        path.write_text(there, encoding="latin-1")
        with pytest.raises(UsageError, match="of another kind") as caught:
            write_text(path, "{}", force=True, begins="{")

        assert "remove it yourself" in caught.value.hint
        assert path.read_text(encoding="latin-1") == there
        for replaced in ("", "\n {}"):
            path.write_text(replaced)
            write_text(path, "{1}", force=True, begins="{")
            assert path.read_text() == "{1}"

    @pytest.mark.parametrize("name", ["in.txt", "link", "sub/../in.txt"])
    def test_an_input_is_kept_even_when_forced(self, tmp_path: Path, name: str) -> None:
        source = tmp_path / "in.txt"
        source.write_text("much work")
        (tmp_path / "sub").mkdir()
        (tmp_path / "link").symlink_to(source)

        with pytest.raises(UsageError, match=r"it is read as .*in\.txt") as caught:
            check_output(tmp_path / name, force=True, inputs=[None, tmp_path / "no", source])

        assert "another file" in caught.value.hint
        assert source.read_text() == "much work"
