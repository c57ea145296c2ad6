"""The mark page: one file that a trainer and its controller both have open.

A trainer's stream writes into it how far which step is, and the controller looks. Only what a GPU
writes into is mapped: who touches a mapping of a file that is cut short is killed, and a
call fails. Standard library and ctypes only: this is loaded into the training process.

Layout, little-endian; what is written while training has cache lines of its own::

      0  magic, 8 bytes        8  version, 4        12  size of the file, 4
     16  digest, 32 bytes     48  number of marks, 4
     64  the mark word, 4 bytes    68  the step word, 4
    128  pid of the trainer, 4    132  its state, 4
    136  length of its sentence, 4    140  steps put on the stream, 4
    144  the sentence, 368 bytes
    512  launch index of each mark, 4 bytes each

The mark word has the mark, counted from 1, in 16 bits and above it the number of its step in 15. In
a mark that a graph captured, which bit 31 says, that counts from the step word, which the stream
writes before each replay.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct

from underclock.errors import DataError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

VERSION = 3
MARK_OFFSET = 64
"""Where the mark word is."""
STEP_OFFSET = 68
"""Where the step word is."""
STEPS = 1 << 15
"""Numbers of steps begin anew here, later than any look."""
CAPTURED = 1 << 31
"""The bit of a mark that a graph has."""

WAITING, LEARNING, MARKING, REFUSED, DETACHED = range(5)
"""State of a trainer: not there yet, looking at its first steps, writing marks; it will not, for
the reason that its sentence says; it is done."""

_MAGIC = b"UNDERCLK"
_HEADER = struct.Struct("<8sII32sI")
_PID, _STATE, _LENGTH, _ENQUEUED, _SENTENCE, _MARKS = 128, 132, 136, 140, 144, 512
_MARK_BITS = 16
_LONGEST = _MARKS - _SENTENCE
_WORD, _WORDS = 4, struct.Struct("<2I")
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_MOST_MARKS = (1 << _MARK_BITS) - 1
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Page:
    """An open page.

    Attributes:
        marks: Launch index of each mark, ascending; the first is 0.
    """

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd, self._file = fd, identity(fd)
        self._mapped, self._mark, self._words = 0, (0, 0), b""
        self._claimed = False
        _, _, self.size, self.digest, count = _HEADER.unpack(os.pread(fd, _HEADER.size, 0))
        self.marks: tuple[int, ...] = struct.unpack(f"<{count}I", os.pread(fd, 4 * count, _MARKS))

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, digest: bytes, marks: tuple[int, ...]) -> Self:
        """Make a page that only this user may open.

        Raises:
            ValueError: There are no marks, or more than a page has.
            UsageError: There is a file already.
            OSError: It cannot be written.
        """
        if not 0 < len(marks) <= _MOST_MARKS:
            raise ValueError(f"a page has 1 to {_MOST_MARKS} marks, got {len(marks)}")
        path = os.fspath(path)
        size = -(-(_MARKS + 4 * len(marks)) // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError as exc:
            raise UsageError(
                f"{path} is there already", hint="a page belongs to one run: name another file"
            ) from exc
        try:
            # Not a sparse file: on a full disk a mark would find no room.
            os.posix_fallocate(fd, 0, size)
            os.pwrite(fd, struct.pack(f"<{len(marks)}I", *marks), _MARKS)
            os.pwrite(fd, _HEADER.pack(_MAGIC, VERSION, size, digest, len(marks)), 0)
            return cls(path, fd)
        except BaseException:
            os.close(fd)
            os.unlink(path)  # noqa: PTH108 - pathlib loads slowly
            raise

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open a page that another process made.

        Raises:
            DataError: It is no page, another version's, or one that another user may write.
            OSError: It cannot be read.
        """
        path = os.fspath(path)
        fd = os.open(path, _FLAGS)
        try:
            _check_file(path, fd)
            return cls(path, fd)
        except BaseException:
            os.close(fd)
            raise

    def reached(self) -> tuple[int, int]:
        """Return the last mark that was reached, and the number of its step.

        Marks are counted from 1; it is 0 before the first.
        """
        while words := os.pread(self._fd, 2 * _WORD, MARK_OFFSET):
            if words == self._words:  # as nearly always, and looked at often
                break
            word, before = _WORDS.unpack(words)
            steps = word % CAPTURED >> _MARK_BITS
            self._mark = mark_of(word), steps
            if word >= CAPTURED:
                if os.pread(self._fd, _WORD, MARK_OFFSET) != words[:_WORD]:
                    continue  # it went on between the two
                self._mark = mark_of(word), (before + steps) % STEPS
            self._words = words
            break
        return self._mark  # the last, where it was cut short: `state` says so

    def write(self, word: int, offset: int = MARK_OFFSET) -> None:
        """Write a mark from the host, as `word_of` has it, or the step word.

        Raises:
            OSError: It cannot be written any more.
        """
        self._write(offset, word.to_bytes(_WORD, "little"))

    @property
    def enqueued(self) -> int:
        """Steps that trainers have put on their streams, one process after the other."""
        return self._read(_ENQUEUED)

    @enqueued.setter
    def enqueued(self, steps: int) -> None:
        self.write(steps, _ENQUEUED)

    @property
    def address(self) -> int:
        """Where the page begins in this process; it is mapped when this is asked for first.

        It stays so until the process ends: a GPU may write there at any time.

        Raises:
            OSError: It cannot be mapped.
        """
        if not self._mapped:
            import ctypes  # noqa: PLC0415 - of who trains on a GPU only

            # Python's own keeps a descriptor of it, and closes that number, another file's by then.
            map_ = ctypes.CDLL(None, use_errno=True).mmap
            map_.restype = ctypes.c_void_p
            both = mmap.PROT_READ | mmap.PROT_WRITE
            length, at = ctypes.c_size_t(self.size), ctypes.c_long(0)
            mapped = map_(None, length, both, mmap.MAP_SHARED, self._fd, at)
            if mapped == ctypes.c_void_p(-1).value:
                raise OSError(ctypes.get_errno(), f"{self.path} cannot be mapped")
            self._mapped = int(mapped)
        return self._mapped

    @property
    def pid(self) -> int:
        """Of the trainer; 0 before there is one."""
        return self._read(_PID)

    @property
    def state(self) -> int:
        """Of the trainer; it is refused where the page was cut short."""
        return self._read(_STATE, REFUSED)

    @property
    def sentence(self) -> str:
        """What the trainer has to say of its state; empty for nothing."""
        if self._read(_LENGTH, -1) < 0:
            return f"the page of marks {self.path} was cut short: no step is seen any more"
        length = min(self._read(_LENGTH), _LONGEST)
        return os.pread(self._fd, length, _SENTENCE).decode(errors="replace")

    def tell(self, state: int, sentence: str = "") -> None:
        """Say, as the trainer, what state it is in.

        Raises:
            OSError: It cannot be written any more.
        """
        text = sentence.encode(errors="replace")[:_LONGEST]
        self._write(_SENTENCE, text)
        self._write(_LENGTH, len(text).to_bytes(_WORD, "little"))
        self._write(_PID, os.getpid().to_bytes(_WORD, "little"))
        self._write(_STATE, state.to_bytes(_WORD, "little"))  # who sees it may read the sentence

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
        self._claimed = True
        self._write(_PID, os.getpid().to_bytes(_WORD, "little"))
        return True

    def _read(self, offset: int, missing: int = 0) -> int:
        word = os.pread(self._fd, _WORD, offset)
        return int.from_bytes(word, "little") if word else missing

    def _write(self, offset: int, data: bytes) -> None:
        """Write into the page, and into nothing else, whatever the trainer did to descriptors."""
        if identity(self._fd) != self._file:  # it has closed what it did not open
            self._fd = os.open(self.path, _FLAGS)
            if identity(self._fd) != self._file or (self._claimed and not self.claim()):
                os.close(self._fd)
                self._fd, self._file = -1, None
                raise OSError(f"{self.path} is another's by now")
        if os.pwrite(self._fd, data, offset) != len(data):
            raise OSError(f"{self.path} takes no more")

    def close(self) -> None:
        """Close it, where that was not done already; the file stays."""
        if self._file is not None and identity(self._fd) == self._file:
            os.close(self._fd)
        self._fd, self._file = -1, None


def identity(fd: int) -> tuple[int, int] | None:
    """Return which file a descriptor is of; ``None`` where it is of none.

    A number that was closed is soon another file's.
    """
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def word_of(mark: int, steps: int, *, captured: bool = False) -> int:
    """Return the mark word of a mark.

    Args:
        mark: Counted from 1.
        steps: That had begun with it.
        captured: Whether a graph has it, so that its steps are counted from the step word.
    """
    return mark | steps % STEPS << _MARK_BITS | (CAPTURED if captured else 0)


def mark_of(word: int) -> int:
    """Return the mark of a mark word."""
    return word & _MOST_MARKS


def _check_file(path: str, fd: int) -> None:
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
            hint="trainer and controller need the same underclock: install one version, start anew",
        )
    if size != status.st_size or not 0 < count <= (size - _MARKS) // 4:
        raise DataError(
            f"{path} is damaged: it says {size} bytes with {count} marks and has {status.st_size}",
            hint="start the run anew",
        )
