"""What a server says of its steps: which one begins, that it ended, that it was late.

A note is one write of sixteen bytes into a pipe that a conductor reads. It takes about a
microsecond, waits for nobody, and whoever does not read it any more stops no server. Where the pipe
is full, the oldest notes make room: the latest is the one that counts. Standard library only: this
is loaded into the serving process.
"""

from __future__ import annotations

import contextlib
import math
import operator
import os
import struct

BEGIN, END, LATE = range(1, 4)
PHASES = ("prefill", "decode", "mixed")
"""As `records.work.SERVING` names them."""
NOTE = struct.Struct("<BBHIIf")
"""Kind, phase, nothing, batch, context, and the time in s that it may take, or below 0."""
_MOST = 2**32 - 1
_MOST_TRIES = 100  # to say something
_PAGE = 4096  # bytes: a full pipe takes no more before so many were read
_NUMBERS = {phase: number for number, phase in enumerate(PHASES)}


class Hook:
    """The three calls that a server makes; they never raise and never wait.

    Args:
        writes: The pipe's end for notes.
        reads: Its other end, which the conductor has too.

    Attributes:
        lost: Notes that nobody read: the conductor stands still, or has ended.
        unknown: Steps of no such phase, batch or context, each of which runs at auto.
        first_unknown: What the first of these was said to be.
    """

    def __init__(self, writes: int, reads: int) -> None:
        os.set_blocking(writes, False)
        os.set_blocking(reads, False)
        self.lost = self.unknown = 0
        self.first_unknown = ""
        self._writes, self._reads = writes, reads

    def begin(
        self, phase: str = "", batch: int = 0, context: int = 1, *, within_s: float | None = None
    ) -> None:
        """Say that a step begins, or is about to; one that no table can have runs at auto.

        Args:
            phase: ``prefill``, ``decode``, or ``mixed`` for both in one launch.
            batch: Sequences in it, 1 or more.
            context: Tokens of the longest of them, 1 or more; of a prefill, of its prompt.
            within_s: How long it may take for every request in it to be in time, in s, where the
                server knows its deadlines; by default as long as the plan's budget says.
        """
        try:
            sizes = [min(operator.index(each), _MOST) for each in (batch, context)]
            note = NOTE.pack(BEGIN, _NUMBERS[phase], 0, *sizes, _within_s(within_s))
            is_known = min(sizes) > 0
        except Exception:  # noqa: BLE001 - a request goes on whatever is said of it
            is_known = False
        if not is_known:
            note = _UNKNOWN
            self.unknown += 1
            self.first_unknown = (
                self.first_unknown or f"{phase!r:.40} of {batch!r:.40}, {context!r:.40}"
            )
        self._say(note)

    def end(self, *, within_s: float | None = None) -> None:
        """Say that the step ended, and none runs until the next begins.

        Args:
            within_s: How long clocks may take to rise again, in s, where the server knows that;
                by default they stay where no step is slower than the plan's budget says.
        """
        try:
            note = NOTE.pack(END, 0, 0, 0, 0, _within_s(within_s))
        except Exception:  # noqa: BLE001 - as of a step that begins
            note = _END
        self._say(note)

    def late(self) -> None:
        """Say that a request was late, or will be: clocks go back to auto for a while."""
        self._say(_LATE)

    def _say(self, note: bytes) -> None:
        for _ in range(_MOST_TRIES):  # other threads of the server may fill what was emptied
            try:
                os.write(self._writes, note)
            except BlockingIOError:  # it is full: the oldest make room
                with contextlib.suppress(BlockingIOError):  # the conductor was faster
                    self.lost += len(os.read(self._reads, _PAGE)) // NOTE.size
            except OSError:  # nobody reads it: serving goes on
                break
            else:
                return
        self.lost += 1


def _within_s(within_s: float | None) -> float:
    """Return a time as a note has it: below 0 where there is none."""
    if within_s is None:
        return -1.0
    if math.isnan(within_s):
        raise ValueError("a time that is not a number")
    return min(max(0.0, within_s), _LONGEST_S)


_LONGEST_S = 1e9
_END, _LATE = (NOTE.pack(kind, 0, 0, 0, 0, -1.0) for kind in (END, LATE))
_UNKNOWN = NOTE.pack(BEGIN, 0, 0, _MOST, _MOST, -1.0)
"""A step of a size that no table has."""
