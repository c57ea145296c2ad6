"""What the ranks of a job are to do, iteration by iteration, together.

Nothing is held until every rank has armed. Then a guard judges the job's iterations, each as long
as its slowest rank saw it: where they are slower than promised, all ranks go to auto with the next
iteration. Where one replica is slower than its plan and sets the job's pace, the others take the
plan of the stored frontier that is as slow as that one is (Perseus, arXiv 2312.06902), and come
back when it recovers. Every change is an `Order` of a greater generation, the same for all.

A rank is slow by what it computes, for what it waits for is another's: it is compared with the
fastest rank of its place in all replicas. A pipeline alone has nobody who could take it slower for
one of its stages: where that slows iterations, the guard finds out whose fault it is.

It knows no GPU and no process, and stands on the standard library: it judges while clocks are held.
"""

import math
import statistics
from bisect import bisect_right
from dataclasses import dataclass

from underclock.records.choices import Strategy
from underclock.records.job import COMPUTES, Held, Instruction, JobPlan, RankClocks
from underclock.runtime.policy.guard import Guard, Stage
from underclock.units import format_percent

WINDOW = 8
"""Iterations that tell a straggler together: two windows and what settles are less than 20."""
_SETTLING = 2  # iterations after an order that do not count: ranks take it up one by one
_SLOW = 0.01  # slower than its like: less does not pay another plan
_SURE = 4.0  # standard errors: every rank is looked at, in every window
_MEDIAN_ERROR = 1.86  # of a median, from the median distance: 1.4826 * 1.2533
_ROUNDING = 1e-9
_MOST_PATIENCE = 64  # windows in a row

_STAGES = {
    Stage.PLAN: "the plan",
    Stage.CHECKING: "auto on all ranks, to see whether it is the plan",
    Stage.REDUCED: "the fastest plan of the frontier",
    Stage.OFF: "auto on all ranks",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPoint:
    """One plan of the frontier, as far as iterations show it."""

    time_s: float  # of an iteration
    busy_s: tuple[float, ...]  # what each rank computes in it
    clocks: tuple[RankClocks, ...]  # of each rank; none at auto


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What all ranks do from their next iteration on."""

    generation: int  # greater than that of any order before
    # which plan of the frontier each rank follows; None leaves it to the driver
    points: tuple[int | None, ...]
    words: str = ""  # why, for the reader of the log


def planned_points(plan: JobPlan) -> tuple[tuple[PlannedPoint, ...], int]:
    """Return the plans that may be held, fastest first, and which of them is the chosen one."""
    made = [(point.cost.time_s, point.clocks) for point in plan.frontier]
    if plan.clocks not in [clocks for _, clocks in made]:
        made.append((plan.promise.time_s, plan.clocks))
    made.sort(key=lambda each: each[0])
    points = tuple(
        PlannedPoint(time_s=time_s, busy_s=_busy_s(plan, clocks), clocks=clocks)
        for time_s, clocks in made
    )
    return points, [point.clocks for point in points].index(plan.clocks)


def _busy_s(plan: JobPlan, clocks: tuple[RankClocks, ...] | None) -> tuple[float, ...]:
    """Return what each rank computes in an iteration under some clocks, ``None`` being auto."""
    return tuple(
        math.fsum(
            sum(pieces_s(plan, instruction, None if clocks is None else clocks[at][which]))
            for which, instruction in enumerate(rank.instructions)
            if instruction.kind in COMPUTES
        )
        for at, rank in enumerate(plan.job.ranks)
    )


def pieces_s(plan: JobPlan, instruction: Instruction, held: Held | None) -> tuple[float, ...]:
    """Return what an instruction takes by each row that it is held at, or as it is, or at auto."""
    if instruction.profile is None:
        return (instruction.time_s or 0.0,)
    profile = plan.job.profiles[instruction.profile]
    held = held or Held(row=profile.auto)
    return tuple(share * profile.rows[at].time_s for at, share in held.parts)


class JobPolicy:
    """Decides what all ranks of a job do.

    Args:
        plan: What is to be held.
        window: Iterations that the guard judges together; 0 for no guard.
        ahead: Iterations that ranks go on as before once there is an order.
    """

    def __init__(self, plan: JobPlan, *, window: int = 20, ahead: int = 0) -> None:
        self.points, self.chosen = planned_points(plan)  # that orders name; which is the plan's
        ranks = plan.job.ranks
        self.order = Order(generation=0, points=(None,) * len(ranks))
        self.over = ""  # why all stay at auto from now on
        cost = plan.arm(Strategy.AUTO).cost
        if cost is None:
            raise AssertionError("a plan has it")
        self.auto = PlannedPoint(time_s=cost.time_s, busy_s=_busy_s(plan, None), clocks=())
        self._replicas = [rank.data for rank in ranks]
        self._places = [(rank.stage, rank.tensor, rank.sequence) for rank in ranks]
        budget = max(plan.max_slowdown, plan.promise.time_change)
        self._guard = Guard(max_slowdown=budget, has_fixed=False, window=window) if window else None
        self._armed: set[int] = set()
        self._seen: dict[int, tuple[float, float | None]] = {}
        self._window: list[tuple[float, list[float | None]]] = []
        self._skip, self._settling = 0, _SETTLING + ahead
        self._scale: float | None = None  # iterations against those planned, no straggler in them
        self._slow: dict[int, float] = {}  # replicas that are slower than their like, and by what
        self._behind: dict[int, float] = {}  # likewise, and those of which that is not sure
        self._falls = 0  # orders back to a faster pace
        self._asked = 0  # windows in a row that want a slower one
        self._share = 1.0  # of that, what the job's iterations show
        self._target = 1.0  # how slow the other replicas may be for it, of the chosen plan's time
        self._pace = 1.0  # how slow iterations are for it

    @property
    def stage(self) -> Stage:
        """What the guard lets be held."""
        if self.over:
            return Stage.OFF
        return Stage.PLAN if self._guard is None else self._guard.stage

    @property
    def is_armed(self) -> bool:
        """Whether every rank is; nothing is set before."""
        return len(self._armed) == len(self._replicas)

    def armed(self, rank: int) -> None:
        """Note that a rank marks its iterations, so that its clocks may be set."""
        self._armed.add(rank)

    def lost(self, rank: int, why: str) -> Order | None:
        """Have all ranks go to auto for good, for one ended, or marks no more."""
        if self.over:
            return None
        self.over = f"rank {rank}: {why}"
        return self._hold(self.over)

    def passed(
        self, rank: int, time_s: float, busy_s: float | None = None, *, stalled: bool = False
    ) -> Order | None:
        """Take note of an iteration of one rank; return what all do from now on, if it is new.

        One in which a rank stood still counts on none.
        """
        if self.over or not self.is_armed:
            return None
        self._seen[rank] = (math.nan if stalled else time_s), busy_s
        if len(self._seen) < len(self._replicas):
            return None
        seen = [self._seen[at] for at in range(len(self._replicas))]
        self._seen.clear()
        if self._guard is None and not self.order.generation:
            return self._hold("every rank has armed")
        if self._skip:
            self._skip -= 1
            return None
        return self._iterated(seen)

    def _iterated(self, seen: list[tuple[float, float | None]]) -> Order | None:
        """Take note of an iteration that all ranks have ended."""
        times_s = [each_s for each_s, _ in seen]
        if not any(map(math.isnan, times_s)):
            self._window.append((max(times_s), [each_s for _, each_s in seen]))
        if len(self._window) < WINDOW:
            return None
        times_s, busy = [s for s, _ in self._window], [each for _, each in self._window]
        self._window.clear()
        words = self._follow_replicas(times_s, busy)
        if words and not self.stage.at_auto:  # what was seen before had another pace
            if self._guard is not None:
                self._guard.begin_anew()
            return self._hold(words)
        if self._guard is None:
            return None
        for each_s in times_s:
            words = self._guard.stepped(each_s / self._pace)  # less what a straggler adds
            if words:
                if self._guard.stage is Stage.OFF:
                    self.over = words
                return self._hold("; ".join(filter(None, (words, self._straggler()))))
        return None

    def _follow_replicas(self, times_s: list[float], busy: list[list[float | None]]) -> str:
        """Find the pace that the slowest replica leaves; return words where it is another."""
        known = [[s for s in each if s is not None] for each in zip(*busy, strict=True)]
        if len(set(self._replicas)) == 1 or 2 * min(map(len, known)) < WINDOW:
            return ""
        at_auto = self.stage.at_auto
        slow, behind, busy_scale = self._slowness(known)
        most = max(slow.values(), default=0.0)
        base_s = (self.auto if at_auto else self.points[self.chosen]).time_s
        median_s, error_s = _median(times_s)
        if not most and self._target == 1.0:
            self._scale = median_s / base_s
        elif self._scale is None:
            self._scale = busy_scale
        expected_s = self._scale * base_s
        self._pace = min(max(median_s / expected_s, 1.0), 1.0 + most)
        sure = min(max((median_s - error_s) / expected_s, 1.0), 1.0 + most)
        if most and (at_auto or self._target == 1.0 or most > max(self._slow.values()) + _SLOW):
            self._share = (sure - 1.0) / most
        target = min(sure, 1.0 + self._share * most)
        changed = abs(target - self._target) > _SLOW / 2 or (most == 0.0) != (not self._slow)
        slower = bool(slow) and (target > self._target or not self._slow)
        if changed and slower:
            # A replica may be slower than the rest at their plan and not at the slower one which
            # they take for it: without more windows after each order back, orders would not end.
            self._asked += 1
            if self._asked < min(1 << max(self._falls - 1, 0), _MOST_PATIENCE):
                return ""
        self._asked = 0
        self._slow, self._behind = slow, behind
        if not changed:
            return ""
        self._falls += not slower
        self._target = target
        return self._straggler() or "no replica is slower than the other replicas any more"

    def _straggler(self) -> str:
        """Say which replica sets the pace; empty where none does."""
        if not self._slow:
            return ""
        replica = max(self._slow, key=lambda each: self._slow[each])
        return (
            f"replica {replica} computes {format_percent(self._slow[replica])} slower than the "
            f"others and makes iterations {format_percent(self._pace - 1.0)} longer: the others "
            "may be as slow"
        )

    def _slowness(
        self, busy: list[list[float]]
    ) -> tuple[dict[int, float], dict[int, float], float]:
        """Return the replicas that are surely slower than the fastest rank of each place.

        And those that seem to be, surely or not, and what the fastest take of what is planned.
        """
        of_plan: list[tuple[float, float]] = []  # what ranks take of what is planned, its error
        fastest: dict[tuple[int, ...], int] = {}
        for at, each_s in enumerate(busy):
            point = self.order.points[at]
            planned = (self.auto if point is None else self.points[point]).busy_s
            median_s, error_s = _median(each_s)
            of_plan.append((median_s / planned[at], error_s / planned[at]))
            first = fastest.setdefault(self._places[at], at)
            if of_plan[at] < of_plan[first]:
                fastest[self._places[at]] = at
        slow, behind = dict[int, float](), dict[int, float]()
        usual_error = statistics.median(error for _, error in of_plan)  # few tell less of one
        for at, (ratio, _) in enumerate(of_plan):
            least, _ = of_plan[fastest[self._places[at]]]
            slower, unsure = ratio / least - 1.0, math.sqrt(2.0) * usual_error / least
            replica = self._replicas[at]
            if slower > _SLOW:
                behind[replica] = max(slower, behind.get(replica, 0.0))
            if slower > max(_SLOW, _SURE * unsure):
                slow[replica] = behind[replica]
        scale = statistics.fmean(of_plan[at][0] for at in fastest.values())
        return slow, behind, scale

    def _hold(self, words: str) -> Order:
        """Order what the stage and the replicas' paces ask for."""
        points: list[int | None] = [None] * len(self._replicas)
        if self.stage is Stage.PLAN:
            points = [self._point(each) for each in self._replicas]
        elif self.stage is Stage.REDUCED and self.chosen:
            points = [0] * len(self._replicas)
        self._skip = self._settling
        self._window.clear()
        self.order = Order(
            generation=self.order.generation + 1,
            points=tuple(points),
            words=f"{words}; from now on: {_STAGES[self.stage]}",
        )
        return self.order

    def _point(self, replica: int) -> int:
        """Return the slowest plan that lets a replica keep up with the slowest one.

        One that only seems slower sets nobody's pace, and gets no more time than it seems to have.
        """
        pace = self._target / (1.0 + self._share * self._behind.get(replica, 0.0))
        limit_s = self.points[self.chosen].time_s * pace * (1.0 + _ROUNDING)
        slower = bisect_right([point.time_s for point in self.points], limit_s) - 1
        return max(self.chosen, slower)


def _median(values_s: list[float]) -> tuple[float, float]:
    """Return the median of some values, and its standard error."""
    middle_s = statistics.median(values_s)
    apart_s = statistics.median([abs(each_s - middle_s) for each_s in values_s])
    return middle_s, _MEDIAN_ERROR * apart_s / math.sqrt(len(values_s))
