"""The locks of one virtual GPU, and which of them its clocks follow by now."""

import bisect
import functools
from collections.abc import Callable

import numpy as np

from underclock.gpus.models import Bounds, GpuModel, SwitchingModel
from underclock.hw.simulated.agenda import Agenda
from underclock.records.latencies import Domain


class Locks:
    """Locks asked for, and followed some time later.

    Args:
        model: Which GPU; it says how long switching takes, and what locks it ignores.
        agenda: Where the switches are set down.
        random: Of the jitter.
        changed: Told which clock begins to follow another lock.
    """

    def __init__(
        self,
        model: GpuModel,
        agenda: Agenda,
        random: np.random.Generator,
        changed: Callable[[Domain], None],
    ) -> None:
        self.switching = model.switching or SwitchingModel()
        self._model = model
        self._agenda = agenda
        self._random = random
        self._changed = changed
        self._asked: dict[Domain, Bounds | None] = dict.fromkeys(Domain)
        self._followed: dict[Domain, Bounds | None] = dict.fromkeys(Domain)
        self._times = dict.fromkeys(Domain, 0)

    def asked(self, domain: Domain) -> Bounds | None:
        """Return the lock that the driver holds."""
        return self._asked[domain]

    def allowed(self, domain: Domain, mhz: float) -> float:
        """Return the clock nearest to another that the lock now followed allows."""
        bounds = self._followed[domain]
        return mhz if bounds is None else min(max(mhz, bounds[0]), bounds[1])

    def ask(self, now_s: float, domain: Domain, bounds: Bounds | None) -> None:
        """Hold a clock between two bounds in MHz, or let it go; it follows later, if at all."""
        self._asked[domain] = bounds
        self._times[domain] += 1
        if domain in self._model.ignored_locks:
            return
        delay_s = self.switching.delay_s(self._model.name, domain, bounds, self._random)
        follow = functools.partial(self._follow, domain, bounds, self._times[domain])
        if delay_s == 0:
            follow()
        else:
            self._agenda.add(now_s + delay_s, follow)

    def forget(self) -> None:
        """Drop every lock, as a reset does."""
        for domain in Domain:
            self._times[domain] += 1
            self._asked[domain] = self._followed[domain] = None

    def _follow(self, domain: Domain, bounds: Bounds | None, times: int) -> None:
        """Follow a lock now, unless it was replaced before it was followed."""
        if times == self._times[domain]:
            self._followed[domain] = bounds
            self._changed(domain)


def snap(mhz: float, table: tuple[int, ...]) -> int:
    """Return the greatest table clock not above the asked one, or the least."""
    return table[max(0, bisect.bisect_right(table, mhz) - 1)]
