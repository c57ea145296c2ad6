"""The ranks of a job that one controller follows, and one of them, on its own machine.

`JobRanks` is the whole job under one controller. Over several, `controller/nodes`
has the same of one that decides for all, and of those that do what that one says.
"""

import math
from collections.abc import Iterator, Sequence

from underclock.records import AUTO
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.timetable import PassedStep
from underclock.runtime.policy.job import JobPolicy, Order
from underclock.runtime.policy.parts import RankPart
from underclock.runtime.policy.policy import Policy


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
