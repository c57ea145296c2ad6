"""One rank of a job: it follows the plan that the job's orders name, on its own machine."""

from underclock.records import AUTO, ClockSchedule
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.steps import PassedStep
from underclock.runtime.policy.job import JobPolicy, Order
from underclock.runtime.policy.parts import RankPart
from underclock.runtime.policy.policy import Policy


class RankPolicy(Policy):
    """Tells the job what one rank's iterations took, and has its machine do what the job orders.

    Args:
        job: What decides.
        peers: The policies of all ranks, to which this one is added.
    """

    needs_all = True

    def __init__(
        self, machine: Machine, part: RankPart, rank: int, job: JobPolicy, peers: "list[RankPolicy]"
    ) -> None:
        super().__init__(machine, part.schedules[job.chosen])
        self._part, self._rank, self._job, self._peers = part, rank, job, peers
        self._point: int | None = None
        peers.append(self)
        machine.hold(AUTO)

    @property
    def label(self) -> str:
        """What the job's guard lets be held."""
        return self._job.stage.name.lower()

    @property
    def follows(self) -> bool:
        """Whether it follows a plan of the frontier."""
        return self._point is not None

    def passed(self, step: PassedStep) -> str:
        """Tell the job of an iteration; one that may be several tells nothing."""
        if not step.counted:
            return ""
        self._job.armed(self._rank)
        order = self._job.passed(self._rank, step.time_s, step.busy_s, stalled=step.stalled_s > 0.0)
        return self._carry_out(order)

    def lost(self, why: str) -> str:
        """Have all ranks go to auto, for this one ended or marks no more."""
        return self._carry_out(self._job.lost(self._rank, why))

    def ends(self) -> str:
        """Say where the plan was never held."""
        if self._job.order.generation or self._rank:
            return ""
        if not self._job.is_armed:
            return "the plan was never held: not every rank of the job was seen to take iterations"
        return (
            "the plan was never held: the run ended before it was known what iterations take at "
            "auto; --guard 0 holds it from the second one"
        )

    def _carry_out(self, order: Order | None) -> str:
        if order is None:
            return ""
        for peer, point in zip(self._peers, order.points, strict=True):
            peer.take_up(point)
        return f"order {order.generation}: {order.words}"

    def take_up(self, point: int | None) -> None:
        """Follow a plan of the frontier, or leave the clocks to the driver for ``None``."""
        self._point = point
        if point is None:
            self._machine.hold(AUTO)
        else:
            self._follow(self._schedule())

    def _schedule(self) -> ClockSchedule:
        point = self._job.chosen if self._point is None else self._point
        return self._without_free(self._part.schedules[point])
