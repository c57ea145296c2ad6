"""Hold a clock setting for the length of a ``with`` block, whatever happens inside."""

from collections.abc import Iterator
from contextlib import contextmanager

from underclock.errors import NotAppliedError
from underclock.hw.base import Gpu
from underclock.records import POWER_CAP_REASON, Clocks

_SLOWDOWN_REASONS = POWER_CAP_REASON | 0x8 | 0x20 | 0x40 | 0x80  # power and heat, soft and hard


@contextmanager
def clock_lease(gpu: Gpu, clocks: Clocks) -> Iterator[None]:
    """Lock clocks, and unlock them on the way out.

    The undo is armed before the first write, so a write that fails half-way is undone too. It
    unlocks rather than restores: NVML can set and reset locked clocks, but not read them. Auto
    clocks write nothing and need no permission.
    """
    if clocks.is_auto:
        yield
        return
    try:
        gpu.lock(clocks)
        yield
    finally:
        gpu.unlock()


def check_applied(gpu: Gpu, clocks: Clocks) -> Clocks:
    """Compare asked with observed, and return the observed. Call it while the GPU is busy.

    A core below the locked clock is no failure of the lock: the power cap outranks every lock, and
    a hot chip cannot reach the top of its table. A core above it, or a memory at another clock
    that no power or heat explains, means that the lock does not hold.

    Raises:
        NotAppliedError: The GPU runs at clocks that were not asked for.
    """
    seen = gpu.observed()
    off = []
    if clocks.core_mhz is not None and (seen.core_mhz or 0) > clocks.core_mhz:
        off.append(f"core asked {clocks.core_mhz} MHz, found {seen.core_mhz} MHz")
    if (
        clocks.mem_mhz is not None
        and seen.mem_mhz != clocks.mem_mhz
        and not gpu.event_reasons() & _SLOWDOWN_REASONS
    ):
        off.append(f"memory asked {clocks.mem_mhz} MHz, found {seen.mem_mhz} MHz")
    if off:
        raise NotAppliedError(
            f"the GPU does not run at the clocks that were locked: {'; '.join(off)}",
            hint="another program may set clocks too, or this GPU ignores locks",
        )
    return seen
