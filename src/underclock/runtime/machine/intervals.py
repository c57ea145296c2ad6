"""How long it usually is from one mark of a step to the next, learned from the last steps.

It is the median of them, which an odd one does not move; until a step was seen it is the plan's.
What was learned while one pair of clocks was held says nothing of others, and is kept apart.

It stands on the standard library alone: lists are short, and a controller is to start at once.
"""

import bisect
import itertools
import math
import statistics
from collections import defaultdict, deque
from collections.abc import Hashable, Sequence

from underclock.runtime.machine.timetable import Timetable

REMEMBERED = 9
"""Steps; a median of fewer follows an odd one, of more is late where times drift."""
LEAST_SPREAD = 1e-3
"""Of the lengths of steps, as a fraction."""
_FIRST_SPREAD = 0.1  # a plan's durations may be that far from what the first steps take
_NORMAL = 1.4826  # standard deviation over median of the distance, of normal noise


class Intervals:
    """What lies between the marks of a timetable.

    Attributes:
        usual_s: From each mark to the next; the last one's to the step's end.
        ahead_s: From the step's begin to each mark, and to its end.
        step_s: How long a step usually takes.
        longest_s: The longest of them.
        spread: Standard deviation of the lengths of steps, as a fraction.
    """

    def __init__(self, timetable: Timetable) -> None:
        self._table = timetable
        self._planned_s = _between_s(timetable)
        self._histories: defaultdict[Hashable, deque[list[float]]] = defaultdict(
            lambda: deque(maxlen=REMEMBERED)
        )
        self._history = self._histories[None]  # of each step, by mark
        self.spread = _FIRST_SPREAD
        self._take(self._planned_s)

    @property
    def remembered(self) -> int:
        """How many steps they are known from."""
        return len(self._history)

    def follow(self, timetable: Timetable) -> None:
        """Expect of another timetable what this one took against its plan; it is learned anew.

        How long a rank of a job waits is as its plan says.
        """
        planned_s, busy = _between_s(timetable), timetable.busy
        usual_s = [
            usual * new / old if old and (not busy or at in busy) else new
            for at, usual, new, old in zip(
                timetable.marks, self.usual_s, planned_s, self._planned_s, strict=True
            )
        ]
        self._table, self._planned_s = timetable, planned_s
        self._histories[None].clear()
        self._take(usual_s)

    def under(self, clocks: Hashable) -> None:
        """Take up what was learned while clocks were as they are to be from now on.

        Args:
            clocks: What is held; ``None`` where they follow the timetable.
        """
        self._history = self._histories[clocks]
        if self._history:
            self._digest()

    def learn(self, lasted_s: list[float]) -> None:
        """Learn from one more step what is usual."""
        self._history.append(lasted_s)
        self._digest()

    def into_s(self, at: int) -> float:
        """Return how far into a round a launch usually begins; it is asked for often."""
        into_s = self._into_s.get(at)
        if into_s is None:
            marks, upto_s = self._table.marks, self._table.upto_s
            mark = bisect.bisect_right(marks, at) - 1
            into_s = self.ahead_s[mark]
            if planned_s := upto_s[at] - upto_s[marks[mark]]:
                into_s += planned_s * self.usual_s[mark] / self._planned_s[mark]
            self._into_s[at] = into_s
        return into_s

    def planned_between_s(self, mark: int, later: int) -> float:
        """Return how long one mark is before another in the plan, of the next round if need be."""
        upto_s, marks = self._table.upto_s, self._table.marks
        planned_s = upto_s[marks[later]] - upto_s[marks[mark]]
        return planned_s + (upto_s[-1] if later <= mark else 0.0)

    def last_mark(self, into_s: float) -> int:
        """Return the last mark that is usually reached by some time after a step's begin."""
        return bisect.bisect_right(self.ahead_s, into_s) - 1

    def off_plan(self) -> float:
        """Return the part of a step that lies between other marks than planned.

        How long the step is does not matter, and neither does what it waits for at its end.
        """
        planned, usual = self._planned_s[:-1], self.usual_s[:-1]
        planned_s, usual_s = math.fsum(planned), math.fsum(usual)
        if not planned_s * usual_s:
            return 0.0
        return 0.5 * math.fsum(
            abs(a / planned_s - b / usual_s) for a, b in zip(planned, usual, strict=True)
        )

    def _digest(self) -> None:
        """Tell from the steps remembered what is usual."""
        usual_s = [statistics.median(some) for some in zip(*self._history, strict=True)]
        usually_s = math.fsum(usual_s)
        if not usually_s:  # marks that came at one time tell of none; what was usual stays
            return
        steps_s = [math.fsum(some) for some in self._history]
        known = len(steps_s) >= 3  # noqa: PLR2004 - two always lie alike about their middle
        apart = deviation([each_s / usually_s - 1.0 for each_s in steps_s])
        self.spread = max(apart, LEAST_SPREAD) if known else _FIRST_SPREAD
        self._take(usual_s)

    def _take(self, usual_s: list[float]) -> None:
        self.usual_s = usual_s
        self._into_s: dict[int, float] = {}
        self.ahead_s = list(itertools.accumulate(usual_s, initial=0.0))
        self.step_s = self.ahead_s[-1]
        self.longest_s = max(usual_s)


def _between_s(timetable: Timetable) -> list[float]:
    """Return what is planned to lie between each mark and the next, or the step's end."""
    marks, upto_s = timetable.marks, timetable.upto_s
    ends = (*marks[1:], timetable.launches)
    return [upto_s[b] - upto_s[a] for a, b in zip(marks, ends, strict=True)]


def deviation(off: Sequence[float]) -> float:
    """Return the standard deviation of normal noise about 0, which odd values hardly move."""
    return _NORMAL * statistics.median([abs(each) for each in off])
