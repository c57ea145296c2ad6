"""How long a server's next step may take for its tokens to come in time.

A request's time per output token is what passed since its first token, over the tokens since. As
long as that is below the target a request has slack, and the step may be slower, or the prompt that
is read in between. Prompts that nobody foresees use slack up too, and a request of few tokens has
little of it, so that a request is to be two tokens ahead of what is aimed at. Who comes next waits
for the step that runs, and for clocks to rise.
What is aimed at is below the target, by as much as keeps the wanted share of requests in time:
an aim falls a little with each that was late, and rises with each that was not by as much less
as more are to be in time than late (Robbins and Monro, 1951). It falls no further than where
slowing makes nobody late: who is late below that met too many requests for any clock. Standard
library only: this is loaded into the serving process.
"""

from __future__ import annotations

import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable

# The constants were chosen on ten windows of each Azure trace, and hold on ten others: serving.md.
_GAIN = 0.05  # of a late request, in the logarithm of an aim
_FIRST, _LEAST = 0.7, 0.6  # of the target: an aim to begin with, and the least
_AHEAD = 2  # tokens


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
        """Return how long the prompt may take that is read next: no time where others wait for it.

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
