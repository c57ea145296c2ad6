"""Faults on demand, and the truth behind the driver."""

from underclock.errors import UsageError
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.faults import FaultKind
from underclock.hw.wire import Message
from underclock.units import nearest

POWER_LIMIT_CHANGED = "power_limit_changed"
_NAMES = {kind.name.lower(): kind for kind in FaultKind}
FAULT_NAMES = (*_NAMES, POWER_LIMIT_CHANGED)
"""What can go wrong on demand."""
_WITH_VALUE = {FaultKind.SETTER_HANGS.name.lower(), POWER_LIMIT_CHANGED}


def let_fail(gpu: VirtualGpu, name: str, value: float | None = None) -> None:
    """Let something go wrong now.

    Args:
        gpu: Where.
        name: What, one of `FAULT_NAMES`.
        value: For how many seconds each setter hangs, or the limit in W that somebody sets.

    Raises:
        UsageError: No such fault, or a value that it needs or does not take.
    """
    if name not in FAULT_NAMES:
        raise UsageError(f"no fault is called {name!r}", hint=nearest(name, FAULT_NAMES))
    if (value is not None) != (name in _WITH_VALUE) or (value is not None and not value > 0):
        raise UsageError(
            f"the fault {name} does not go with the value {value}",
            hint=f"a value above 0 goes with {' and '.join(sorted(_WITH_VALUE))}, and must",
        )
    if name == POWER_LIMIT_CHANGED:
        gpu.limit_power(value or 0.0)
        return
    kind = _NAMES[name]
    if kind is FaultKind.SETTER_HANGS:
        gpu.hangs_s = value or 0.0
    if kind not in gpu.faults:
        gpu.fail(kind)


def heal(gpu: VirtualGpu) -> None:
    """End everything that is wrong; a limit that somebody set stays."""
    for kind in tuple(gpu.faults):
        gpu.mend(kind)


def truth(gpu: VirtualGpu) -> Message:
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
