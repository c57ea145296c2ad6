"""Power limits of one node's ranks: once in a run a straggler is given watts that others can spare.

Only a straggler that its own power limit holds down gains by that, and only while a plan is held.
Its pace is everybody's, so others need no more than the plan of that pace draws; as it gains, they
need more. So limits are moved to where the fastest plan of the frontier fits that all of them can
follow within the budget: the others keep what they draw under it, the straggler has the rest. Where
all leave the plan, limits go back to those that were found, for good.

It knows no GPU: whoever drives it tells what ranks draw, and sets what is due, one limit after
another, what falls first. So the limits never add up to more than the budget on the way either.
"""

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from underclock.errors import NotSupportedError, UsageError
from underclock.records import GpuInfo
from underclock.records.job import JobPlan, RankClocks
from underclock.runtime.policy.job import PlannedPoint

MARGIN = 0.02
"""Above what a rank draws as it computes, that its limit keeps."""
READINGS = 10
"""Of a straggler as it computes, that tell whether its limit holds it down."""
_MOSTLY, _COMPUTES, _AT_LIMIT = 0.5, 0.5, 0.97  # of readings; of its limit
_LEAST_W = 5.0  # less is not worth a change
_ROUNDING_W = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpu:
    """One GPU of the node, whose power limit may become another.

    Attributes:
        limit_w: That was found.
        range_w: The least and the greatest that it takes.
        needs_w: What it draws as it computes, under each plan of the frontier, fastest first; empty
            where that is not known.
        drew_w: What its meter showed lately, in the mean.
    """

    limit_w: float
    range_w: tuple[float, float]
    needs_w: tuple[float, ...] = ()
    drew_w: float = 0.0

    def kept_w(self, point: int) -> float:
        """Return the least limit that lets it follow a plan."""
        if not self.needs_w:
            return self.limit_w
        need_w = max(self.needs_w[point], self.drew_w)
        return max(self.range_w[0], need_w * (1.0 + MARGIN))

    def spares_w(self, point: int) -> int:
        """Return how many watts its limit may fall by where it follows a plan."""
        return max(0, math.floor(self.limit_w - self.kept_w(point)))


def check_budget(limits_w: Sequence[float], budget_w: float) -> None:
    """Refuse a budget that the limits exceed as they are found.

    Raises:
        UsageError: They do, or it is none.
    """
    sum_w = math.fsum(limits_w)
    if not (math.isfinite(budget_w) and budget_w + _ROUNDING_W >= sum_w):
        raise UsageError(
            f"the node's GPUs are to share {budget_w:g} W, and their power limits add up to "
            f"{sum_w:g} W already",
            hint=f"say --node-power {math.ceil(sum_w)} or more, or lower the limits before",
        )


def moved_w(
    gpus: Sequence[NodeGpu], to: int, budget_w: float, points: Sequence[int]
) -> tuple[float, ...]:
    """Return the limits under which all can follow the first of some plans, in whole watts moved.

    They are those that were found where there is no such plan, or too little to move.

    Args:
        to: The GPU that is given what the others spare.
        points: Plans of the frontier, fastest first.
    """
    found_w, taker = tuple(each.limit_w for each in gpus), gpus[to]
    for point in points:
        spares_w = [0 if at == to else each.spares_w(point) for at, each in enumerate(gpus)]
        free_w = round(budget_w - math.fsum(found_w), 6)
        room_w = taker.range_w[1] - taker.limit_w
        more_w = math.floor(min(room_w, free_w + sum(spares_w)))
        if taker.limit_w + more_w < taker.kept_w(point):
            continue
        if more_w < _LEAST_W:
            break
        limits_w = list(found_w)
        lacks_w, whole_w = max(0, math.ceil(more_w - free_w)), sum(spares_w)
        for at, each_w in enumerate(spares_w):  # each in proportion
            less_w = -(-each_w * lacks_w // max(whole_w, 1))
            whole_w, lacks_w = whole_w - each_w, lacks_w - less_w
            limits_w[at] -= less_w
        limits_w[to] += more_w
        return tuple(limits_w)
    return found_w


def planned_w(plan: JobPlan, rank: int, clocks: RankClocks) -> float | None:
    """Return what a rank draws in the mean as it computes; ``None`` where that is not known."""
    drawn_j, busy_s = 0.0, 0.0
    for instruction, held in zip(plan.job.ranks[rank].instructions, clocks, strict=True):
        if instruction.profile is None or held is None:
            continue
        rows = plan.job.profiles[instruction.profile].rows
        for at, share in held.parts:
            row = rows[at]
            if row.energy_j is None:
                return None
            drawn_j, busy_s = drawn_j + share * row.energy_j, busy_s + share * row.time_s
    return drawn_j / busy_s if busy_s else None


def needs_of(plan: JobPlan, points: Sequence[PlannedPoint], rank: int) -> tuple[float, ...]:
    """Return what a rank draws as it computes, under each plan; empty where that is not known."""
    drawn_w = [planned_w(plan, rank, point.clocks[rank]) for point in points]
    known_w = tuple(each_w for each_w in drawn_w if each_w is not None)
    return known_w if len(known_w) == len(drawn_w) else ()


def node_gpu(
    info: GpuInfo, limit_w: float, plan: JobPlan, points: Sequence[PlannedPoint], rank: int
) -> NodeGpu:
    """Return the GPU of a rank as one whose limit may become another.

    Raises:
        NotSupportedError: It does not say which limits it takes.
    """
    if info.power_range_w is None:
        raise NotSupportedError(
            f"rank {rank}'s GPU does not say which power limits it takes",
            hint="leave out --node-power: clocks are held without it",
        )
    return NodeGpu(
        limit_w=limit_w, range_w=info.power_range_w, needs_w=needs_of(plan, points, rank)
    )


class NodeWatts:
    """The limits of a node's ranks.

    Args:
        gpus: Of the ranks from ``first`` on.
        budget_w: What their limits may add up to.
        chosen: The chosen plan of the frontier, as orders name it.

    Attributes:
        first: Rank of the job that is the first of the node's.
        limits_w: That are set now, as far as this knows.
        over: Why no watts are moved any more; empty before.

    Raises:
        UsageError: The limits exceed the budget as they are.
    """

    def __init__(
        self, gpus: Sequence[NodeGpu], *, first: int, budget_w: float, chosen: int
    ) -> None:
        check_budget([each.limit_w for each in gpus], budget_w)
        self.limits_w = [each.limit_w for each in gpus]
        self.over = ""
        self._gpus, self.first = tuple(gpus), first
        self._budget_w, self._chosen = budget_w, chosen
        self._wanted_w = list(self.limits_w)
        self._drew_w = [deque[float](maxlen=READINGS) for _ in gpus]
        self._held = False
        self._to: int | None = None
        self._slowest = chosen  # plan that others follow for it
        self._at_limit = deque[bool](maxlen=READINGS)

    def ordered(self, points: Sequence[int | None], slow: int | None) -> None:
        """Take note of what ranks of the job follow, and of which of them sets the pace, if any."""
        own = points[self.first : self.first + len(self._gpus)]
        self._held = all(each is not None and each >= self._chosen for each in own)
        if not self._held and self._wanted_w != self._found_w:
            self._leave("the plan is held no more")
        to = None if slow is None or not self._held else slow - self.first
        to = to if to in range(len(own)) else None
        if to != self._to:
            self._at_limit.clear()
        self._to = to
        self._slowest = max((each for each in points if each is not None), default=self._chosen)

    def drew(self, rank: int, power_w: float, *, capped: bool) -> None:
        """Take note of a reading of one rank, and whether the driver names the power cap."""
        at = rank - self.first
        if not self._held or self.over:
            return
        self._drew_w[at].append(power_w)
        if at == self._to and power_w >= _COMPUTES * self.limits_w[at]:
            self._at_limit.append(capped or power_w >= _AT_LIMIT * self.limits_w[at])

    def due(self) -> tuple[int, float] | None:
        """Return which rank's limit to set next, and to what; ``None`` where nothing is due."""
        if len(self._at_limit) == READINGS and sum(self._at_limit) >= _MOSTLY * READINGS:
            self._move()
        changes_w = [
            to_w - now_w for to_w, now_w in zip(self._wanted_w, self.limits_w, strict=True)
        ]
        at = min(range(len(changes_w)), key=changes_w.__getitem__)
        if changes_w[at] >= 0.0:
            at = max(range(len(changes_w)), key=changes_w.__getitem__)
            sum_w = math.fsum(self.limits_w) + changes_w[at]
            if changes_w[at] <= 0.0 or sum_w > self._budget_w + _ROUNDING_W:
                return None
        return self.first + at, self._wanted_w[at]

    def answered(self, rank: int, refused: str = "") -> None:
        """Take note that the limit that was due is set, or why it is not: then all go back."""
        at = rank - self.first
        if not refused:
            self.limits_w[at] = self._wanted_w[at]
            return
        if self._wanted_w[at] == self._found_w[at]:  # the undo at the end tries that again
            self._wanted_w[at] = self.limits_w[at]
        else:
            self._leave(refused)

    def words(self, rank: int) -> str:
        """Say why the limit that is due for a rank is another, for the reader of the log."""
        if self.over:
            return f"as it was found: {self.over}"
        if rank - self.first == self._to:
            return "for it holds this rank down, and the others wait for that"
        return "the rest goes to a rank that others wait for"

    @property
    def _found_w(self) -> list[float]:
        return [each.limit_w for each in self._gpus]

    def _leave(self, why: str) -> None:
        """Have all limits go back to those that were found; nothing is moved any more."""
        self.over = self.over or why
        self._wanted_w = self._found_w

    def _move(self) -> None:
        """Move watts, once."""
        self._at_limit.clear()
        if self._to is None or self.over or self._wanted_w != self._found_w:
            return
        gpus = [
            replace(each, drew_w=statistics.fmean(drew_w or (0.0,)))
            for each, drew_w in zip(self._gpus, self._drew_w, strict=True)
        ]
        faster = range(self._chosen, self._slowest)
        self._wanted_w = list(moved_w(gpus, self._to, self._budget_w, faster))
