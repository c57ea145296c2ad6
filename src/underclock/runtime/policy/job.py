"""What the ranks of a job do, iteration by iteration, together.

Nothing is held until every rank has armed. Then a guard judges the job's iterations, each as long
as its slowest rank saw it: where they are slower than promised, all ranks go to auto with the next
iteration. Where one replica is slower than its plan and sets the job's pace, the rest take the
plan of the stored frontier that is as slow as that one is (Perseus, arXiv 2312.06902), and come
back when it recovers. Every change is an `Order` of a greater generation, the same for all.

A rank is slow by what it computes, for what it waits for is another's: it is compared with the
fastest rank of its place in all replicas. A pipeline alone has no replica that could take it slower
for one of its stages: where that slows iterations, the guard finds out whose fault it is.

`JobPolicy` decides, `JobRanks` is the whole job under one controller, and `RankPolicy` one rank of
it. Over several machines `controller/nodes` has the same of one that decides and those that follow.
"""

import math
import statistics
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from underclock.records import AUTO
from underclock.records.choices import Strategy
from underclock.records.job import JobPlan
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.timetable import PassedStep
from underclock.runtime.policy.guard import Guard, Stage
from underclock.runtime.policy.parts import PlannedPoint, RankPart, busy_s, planned_points
from underclock.runtime.policy.policy import Policy
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
class Order:
    """What all ranks do from their next iteration on."""

    generation: int  # greater than that of any order before
    # which plan of the frontier each rank follows; None leaves it to the driver
    points: tuple[int | None, ...]
    words: str = ""  # why, for the reader of the log


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
        self.auto = PlannedPoint(time_s=cost.time_s, busy_s=busy_s(plan, None), clocks=())
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
            f"rest and makes iterations {format_percent(self._pace - 1.0)} longer: the rest may be "
            "as slow"
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

        One that only seems slower sets no pace, and gets no more time than it seems to have.
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


class JobRanks:
    """Reports to the job's policy what ranks did, and has them do what it orders."""

    def __init__(self, job: JobPolicy) -> None:
        self.job, self.peers = job, list[RankPolicy]()  # of the ranks that are followed here
        self.next_s = math.inf  # when it wants to look at other machines
        self.label = job.stage.name.lower()  # what the job's guard lets be held

    @property
    def own(self) -> tuple[int, ...]:
        """The ranks that are followed here."""
        return tuple(peer.rank for peer in self.peers)

    def passed(self, rank: int, step: PassedStep, iteration: int) -> str:
        """Take note of an iteration of a rank, and which begins; return words for the log."""
        del iteration
        self.job.armed(rank)
        order = self.job.passed(rank, step.time_s, step.busy_s, stalled=step.stalled_s > 0.0)
        return self.carry_out(order)

    def lost(self, rank: int, why: str) -> str:
        """Have all ranks go to auto, for one ended or marks no more."""
        return self.carry_out(self.job.lost(rank, why))

    def carry_out(self, order: Order | None) -> str:
        """Have the ranks do what is ordered; return words for the log."""
        return "" if order is None else self.follow(order, self.job.stage.name.lower())

    def follow(self, order: Order, label: str, from_iteration: int | None = None) -> str:
        """Have the ranks do what an order says; return words for the log."""
        self.label = label
        self.take_up(order.points, from_iteration)
        from_ = "" if from_iteration is None else f", from iteration {from_iteration} on"
        return f"order {order.generation}: {order.words}{from_}"

    def tend(self, now_s: float) -> Iterator[str]:
        """Look at other machines; yield words for the log."""
        del now_s
        yield from ()

    def close(self) -> None:
        """Leave other machines."""

    def take_up(self, points: Sequence[int | None], from_iteration: int | None = None) -> None:
        """Have ranks follow plans of the frontier, from one of their iterations on or at once."""
        for peer in self.peers:
            peer.take_up(points[peer.rank], from_iteration)


class RankPolicy(Policy):
    """Reports what one rank's iterations took, and has its machine do what the job orders."""

    needs_all = True

    def __init__(self, machine: Machine, part: RankPart, rank: int, ranks: JobRanks) -> None:
        super().__init__(machine, part.schedules[ranks.job.chosen])
        self.rank = rank
        self._part, self._ranks = part, ranks
        self._point: int | None = None
        self._next: tuple[int, int | None] | None = None  # from which iteration on, and what
        ranks.peers.append(self)
        machine.hold(AUTO)

    @property
    def label(self) -> str:
        """What the job's guard lets be held."""
        return self._ranks.label

    @property
    def follows(self) -> bool:
        """Whether it follows a plan of the frontier."""
        return self._point is not None

    def passed(self, step: PassedStep) -> str:
        """Report an iteration to the job; one that may be several says nothing."""
        iteration = self._machine.position.first + step.number + step.steps
        if self._next is not None and iteration >= self._next[0]:
            self.take_up(self._next[1])
        return self._ranks.passed(self.rank, step, iteration) if step.counted else ""

    def lost(self, why: str) -> str:
        """Have all ranks go to auto, for this one ended or marks no more."""
        return self._ranks.lost(self.rank, why)

    def ends(self) -> str:
        """Say where the plan was never held."""
        job = self._ranks.job
        if job.order.generation or self.rank:
            return ""
        if not job.is_armed:
            return "the plan was never held: not every rank of the job was seen to take iterations"
        return (
            "the plan was never held: the run ended before it was known what iterations take at "
            "auto; --guard 0 holds it from the second one"
        )

    def take_up(self, point: int | None, from_iteration: int | None = None) -> None:
        """Follow a plan of the frontier, or leave the clocks to the driver for ``None``."""
        if from_iteration is not None:
            self._next = from_iteration, point
            return
        self._point, self._next = point, None
        if point is not None:
            self._planned = self._part.schedules[point]
        self._hold(AUTO if point is None else None)
