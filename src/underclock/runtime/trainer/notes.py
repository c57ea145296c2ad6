"""What a server says of its steps: which one begins, that it ended, that it was late.

A note is one write of sixteen bytes into a pipe that a conductor reads. It takes about a
microsecond, waits for nobody, and whoever does not read it any more stops no server. Standard
library only: this is loaded into the serving process.
"""

from __future__ import annotations

import os
import struct

BEGIN, END, LATE = range(1, 4)
PHASES = ("prefill", "decode", "mixed")
"""As `records.work.SERVING` names them."""
NOTE = struct.Struct("<BBHIIf")
"""Kind, phase, nothing, batch, context, and the time in s that it may take, or below 0."""
_MOST = 2**32 - 1
_NUMBERS = {phase: number for number, phase in enumerate(PHASES)}


class Hook:
    """The three calls that a server makes; they never raise for want of a reader.

    Attributes:
        lost: Notes that nobody could take: the conductor stands still, or has ended.
    """

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.lost = 0
        self._fd = fd

    def begin(
        self, phase: str, batch: int, context: int = 1, *, within_s: float | None = None
    ) -> None:
        """Say that a step begins, or is about to.

        Args:
            phase: ``prefill``, ``decode``, or ``mixed`` for both in one launch.
            batch: Sequences in it.
            context: Tokens of the longest of them; of a prefill, of its prompt.
            within_s: How long it may take for every request in it to be in time, in s, where the
                server knows its deadlines; by default as long as the plan's budget says.

        Raises:
            KeyError: There is no such phase.
        """
        number = _NUMBERS[phase]
        may_s = -1.0 if within_s is None else max(0.0, within_s)
        self._say(NOTE.pack(BEGIN, number, 0, min(batch, _MOST), min(context, _MOST), may_s))

    def end(self, *, within_s: float | None = None) -> None:
        """Say that the step ended, and none runs until the next begins.

        Args:
            within_s: How long clocks may take to rise again, in s, where the server knows that;
                by default they stay where no step is slower than the plan's budget says.
        """
        self._say(_END if within_s is None else NOTE.pack(END, 0, 0, 0, 0, max(0.0, within_s)))

    def late(self) -> None:
        """Say that a request was late, or will be: clocks go back to auto for a while."""
        self._say(_LATE)

    def _say(self, note: bytes) -> None:
        try:
            os.write(self._fd, note)
        except OSError:  # it is full, or nobody reads it: serving goes on
            self.lost += 1


_END, _LATE = (NOTE.pack(kind, 0, 0, 0, 0, -1.0) for kind in (END, LATE))
