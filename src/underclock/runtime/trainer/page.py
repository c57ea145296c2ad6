"""The page of marks: one file that a trainer and its conductor both map.

A trainer's stream writes into it how far the step is, and the conductor looks. Standard library
and ctypes only: this is loaded into the training process.

Layout, little-endian; what is written while training has cache lines of its own::

      0  magic, 8 bytes        8  version, 4        12  size of the file, 4
     16  digest, 32 bytes     48  number of marks, 4
     64  the mark word, 4 bytes
    128  pid of the trainer, 4    132  its state, 4
    136  length of its sentence, 4    140  the sentence, 372 bytes
    512  launch index of each mark, 4 bytes each
"""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
import struct

from underclock.errors import DataError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

VERSION = 1
MARK_OFFSET = 64
"""Where the mark word is."""

WAITING, LEARNING, MARKING, REFUSED, DETACHED = range(5)
"""State of a trainer: not there yet, looking at its first steps, writing marks; it will not, for
the reason that its sentence says; it is done."""

_MAGIC = b"UNDERCLK"
_HEADER = struct.Struct("<8sII32sI")
_PID, _STATE, _LENGTH, _SENTENCE, _MARKS = 128, 132, 136, 140, 512
_LONGEST = _MARKS - _SENTENCE
_MOST_MARKS = 65536
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
DIGEST_BYTES = 32


class Page:
    """A mapped page.

    Attributes:
        path: Its file.
        digest: Of the plan and its marks.
        marks: Launch index of each mark, ascending; the first is 0.
    """

    __slots__ = ("_fd", "_map", "_word", "_words", "digest", "marks", "path")

    def __init__(self, path: str, fd: int) -> None:
        """Map a file that `create` or `open` has looked at."""
        self.path = path
        self._fd = fd
        self._map = mmap.mmap(fd, 0)
        _, _, _, self.digest, count = _HEADER.unpack_from(self._map)
        self.marks: tuple[int, ...] = struct.unpack_from(f"<{count}I", self._map, _MARKS)
        self._word = ctypes.c_uint32.from_buffer(self._map, MARK_OFFSET)
        self._words = (ctypes.c_uint32 * 3).from_buffer(self._map, _PID)

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, digest: bytes, marks: tuple[int, ...]) -> Self:
        """Make a page that only this user may open, and map it.

        Args:
            path: Of the file; nothing may be there.
            digest: Of the plan and its marks, 32 bytes.
            marks: Launch index of each mark.

        Raises:
            ValueError: A digest or marks that are none.
            UsageError: There is a file already.
            OSError: It cannot be written.
        """
        _check(digest, marks)
        path = os.fspath(path)
        size = -(-(_MARKS + 4 * len(marks)) // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError as exc:
            raise UsageError(
                f"{path} is there already", hint="a page belongs to one run: name another file"
            ) from exc
        try:
            # Not a sparse file: on a full disk a write into its mapping would kill the process.
            os.posix_fallocate(fd, 0, size)
            body = struct.pack(f"<{len(marks)}I", *marks)
            os.pwrite(fd, body, _MARKS)
            os.pwrite(fd, _HEADER.pack(_MAGIC, VERSION, size, digest, len(marks)), 0)
            return cls(path, fd)
        except BaseException:
            os.close(fd)
            os.unlink(path)  # noqa: PTH108 - pathlib loads slowly
            raise

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Map a page that another process made.

        Raises:
            DataError: It is no page, another version's, or one that others may write.
            OSError: It cannot be read.
        """
        path = os.fspath(path)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            _check_file(path, fd)
            return cls(path, fd)
        except BaseException:
            os.close(fd)
            raise

    @property
    def mark(self) -> int:
        """The last mark that was reached, counted from 1; 0 before the first."""
        return self._word.value

    def write(self, mark: int) -> None:
        """Write a mark from the host."""
        self._word.value = mark

    @property
    def mark_address(self) -> int:
        """Where the mark word is in this process."""
        return ctypes.addressof(self._word)

    @property
    def address(self) -> int:
        """Where the page begins in this process."""
        return self.mark_address - MARK_OFFSET

    @property
    def size(self) -> int:
        """How long it is, in bytes."""
        return len(self._map)

    @property
    def pid(self) -> int:
        """Of the trainer; 0 before there is one."""
        return self._words[0]

    @property
    def state(self) -> int:
        """Of the trainer."""
        return self._words[1]

    @property
    def sentence(self) -> str:
        """What the trainer has to say of its state; empty for nothing."""
        length = min(self._words[2], _LONGEST)
        return self._map[_SENTENCE : _SENTENCE + length].decode(errors="replace")

    def tell(self, state: int, sentence: str = "") -> None:
        """Say, as the trainer, what state it is in."""
        text = sentence.encode()[:_LONGEST]
        self._map[_SENTENCE : _SENTENCE + len(text)] = text
        self._words[2] = len(text)
        self._words[0] = os.getpid()
        self._words[1] = state  # last: whoever sees it may read the sentence

    def claim(self) -> bool:
        """Take the page for this process, as its trainer; return whether it was free.

        It is held until the process ends. A process that was forked off shares it, and must not
        mark.
        """
        import fcntl  # noqa: PLC0415 - once, in the trainer only

        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._words[0] = os.getpid()
        return True

    def close(self) -> None:
        """Unmap it; the file stays."""
        if self._fd >= 0:
            del self._word, self._words  # they hold the mapping
            self._map.close()
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check(digest: bytes, marks: tuple[int, ...]) -> None:
    if len(digest) != DIGEST_BYTES:
        raise ValueError(f"a digest has {DIGEST_BYTES} bytes, got {len(digest)}")
    if not 0 < len(marks) <= _MOST_MARKS:
        raise ValueError(f"a page has 1 to {_MOST_MARKS} marks, got {len(marks)}")
    if marks[0] != 0 or list(marks) != sorted(set(marks)):
        raise ValueError("marks must ascend from launch 0")


def _check_file(path: str, fd: int) -> None:
    """Refuse what is no page of ours.

    Raises:
        DataError: It is not.
    """
    status = os.fstat(fd)
    if status.st_mode & _OTHERS_WRITE or status.st_uid not in {os.getuid(), 0}:
        raise DataError(
            f"{path} may be written by other users, who could then steer the clocks",
            hint="let its owner alone write it: chmod 600",
        )
    head = os.pread(fd, _HEADER.size, 0)
    if len(head) < _HEADER.size or head[: len(_MAGIC)] != _MAGIC:
        raise DataError(f"{path} is no page of marks", hint="`underclock run` makes one")
    _, version, size, _, count = _HEADER.unpack(head)
    if version != VERSION:
        raise DataError(
            f"{path} is a page of version {version}, this underclock reads version {VERSION}",
            hint="trainer and conductor need the same underclock: install one version, start anew",
        )
    if size != status.st_size or not 0 < count <= (size - _MARKS) // 4:
        raise DataError(
            f"{path} is damaged: it says {size} bytes with {count} marks and has {status.st_size}",
            hint="start the run anew",
        )
