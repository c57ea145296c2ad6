"""A host thread that asks a virtual GPU for clocks ahead of the launches that they are for.

It sees where the step is whenever a launch begins, as events tell it on a real GPU, and between
those goes by planned durations. A change is asked for as long ahead of its launch as call and delay
are believed to take, but not before the clock's previous change is due, nor before that has very
likely happened: a lock that is replaced before it is followed never is. What is overdue when the
host comes to it gives way to what is newer. Calls block the host, one after another, and never the
GPU. What really happens is the device's doing; nothing here knows its delays.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from underclock.hw.simulated.device import VirtualGpu
from underclock.records import Clocks
from underclock.records.latencies import Domain, LatencyTable, changed, mhz_of

_ROUNDING_S = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of one clock in a round, and what the runtime believes of it.

    Attributes:
        at: The launch that it is for.
        to_mhz: ``None`` gives the clock back.
        lead_s: It is asked for this long ahead.
        call_s: Of which the call blocks the host for so long.
        sure_s: This long after the call's return it has very likely happened.
        stall_s: Nothing executes for so long when it happens.
    """

    at: int
    to_mhz: int | None
    lead_s: float
    call_s: float
    sure_s: float
    stall_s: float


@dataclass(slots=True)
class Line:
    """One clock, and its changes round after round; a number counts them over all rounds.

    Attributes:
        changes: Of a round, in order; at least one.
        launches: In a round.
        asked_mhz: What was asked for last.
        following: Number of the next change to ask for.
        sure_s: When what was asked for last has very likely happened.
        flying: Number of the change that was asked for and has not happened.
        happened: Of all that did, the launch that it was for, and `Runtime.ran_s` then.
    """

    changes: tuple[Change, ...]
    launches: int
    asked_mhz: int | None
    following: int = 0
    sure_s: float = -math.inf
    flying: int | None = None
    happened: list[tuple[int, float]] = field(default_factory=list)

    def change(self, number: int) -> Change:
        """Return a change by its number."""
        return self.changes[number % len(self.changes)]

    def launch(self, number: int) -> int:
        """Return which launch a change is for, counted over all rounds."""
        rounds, index = divmod(number, len(self.changes))
        return rounds * self.launches + self.changes[index].at


def lines_of(clocks: Sequence[Clocks], table: LatencyTable) -> dict[Domain, Line]:
    """Return the clocks that a schedule changes, with what a table says of the changes.

    Where both clocks change, the call that must be made first leaves time for the other. If either
    could be, the core's is: the memory's stall belongs at the boundary.

    Raises:
        DataError: The table lacks a clock that changes.
    """
    changes: dict[Domain, list[Change]] = {domain: [] for domain in Domain}
    for at, (before, after) in enumerate(itertools.pairwise((clocks[-1], *clocks))):
        here = []
        for domain, from_mhz, to_mhz in reversed(changed(before, after)):
            switch = table.answer(domain, from_mhz, to_mhz)
            change = Change(
                at=at,
                to_mhz=to_mhz,
                lead_s=switch.call_s + switch.delay_s,
                call_s=switch.call_s,
                sure_s=switch.delay_p95_s,
                stall_s=switch.stall_s,
            )
            here.append((domain, change))
        here.sort(key=lambda item: item[1].lead_s)
        least_s = 0.0
        for domain, change in here:
            lead_s = max(change.lead_s, least_s + change.call_s)
            changes[domain].append(dataclasses.replace(change, lead_s=lead_s))
            least_s = lead_s
    return {
        domain: Line(tuple(some), len(clocks), mhz_of(clocks[0], domain))
        for domain, some in changes.items()
        if some
    }


class Runtime:
    """The host thread.

    Args:
        gpu: What it asks for clocks; at the first launch's already.
        lines: Of the clocks that change.
        predicted_s: What each launch of a round is believed to take, without stalls.
    """

    def __init__(
        self, gpu: VirtualGpu, lines: Mapping[Domain, Line], predicted_s: Sequence[float]
    ) -> None:
        self.rounds: list[tuple[float, float]] = []  # when each began but the first; energy so far
        self.ran_s = 0.0  # time in which launches executed: a stall puts nothing off its launch
        self.began_s: dict[int, float] = {}  # `ran_s` at the launches at which clocks change
        self._gpu = gpu
        self.lines = lines
        changes = [change for line in lines.values() for change in line.changes]
        self._watched = {change.at for change in changes}
        durations_s = list(predicted_s)
        for change in changes:
            durations_s[change.at] += change.stall_s
        self._upto_s = list(itertools.accumulate(durations_s, initial=0.0))
        self._launches = len(durations_s)
        self._launch, self._since_s = 0, gpu.now_s  # the one that runs
        self._free_s = -math.inf  # when the call under way returns
        self._wakes_s, self._alarm = math.inf, 0
        self._stopped = False
        self._look_ahead()

    def stop(self) -> None:
        """Ask for nothing any more; a call under way is as if it had not been made."""
        self._stopped = True

    def runs(self, stride_s: float, *, ends: bool) -> None:
        """Note that a launch executed for so long, and whether the next one begins."""
        self.ran_s += stride_s
        if ends:
            self._begins()

    def _begins(self) -> None:
        """Note that the next launch begins."""
        self._launch += 1
        self._since_s = self._gpu.now_s
        at = self._launch % self._launches
        if at == 0:
            self.rounds.append((self._since_s, self._gpu.energy_j))
        if at in self._watched:
            self.began_s[self._launch] = self.ran_s
        self._look_ahead()

    def follows(self, domain: Domain) -> None:
        """Note for scoring that a clock changed; the runtime itself does not get to know."""
        line = self.lines.get(domain)
        if line is not None and line.flying is not None:
            line.happened.append((line.launch(line.flying), self.ran_s))
            line.flying = None

    def _begins_s(self, launch: int) -> float:
        """Return when a launch will begin, as far as one can tell."""
        if launch <= self._launch:
            return -math.inf
        return self._since_s + self._planned_s(launch) - self._planned_s(self._launch)

    def _planned_s(self, launch: int) -> float:
        rounds, at = divmod(launch, self._launches)
        return rounds * self._upto_s[-1] + self._upto_s[at]

    def _due_s(self, line: Line, number: int) -> float:
        """Return when a change should be asked for."""
        ahead_s = self._begins_s(line.launch(number)) - line.change(number).lead_s
        return max(ahead_s, self._begins_s(line.launch(number - 1)))

    def _asks_s(self, line: Line) -> float:
        """Return when the next change can be asked for."""
        return max(self._due_s(line, line.following), line.sure_s, self._free_s)

    def _look_ahead(self) -> None:
        """Set the alarm to when there is something to ask for, unless it is set earlier."""
        at_s = min((self._asks_s(line) for line in self.lines.values()), default=math.inf)
        if at_s < self._wakes_s:
            self._wakes_s = at_s
            self._alarm += 1
            wake = functools.partial(self._wake, self._alarm)
            self._gpu.agenda.add(max(at_s, self._gpu.now_s), wake)

    def _wake(self, alarm: int) -> None:
        if self._stopped or alarm != self._alarm:  # or it was set to another time meanwhile
            return
        self._wakes_s = math.inf
        now_s = self._gpu.now_s + _ROUNDING_S
        due = [domain for domain, line in self.lines.items() if self._asks_s(line) <= now_s]
        if due:
            lines = self.lines
            self._ask(min(due, key=lambda d: self._due_s(lines[d], lines[d].following)), now_s)
        self._look_ahead()

    def _ask(self, domain: Domain, now_s: float) -> None:
        """Ask for the newest change that is due, unless the clock was asked to be there."""
        line = self.lines[domain]
        number = line.following
        while self._due_s(line, number + 1) <= now_s:
            number += 1
        line.following = number + 1
        change = line.change(number)
        if change.to_mhz == line.asked_mhz:
            return
        line.asked_mhz = change.to_mhz
        self._free_s = self._gpu.now_s + next(self._gpu.setter_call_s)
        line.sure_s = self._free_s + change.sure_s
        self._gpu.agenda.add(self._free_s, functools.partial(self._returns, domain, number))

    def _returns(self, domain: Domain, number: int) -> None:
        """End a call: the driver holds the lock, and the clock follows when it does."""
        if self._stopped:
            return
        line = self.lines[domain]
        line.flying = number
        mhz = line.change(number).to_mhz
        bounds = None if mhz is None else (mhz, mhz)
        if domain is Domain.CORE:
            self._gpu.lock_core(bounds)
        else:
            self._gpu.lock_mem(bounds)
