"""What a server says of its steps, `Hook`, and how long they may take for tokens in time, `Pace`.

A note is one write of sixteen bytes into a pipe that a controller reads. It takes about a
microsecond, never waits, and a reader that is gone stops no server. Where the pipe
is full, the oldest notes make room: the latest is the one that counts. Standard library only: this
is loaded into the serving process.
"""

from __future__ import annotations

import contextlib
import math
import operator
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable

BEGIN, END, LATE = range(1, 4)
PHASES = ("prefill", "decode", "mixed")
"""As `records.work.SERVING` names them."""
NOTE = struct.Struct("<BBHIIf")
"""Kind, phase, nothing, batch, context, and the time in s that it may take, or below 0."""
_MOST = 2**32 - 1
_MOST_TRIES = 100  # to say something
_PAGE = 4096  # bytes: a full pipe takes no more before so many were read
# The constants were chosen on ten windows of each Azure trace, and hold on ten more: serving.md.
_GAIN = 0.05  # of a late request, in the logarithm of an aim
_FIRST, _LEAST = 0.7, 0.6  # of the target: an aim to begin with, and the least
_AHEAD = 2  # tokens
_NUMBERS = {phase: number for number, phase in enumerate(PHASES)}


class Hook:
    """The three calls that a server makes; they never raise and never wait.

    Args:
        writes: The pipe's end for notes.
        reads: Its other end, which the controller has too.

    Attributes:
        lost: Notes that were not read: the controller stands still, or has ended.
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
            within_s: How long clocks may take to rise again, in s, where the server knows that; by
                default they stay where no step is slower than the plan's budget says.
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
                with contextlib.suppress(BlockingIOError):  # the controller was faster
                    self.lost += len(os.read(self._reads, _PAGE)) // NOTE.size
            except OSError:  # no reader: serving goes on
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


class _Aim:
    """A time that is aimed at, so that so many keep the target."""

    def __init__(self, target_s: float, quantile: float) -> None:
        if not (0.0 < target_s < math.inf and 0.0 < quantile < 1.0):
            raise ValueError(f"no pace: {target_s} s for {quantile} of the requests")
        self.share = _FIRST  # of the target
        self._target_s, self._late = target_s, 1.0 - quantile

    def took(self, time_s: float) -> None:
        """Take note of what a request took."""
        late = time_s > self._target_s
        share = self.share * math.exp(_GAIN * (self._late - late))
        self.share = min(1.0, max(_LEAST, share))


class Pace:
    """Keeps the pace of the requests that a server makes tokens of.

    A request's time per output token is what passed since its first token, over the tokens since.
    As long as that is below the target a request has slack, and the step may be slower, or the
    prompt that is read in between. Unforeseen prompts use slack up too, and a request of
    few tokens has little of it, so that a request is to be two tokens ahead of what is aimed at.
    Who comes next waits for the step that runs, and for clocks to rise. What is aimed at is below
    the target, by as much as keeps the wanted share of requests in time: an aim falls a little with
    each that was late, and rises with each that was not by as much less as more are to be in time
    than late (Robbins and Monro, 1951). It falls no further than where slowing makes none late: one
    that is late below that met too many requests for any clock.

    Args:
        tpot_s: Most time per output token of a request, in s.
        ttft_s: Most time from a request to its first token, in s; ``None`` for any.
        quantile: Share of the requests that are to keep each of the two.
    """

    def __init__(
        self, tpot_s: float, ttft_s: float | None = None, *, quantile: float = 0.99
    ) -> None:
        self._tpot_s, self._ttft_s = tpot_s, ttft_s
        self._tokens = _Aim(tpot_s, quantile)
        self._firsts = None if ttft_s is None else _Aim(ttft_s, quantile)
        self._steps = 0
        self._first: dict[Hashable, tuple[float, int]] = {}  # when, and before which step

    def began(self, request: Hashable, now_s: float, waited_s: float = 0.0) -> None:
        """Take note that a request has its first token, for which it waited so long."""
        self._first[request] = now_s, self._steps
        if self._firsts is not None:
            self._firsts.took(waited_s)

    def stepped(self) -> None:
        """Take note of a step that made one more token of each request."""
        self._steps += 1

    def ended(self, request: Hashable, now_s: float) -> None:
        """Take note that a request has its last token."""
        first_s, step = self._first.pop(request)
        if self._steps > step:
            self._tokens.took((now_s - first_s) / (self._steps - step))

    def within_s(self, now_s: float) -> float:
        """Return how long the next step may take that makes tokens; below 0 where one is late."""
        return min(self._slack_s(now_s), self._most * self._tpot_s)

    def first_within_s(self, now_s: float, waited_s: float, waiting: int) -> float:
        """Return how long the prompt may take that is read next: no time where more wait for it.

        Requests that have their first token wait for it too, and have slack or not.

        Args:
            now_s: When reading it begins, by the clock of `began`.
            waited_s: How long its request has waited, in s.
            waiting: Requests that wait for theirs.
        """
        if waiting or self._ttft_s is None:
            return 0.0
        return min(self._slack_s(now_s), self._most * self._ttft_s - waited_s)

    def rise_s(self) -> float:
        """Return how long clocks may take to rise after idling."""
        return 0.0 if self._ttft_s is None else self._most * self._ttft_s

    @property
    def _most(self) -> float:
        return 1.0 if self._firsts is None else self._firsts.share

    def _slack_s(self, now_s: float) -> float:
        aim_s, steps = self._tokens.share * self._tpot_s, self._steps + 1 - _AHEAD
        due = (first_s + aim_s * (steps - step) for first_s, step in self._first.values())
        return min(due, default=math.inf) - now_s
