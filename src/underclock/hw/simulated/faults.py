"""Faults: what goes wrong with a virtual GPU, at a set time or on demand."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from underclock.errors import UsageError
from underclock.records import ThrottleReason
from underclock.units import name_hint

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
_POWER_LIMIT_CHANGED = "power_limit_changed"
_NAMES = {kind.name.lower(): kind for kind in FaultKind}
FAULT_NAMES = (*_NAMES, _POWER_LIMIT_CHANGED)
"""What can go wrong on demand."""
_WITH_VALUE = {FaultKind.SETTER_HANGS.name.lower(), _POWER_LIMIT_CHANGED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong."""

    at_s: float  # in virtual time
    kind: FaultKind
    for_s: float = math.inf  # a restarted counter is over at once
    gpu: int | None = None  # index of the GPU it befalls; None for all of them

    def __post_init__(self) -> None:
        if not (self.at_s >= 0 and self.for_s > 0):
            raise ValueError("a fault begins at or after 0 s and lasts some time")


@dataclass(frozen=True, slots=True)
class FaultScript:
    """Everything that will go wrong, in any order."""

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


def let_fail(gpu: "VirtualGpu", name: str, value: float | None = None) -> None:
    """Let something go wrong now; the value goes with it as `Control.fault` says.

    Raises:
        UsageError: No such fault, or a value that it needs or does not take.
    """
    if name not in FAULT_NAMES:
        raise UsageError(f"no fault is called {name!r}", hint=name_hint(name, FAULT_NAMES))
    if (value is not None) != (name in _WITH_VALUE) or (value is not None and not value > 0):
        raise UsageError(
            f"the fault {name} does not go with the value {value}",
            hint=f"a value above 0 goes with {' and '.join(sorted(_WITH_VALUE))}, and must",
        )
    if name == _POWER_LIMIT_CHANGED:
        gpu.limit_power(value or 0.0)
        return
    kind = _NAMES[name]
    if kind is FaultKind.SETTER_HANGS:
        gpu.hangs_s = value or 0.0
    if kind not in gpu.faults:
        gpu.fail(kind)


def heal(gpu: "VirtualGpu") -> None:
    """End everything that is wrong; a limit that was set so stays."""
    for kind in tuple(gpu.faults):
        gpu.mend(kind)


def truth(gpu: "VirtualGpu") -> dict[str, Any]:
    """Return what tests may judge by, and a driver does not tell."""
    return {
        "now_s": gpu.now_s,
        "energy_j": gpu.energy_j,
        "power_w": gpu.power_w,
        "core_mhz": gpu.core_mhz,
        "mem_mhz": gpu.mem_mhz,
        "core_lock": gpu.core_lock,
        "mem_lock": gpu.mem_lock,
        "limit_w": gpu.limit_w,
        "persistent": gpu.persistent,
        "faults": [kind.name.lower() for kind in gpu.faults],
        "launches": 0 if gpu.running is None else gpu.running.launches,
    }
