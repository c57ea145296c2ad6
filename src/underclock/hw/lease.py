"""Clocks held for the length of a ``with`` block, and given back whatever happens inside.

The undo is armed twice, and before anything is set: by the lease, and around all leases by
`ClockLeases`. An interrupt may come between a lease and its own block, but not at the same time
between that and the block around it, so a single one leaves nothing locked wherever it comes.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from underclock.errors import NotAppliedError, UnderclockError, UsageError
from underclock.hw.base import Gpu
from underclock.hw.interrupts import interrupts_deferred, raise_lost_interrupt
from underclock.records import Clocks, ThrottleReason

NOTHING_LOCKED = "nothing is left locked"

_SLOWDOWN_REASONS = (
    ThrottleReason.SW_POWER_CAP
    | ThrottleReason.HW_SLOWDOWN
    | ThrottleReason.SW_THERMAL_SLOWDOWN
    | ThrottleReason.HW_THERMAL_SLOWDOWN
    | ThrottleReason.HW_POWER_BRAKE_SLOWDOWN
)


class ClockLeases:
    """The leases that this process takes on one GPU's clocks, one at a time.

    Use it as a context manager around all of them.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._holder: int | None = None  # the process that may have something to give back
        self._accepted = False  # whether the driver took a lock
        self._failure: UnderclockError | None = None  # of the undo

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._give_back()
        self._tell(error)
        if self._failure is None and error is not None and not isinstance(error, Exception):
            error.add_note(NOTHING_LOCKED)

    @contextmanager
    def hold(self, clocks: Clocks) -> Iterator[None]:
        """Lock clocks, and unlock them on the way out.

        It unlocks rather than restores: NVML can set and reset locked clocks, but not read them.
        Auto clocks write nothing and need no permission. A process that was forked off inside the
        block leaves the undo to its parent.

        Raises:
            UsageError: Clocks of this GPU are held already.
            DeviceError: The driver refuses; the error says so where clocks stay locked.
        """
        raise_lost_interrupt()
        if clocks.is_auto:
            yield
            return
        if self._holder is not None:
            raise UsageError(
                f"cannot hold {clocks}: other clocks of this GPU are held",
                hint="end that lease first; one inside another would give its clocks back",
            )
        try:
            with interrupts_deferred():
                self._holder = os.getpid()
                # One domain after the other, so that it is known whether the driver took any.
                for clock in (Clocks(core_mhz=clocks.core_mhz), Clocks(mem_mhz=clocks.mem_mhz)):
                    if not clock.is_auto:
                        self._gpu.lock(clock)
                        self._accepted = True
            yield
        except BaseException as error:
            self._give_back()
            self._tell(error)
            raise
        self._give_back()
        self._tell(None)

    def _give_back(self) -> None:
        if self._holder != os.getpid():
            return
        with interrupts_deferred():
            try:
                self._gpu.unlock()
            except UnderclockError as failure:
                # Where it took no lock, it has nothing to give back.
                self._failure = failure if self._accepted else self._failure
            else:
                self._failure = None
            self._holder, self._accepted = None, False

    def _tell(self, error: BaseException | None) -> None:
        """Say that clocks stay locked: in a note to the error there is, or as one."""
        failure = self._failure
        if failure is None:
            return
        words = f"the clocks STAY locked: {failure}"
        if error is None:
            raise type(failure)(words, hint=failure.hint) from failure
        note = f"{words}; {failure.hint}"
        if words not in str(error) and note not in getattr(error, "__notes__", ()):
            error.add_note(note)


def check_applied(gpu: Gpu, clocks: Clocks) -> Clocks:
    """Compare asked with observed, and return the observed. Call it while the GPU is busy.

    A core below the locked clock is no failure of the lock: the power cap outranks every lock, and
    a hot chip cannot reach the top of its table. A core above it, or a memory at another clock that
    no power or heat explains, means that the lock does not hold.

    Raises:
        NotAppliedError: The GPU runs at clocks that were not asked for.
    """
    seen = gpu.observed()
    off = []
    if clocks.core_mhz is not None and (seen.core_mhz or 0) > clocks.core_mhz:
        off.append(f"core asked {clocks.core_mhz} MHz, found {seen.core_mhz} MHz")
    is_off = clocks.mem_mhz is not None and seen.mem_mhz not in {None, clocks.mem_mhz}
    reasons = gpu.throttle_reasons() if is_off else None
    if reasons is not None and not reasons & _SLOWDOWN_REASONS:
        off.append(f"memory asked {clocks.mem_mhz} MHz, found {seen.mem_mhz} MHz")
    if off:
        raise NotAppliedError(
            f"the GPU does not run at the clocks that were locked: {'; '.join(off)}",
            hint="another program may set clocks too, or this GPU ignores locks",
        )
    return seen
