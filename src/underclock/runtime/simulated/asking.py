"""A machine that asks one virtual GPU for clocks, in that GPU's time.

It is woken when it wants to be, its calls take as long as the GPU's driver takes, and marks are
seen when they are looked for. What it is told knows nothing of what the clocks then do.
"""

import functools
import math
from collections.abc import Callable, Iterator

from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.faults import FaultKind
from underclock.records.latencies import Domain
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.steps import Ask


class Asker:
    """Drives a machine.

    Args:
        gpu: That it asks.
        machine: What to ask for.
        looks_s: How long after each mark it is seen; by default at once.
        accepted: Told of every call that the driver accepted.
    """

    def __init__(
        self,
        gpu: VirtualGpu,
        machine: Machine,
        looks_s: Iterator[float] | None = None,
        accepted: Callable[[Ask], None] = lambda _: None,
    ) -> None:
        self.machine = machine
        self.talks = False  # whether its GPU waits in communication, or communicates
        self.disturbed = 0  # calls that were made, or were under way, meanwhile
        self.refusals = 0
        self._gpu = gpu
        self._looks_s = looks_s
        self._accepted = accepted
        self._page = 0, 0
        self._wakes_s, self._alarm = math.inf, 0
        self._stopped = False

    def stop(self) -> None:
        """Ask for nothing more; a call under way is as if it had not been made."""
        self._stopped = True

    def shows(self, word: int, step: int) -> None:
        """Write a mark to the page, of which the last one is seen."""
        self._page = word, step
        if self._looks_s is None:
            self._look()
        else:
            self._gpu.agenda.add(self._gpu.now_s + next(self._looks_s), self._look)

    def look_ahead(self) -> None:
        """Set the alarm to when there is something to ask for, unless it is set earlier."""
        at_s = self.machine.next_s
        if at_s < self._wakes_s:
            self._wakes_s = at_s
            self._alarm += 1
            wake = functools.partial(self._wake, self._alarm)
            self._gpu.agenda.add(max(at_s, self._gpu.now_s), wake)

    def _look(self) -> None:
        if not self._stopped:
            word, step = self._page
            self.machine.saw(word, self._gpu.now_s, step)
            self.look_ahead()

    def _wake(self, alarm: int) -> None:
        if self._stopped or alarm != self._alarm:
            return  # the alarm was set to another time meanwhile
        self._wakes_s, now_s = math.inf, self._gpu.now_s
        ask = self.machine.ask(now_s)
        if ask is not None:
            self.disturbed += self.talks
            returned_s = now_s + next(self._gpu.setter_call_s)
            self._gpu.agenda.add(returned_s, functools.partial(self._returns, ask, now_s))
        self.look_ahead()

    def _returns(self, ask: Ask, called_s: float) -> None:
        """End a call: the driver holds the lock, and the clock follows when it does."""
        if self._stopped:
            return
        if FaultKind.PERMISSION_REVOKED in self._gpu.faults:
            self.refusals += 1
            self.machine.refused(ask, self._gpu.now_s, FaultKind.PERMISSION_REVOKED)
        else:
            self._accepted(ask)
            bounds = None if ask.to_mhz is None else (ask.to_mhz, ask.to_mhz)
            if ask.domain is Domain.CORE:
                self._gpu.lock_core(bounds)
            else:
                self._gpu.lock_mem(bounds)
            self.machine.asked(ask, called_s, self._gpu.now_s)
        self.look_ahead()
