"""Faults on demand: what goes wrong with a virtual GPU, and when."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from underclock.records import ThrottleReason

if TYPE_CHECKING:
    from underclock.hw.simulated.device import VirtualGpu


class FaultKind(StrEnum):
    """What can go wrong."""

    PERMISSION_REVOKED = "every setter is refused"
    MEMORY_REFUSED = "memory locks fail, so a lock of both clocks stops half-way"
    GPU_LOST = "the GPU falls off the bus"
    COUNTER_RESTARTS = "the energy counter begins again at zero"
    COUNTER_STUCK = "the energy counter stands still, and goes on from there"
    SOFT_SLOWDOWN = "the driver lowers the clocks against heat"
    HARD_SLOWDOWN = "the hardware halves the clocks against heat"
    SETTER_HANGS = "every setter takes as long as a GPU's `hangs_s` before it does anything"
    LOCKS_IGNORED = "locks are accepted, and the clocks do not follow them"
    MARKS_STUCK = "what a stream writes does not arrive"
    MARKS_BACKWARDS = "what a stream writes counts down"


REASON_SOFT_SLOWDOWN = ThrottleReason.SW_THERMAL_SLOWDOWN
REASON_HARD_SLOWDOWN = ThrottleReason.HW_THERMAL_SLOWDOWN | ThrottleReason.HW_SLOWDOWN
_SLOWDOWNS = {  # reason, and the part of the highest clock that is left; the part is assumed
    FaultKind.SOFT_SLOWDOWN: (REASON_SOFT_SLOWDOWN, 0.75),
    FaultKind.HARD_SLOWDOWN: (REASON_HARD_SLOWDOWN, 0.5),
}
_LASTING = frozenset(FaultKind) - {FaultKind.COUNTER_RESTARTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        at_s: When, in virtual time.
        kind: What.
        for_s: For how long; a restarted counter is over at once.
        gpu: Index of the GPU it befalls; ``None`` for all of them.
    """

    at_s: float
    kind: FaultKind
    for_s: float = math.inf
    gpu: int | None = None

    def __post_init__(self) -> None:
        """Reject times that do not come."""
        if not (self.at_s >= 0 and self.for_s > 0):
            raise ValueError("a fault begins at or after 0 s and lasts some time")


@dataclass(frozen=True, slots=True)
class FaultScript:
    """Everything that will go wrong.

    Attributes:
        faults: In any order.
    """

    faults: Sequence[Fault] = ()

    def arm(self, gpus: "Sequence[VirtualGpu]") -> None:
        """Set the faults down in the GPUs' agendas.

        Raises:
            ValueError: A fault befalls a GPU that is not there.
        """
        for fault in self.faults:
            if fault.gpu is not None and not 0 <= fault.gpu < len(gpus):
                raise ValueError(f"there is no GPU {fault.gpu} to fail, only {len(gpus)}")
            for gpu in gpus if fault.gpu is None else (gpus[fault.gpu],):
                gpu.agenda.add(fault.at_s, functools.partial(gpu.fail, fault.kind))
                if fault.kind in _LASTING and fault.for_s < math.inf:
                    end_s = fault.at_s + fault.for_s
                    gpu.agenda.add(end_s, functools.partial(gpu.mend, fault.kind))


def slowdown(faults: Sequence[FaultKind]) -> tuple[ThrottleReason, float]:
    """Return the throttle reasons of the slowdowns there are, and what they leave of the clock."""
    slowdowns = [_SLOWDOWNS[kind] for kind in faults if kind in _SLOWDOWNS]
    reasons = ThrottleReason.NONE
    for bits, _ in slowdowns:
        reasons |= bits
    return reasons, min((left for _, left in slowdowns), default=1.0)
