"""Where a step is, by marks that it passes, and when its later launches will begin.

How long it usually is from one mark to the next is the median of the last steps, which an odd one
does not move; until a step was seen it is the plan's. What was learned while one pair of clocks was
held says nothing of another pair, and is kept apart. How fast this very step goes against that is
followed from mark to mark as a Kalman filter follows a constant: steps whose lengths differ are
known after a mark or two, and where lengths do not differ the noise of single marks moves nothing.

It stands on the standard library alone: lists are short, and a controller is to start at once.
"""

import bisect
import itertools
import math
import statistics
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence
from enum import StrEnum

from underclock.runtime.machine.timetable import Timetable
from underclock.runtime.trainer.page import STEPS

REMEMBERED = 9
"""Steps; a median of fewer follows an odd one, of more is late where times drift."""
LEAST_SPREAD = 1e-3
"""Of the lengths of steps, as a fraction."""
_FIRST_SPREAD = 0.1  # a plan's durations may be that far from what the first steps take
_NORMAL = 1.4826  # standard deviation over median of the distance, of normal noise
_LEAST_NOISE_S = 20e-6  # of the time at which a mark is seen
_FIRST_NOISE_S = 200e-6
_ODD = 5.0  # deviations: one mark so far off says nothing of the next
_IMPOSSIBLE = 0.25  # of the usual time: nothing gets on that fast
_ENOUGH = 5  # steps, to say that marks are not the plan's
_ALIKE = 0.25  # of the step may lie between other marks: clocks change what launches take
_TELLING = 0.1  # of a step: a jump over less may be a late look at the mark before, or a stall
_CLOSELY = 16  # every so many steps all marks are looked at, where some would do
_ALIKE_STEPS = 0.02  # steps that differ by more must be seen where they are
_NEXT_OFTEN_MISSED = 3  # times in a row that a mark was not seen: it is not waited for


class Intervals:
    """What lies between the marks of a timetable."""

    def __init__(self, timetable: Timetable) -> None:
        self._table = timetable
        self._planned_s = _between_s(timetable)
        self._histories: defaultdict[Hashable, deque[list[float]]] = defaultdict(
            lambda: deque(maxlen=REMEMBERED)
        )
        self._history = self._histories[None]  # of each step, by mark
        self.spread = _FIRST_SPREAD  # standard deviation of the lengths of steps, as a fraction
        self._take(self._planned_s)

    @property
    def remembered(self) -> int:
        """How many steps they are known from."""
        return len(self._history)

    def follow(self, timetable: Timetable) -> None:
        """Expect of another timetable what this one took against its plan; it is learned anew."""
        planned_s, busy = _between_s(timetable), timetable.busy  # a rank waits as its plan says
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
        """Take up what was learned at clocks that are held from now on; ``None``: they change."""
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

    def last_mark(self, into_s: float) -> int:
        """Return the last mark that is usually reached by some time after a step's begin."""
        return bisect.bisect_right(self.ahead_s, into_s) - 1

    def off_plan(self) -> float:
        """Return the part of a step, less its end, that lies between other marks than planned."""
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
        self.usual_s = usual_s  # from each mark to the next; the last one's to the step's end
        self._into_s: dict[int, float] = {}
        # From the step's begin to each mark, and to its end.
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


class Seen(StrEnum):
    """What a mark says."""

    NOTHING = "nothing new"
    ON = "the step got on"
    STEP = "a step began"
    IMPOSSIBLE = "marks follow each other faster than the GPU can work"


class Position:
    """Where the step is, by `intervals` that are usual.

    Launches are counted over all rounds: launch ``round * launches + at``.
    """

    def __init__(self, timetable: Timetable) -> None:
        self._table = timetable
        self._launches = timetable.launches
        marks = timetable.marks
        self.intervals = Intervals(timetable)
        self._unknown_s = [math.nan] * len(marks)
        self._lasted_s = self._unknown_s[:]  # of this step, as far as seen
        self._missed = [0] * len(marks)
        self._off_s: list[float] = []  # marks of this step from where they were expected
        self._noise_s = _FIRST_NOISE_S
        self._pace_variance, self._was_odd = self.intervals.spread**2, 0
        self._next_s: float | None = None  # what `next_mark_s` returns; unknown once all moved
        self.pace = 1.0
        self.rounds = 0
        self.counts: int | None = None  # step of the last mark; None: not counted
        self.first = 0  # number of the step that was seen first, less the rounds before it
        self.ended = 0  # steps that the last mark seen shows to have ended
        self.step_began_s = math.nan  # about when the step began that the last mark is of
        self.mark: int | None = None  # index of the last one seen
        self.launch = -1  # at which it stands, counted over all rounds
        self.at_s = math.nan  # when
        self.before: tuple[int, float] | None = None  # launch and time of the one before that
        self.learns = True
        self.wanted: frozenset[int] | None = None  # marks that some steps are seen by; None for all
        self.closely = True  # whether this step is to be seen by all its marks, at their time
        self._close_left = REMEMBERED
        self._skipped = False  # whether marks of this step were passed over that were not wanted
        self._busy = [at for at, launch in enumerate(marks) if launch in timetable.busy]
        self.busy_s: float | None = None  # of the step that ended last, as `PassedStep` has it
        self.between_s: tuple[float, ...] | None = None  # likewise
        self.always_closely = False  # whether every step is to be seen so
        self._stalls = Stalls()

    @property
    def knows(self) -> bool:
        """Whether a whole step was seen."""
        return self.intervals.remembered > 0

    def under(self, clocks: Hashable) -> None:
        """Take up what was learned while clocks were as they are to be from now on."""
        self.intervals.under(clocks)
        self._close_left, self._next_s = REMEMBERED - self.intervals.remembered, None

    def learn_anew(self, timetable: Timetable) -> None:
        """See the next steps closely: clocks are to change elsewhere, and with them what lasts."""
        self._table = timetable
        self.intervals.follow(timetable)
        self._close_left, self._next_s = REMEMBERED, None

    def want_all(self) -> None:
        """Want every mark."""
        self.wanted = self._next_s = None

    def wants(self, ahead_s: Iterable[float]) -> None:
        """Want no marks, but the first of a step, one in its middle and those before some times.

        The one in the middle separates two steps, however late one looks. Of a job's rank all are
        wanted: what it computes, and what it waits, is seen by them.
        """
        if self._busy:
            return
        intervals = self.intervals
        before = [intervals.last_mark(each_s % intervals.step_s) for each_s in ahead_s]
        middle = intervals.last_mark(0.5 * intervals.step_s)
        self.wanted, self._next_s = frozenset([0, middle, *before]), None

    @property
    def longest_s(self) -> float:
        """How long marks usually lie apart at most."""
        return self.intervals.longest_s * max(1.0, self.pace)

    def mismatch(self) -> str | None:
        """Say how marks differ from the plan's, once some steps were seen; ``None`` if not."""
        if self.intervals.remembered < _ENOUGH:
            return None
        never = [mark for mark, missed in enumerate(self._missed) if missed >= _ENOUGH]
        if never:
            return (
                f"{len(never)} of {len(self._missed)} marks are never seen, mark {never[0]} first"
            )
        apart = self.intervals.off_plan()
        if apart <= _ALIKE:
            return None
        return f"{apart:.0%} of the step lies between other marks than planned"

    def will_stall(self, at_s: float, stall_s: float) -> None:
        """Expect that nothing executes for some time; what launches take is without it."""
        if stall_s > 0.0:
            self._next_s = None
            self._stalls.expect(at_s, stall_s)

    def saw(self, word: int, at_s: float, steps: int | None = None) -> Seen:
        """Take note of what the page says: one more than the last mark reached, and its step.

        Where steps are not counted, a mark that is not after the last is of the next step.
        """
        mark = word - 1
        # Of the same step a mark before the last is its own twice, as where it is evaluated.
        again = steps is not None and steps == self.counts and 0 < mark < (self.mark or 0)
        if mark < 0 or again:
            return Seen.NOTHING
        if mark >= len(self._missed):
            return Seen.IMPOSSIBLE
        if self.mark is None:
            self.counts, self.first = steps, (steps or 0) - self.rounds
            self._stand(mark, at_s)
            self.step_began_s = at_s
            return Seen.STEP if mark == 0 else Seen.ON
        ended = self._ended(mark, steps)
        if mark == self.mark and not ended:
            return Seen.NOTHING
        usual_s = self._usual_s(self.mark, mark, ended)
        took_s = at_s - self.at_s
        took_s -= self._stalls.shown_s(self.at_s, took_s - self.pace * usual_s)
        self.ended = ended
        # By past steps and by the plan: a job's first steps may take a hundred times as long.
        upto_s, marks = self._table.upto_s, self._table.marks
        planned_s = upto_s[marks[mark]] - upto_s[marks[self.mark]]
        least_s = min(usual_s, planned_s + (upto_s[-1] if mark <= self.mark else 0.0))
        is_sure = self.knows and least_s > _TELLING * self.intervals.step_s
        if is_sure and took_s < _IMPOSSIBLE * least_s:
            # Believe a mark that makes no sense with those before it, and nothing else.
            self.rounds += self.ended
            self._stand(mark, at_s)
            self.before = None
            self._lasted_s = self._unknown_s[:]
            self._off_s.clear()
            self.pace, self._pace_variance = 1.0, self.intervals.spread**2
            return Seen.IMPOSSIBLE
        if ended > 1 or (ended and mark >= self.mark):  # which marks were missed says nothing
            self._lasted_s = [each_s * took_s / usual_s for each_s in self.intervals.usual_s]
            self._skipped = False
        else:
            self._note(mark, took_s, usual_s)
        self.before = self.launch, self.at_s
        if ended:
            self._end_step(mark, took_s, usual_s)
            ahead_s = self.intervals.ahead_s[mark] * took_s / usual_s if usual_s else 0.0
            self.step_began_s = max(at_s - ahead_s, self.at_s)
        else:
            self._follow(took_s, usual_s)
        self._stand(mark, at_s)
        return Seen.STEP if ended else Seen.ON

    def begin_anew(self) -> None:
        """Believe the next mark, whatever it is: another process is to mark."""
        self.mark = self.counts = self.before = self._next_s = None
        self._lasted_s = self._unknown_s[:]
        self._off_s.clear()
        self.pace, self._pace_variance = 1.0, self.intervals.spread**2

    def _ended(self, mark: int, steps: int | None) -> int:
        """Return how many steps ended between the last mark and another."""
        at_least = int(self.mark is not None and mark < self.mark)
        if self.counts is None or steps is None:
            return at_least
        ended, self.counts = (steps - self.counts) % STEPS, steps
        if at_least <= ended < STEPS // 2:
            return ended
        self.counts = None  # marks without numbers, as where a graph is replayed unseen
        return at_least

    def _usual_s(self, mark: int, later: int, ended: int) -> float:
        """Return how long one mark usually is before another, some steps later."""
        ahead_s = self.intervals.ahead_s
        return ended * self.intervals.step_s + ahead_s[later] - ahead_s[mark]

    def begins_s(self, launch: int) -> float:
        """Return when a launch is expected to begin; minus infinity where it has."""
        if self.mark is None or launch <= self.launch:
            return -math.inf
        rounds, at = divmod(launch, self._launches)
        intervals = self.intervals
        usual_s = (rounds - self.rounds) * intervals.step_s + intervals.into_s(at)
        usual_s -= intervals.ahead_s[self.mark]
        return self._stalls.put_off_s(self.at_s + self.pace * usual_s)

    def began_s(self, launch: int) -> float:
        """Return when a launch began that lies between the last two marks seen."""
        if self.before is None:
            raise AssertionError("two marks were seen")
        first, first_s = self.before
        length, intervals = self._launches, self.intervals
        into_s, from_s, to_s = (
            each // length * intervals.step_s + intervals.into_s(each % length)
            for each in (launch, first, self.launch)
        )
        share = (into_s - from_s) / (to_s - from_s) if to_s > from_s else 1.0
        return first_s + share * (self.at_s - first_s)

    def next_mark_s(self) -> float:
        """Return when the next mark is expected that can be relied on."""
        if self._next_s is None:
            self._next_s = math.inf if self.mark is None else self.after_s(self.mark, self.at_s)
        return self._next_s

    @property
    def unsure_s(self) -> float:
        """How far off the next mark may be for the unknown pace of this step; one deviation."""
        return math.sqrt(self._pace_variance) * (self.next_mark_s() - self.at_s)

    def after_s(self, mark: int, at_s: float) -> float:
        """Return when the mark after one that was reached then is expected; infinite of no mark."""
        count, usual_s = len(self._missed), 0.0
        if not 0 <= mark < count:
            return math.inf
        intervals_s = self.intervals.usual_s
        for _ in range(count):
            usual_s += intervals_s[mark]
            mark = (mark + 1) % count
            if self._missed[mark] < _NEXT_OFTEN_MISSED and self._is_wanted(mark):
                break
        return self._stalls.put_off_s(at_s + self.pace * usual_s)

    def _is_wanted(self, mark: int) -> bool:
        return self.closely or self.wanted is None or mark in self.wanted

    def reaches_s(self, mark: int, steps: int) -> float:
        """Return when a mark is expected, of a step of that number; infinite if unknown."""
        if self.mark is None or not 0 <= mark < len(self._missed):
            return math.inf
        ended = int(mark <= self.mark)
        if self.counts is not None and (steps - self.counts) % STEPS < STEPS // 2:
            ended = max((steps - self.counts) % STEPS, int(mark < self.mark))
        return self._stalls.put_off_s(self.at_s + self.pace * self._usual_s(self.mark, mark, ended))

    def _note(self, mark: int, took_s: float, usual_s: float) -> None:
        """Note how long it took from the last mark to another, and which were not seen."""
        if self.mark is None:
            return
        intervals_s, passed = self.intervals.usual_s, self.mark
        count = len(intervals_s)
        even_s = took_s / ((mark - passed - 1) % count + 1)  # of marks that usually come at once
        while True:
            if passed >= self.mark:  # what follows is the next step's
                usual = usual_s > 0.0
                lasted_s = intervals_s[passed] * took_s / usual_s if usual else even_s
                self._lasted_s[passed] = lasted_s
            passed = (passed + 1) % count
            if passed == mark:
                break
            if self._is_wanted(passed):
                self._missed[passed] += 1
            else:
                self._skipped = True
        self._missed[mark] = 0

    def _follow(self, took_s: float, usual_s: float) -> None:
        """Learn from one stretch how fast this step goes; how long a rank waits does not tell."""
        if usual_s <= 0.0 or (self._busy and self.mark not in self._busy):
            return  # its marks usually come at one time, or another rank made it wait
        off_s = took_s - self.pace * usual_s
        self._off_s.append(off_s)
        variance = usual_s**2 * self._pace_variance + self._noise_s**2
        if abs(off_s) > _ODD * math.sqrt(variance):
            self._was_odd += 1
            if self._was_odd == 1:
                return
            self._pace_variance = (off_s / usual_s) ** 2  # it is this step that is odd
            variance = usual_s**2 * self._pace_variance + self._noise_s**2
        self._was_odd = 0
        gain = usual_s * self._pace_variance / variance
        self.pace = max(self.pace + gain * off_s, _IMPOSSIBLE)
        self._pace_variance = max(
            (1.0 - gain * usual_s) * self._pace_variance, (LEAST_SPREAD * self.pace) ** 2 / 100.0
        )

    def _end_step(self, mark: int, took_s: float, usual_s: float) -> None:
        """Learn from the step that ended, and expect the next to be as steps are."""
        intervals = self.intervals
        self.rounds += self.ended
        was_seen = not self._skipped and not any(map(math.isnan, self._lasted_s))
        self.between_s = tuple(self._lasted_s) if was_seen and self.ended == 1 else None
        busy_s = math.fsum(self._lasted_s[at] for at in self._busy)
        self.busy_s = busy_s if self._busy and self.ended == 1 and busy_s > 0.0 else None
        if self.learns and was_seen:
            intervals.learn(self._lasted_s)
            if self._off_s:
                noise_s = deviation(self._off_s)
                self._noise_s = max(0.5 * (self._noise_s + noise_s), _LEAST_NOISE_S)
            self._close_left -= 1
        self._skipped = False
        due = (
            self.always_closely
            or self._close_left > 0
            or self.rounds % _CLOSELY < self.ended
            or intervals.spread > _ALIKE_STEPS
        )
        self.closely = self.learns and due
        self._lasted_s = self._unknown_s[:]
        self._off_s.clear()
        self.pace, self._pace_variance, self._was_odd = 1.0, intervals.spread**2, 0
        if mark > 0:  # what is known of the new step already
            share = intervals.ahead_s[mark] / usual_s
            stretched = took_s / usual_s
            self._lasted_s[:mark] = [each_s * stretched for each_s in intervals.usual_s[:mark]]
            self.pace += share * (took_s / usual_s - 1.0)

    def _stand(self, mark: int, at_s: float) -> None:
        self.mark, self.at_s, self._next_s = mark, at_s, None
        self.launch = self.rounds * self._launches + self._table.marks[mark]


class Stalls:
    """Stalls that are expected and did not show yet."""

    def __init__(self) -> None:
        self._expected_s: list[tuple[float, float]] = []  # when each begins, and how long it is

    def expect(self, at_s: float, stall_s: float) -> None:
        """Expect that nothing executes for some time."""
        self._expected_s.append((at_s, stall_s))

    def put_off_s(self, at_s: float) -> float:
        """Return when that happens which would happen at a time without them."""
        if not self._expected_s:
            return at_s
        return at_s + sum(stall_s for begins_s, stall_s in self._expected_s if begins_s < at_s)

    def shown_s(self, since_s: float, over_s: float) -> float:
        """Return for how long nothing executed since the last mark, and expect that no more.

        The mark after it was seen so much later than without any stall. When a stall begins is
        known as well as delays are: it may lie on either side of a mark.
        """
        shown_s = 0.0
        for stall in self._expected_s[:]:
            begins_s, stall_s = stall
            if over_s - shown_s > 0.5 * stall_s:
                shown_s += stall_s
                self._expected_s.remove(stall)
            elif begins_s + stall_s < since_s:  # it should have shown long ago
                self._expected_s.remove(stall)
        return shown_s
