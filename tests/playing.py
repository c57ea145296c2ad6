"""Steps played to a machine on a time of their own: marks as they come, calls as it asks."""

import dataclasses
from collections.abc import Iterable, Sequence

from underclock.records import Clocks, ThrottleReason
from underclock.records.latencies import Domain, LatencyTable, Switch
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.steps import Ask, State
from underclock.runtime.machine.timetable import Timetable, timetable

CALL_S, DELAY_S = 1e-3, 4e-3
LAUNCH_S = 10e-3
SLOW, FAST = Clocks(core_mhz=900), Clocks(core_mhz=1500)
CLOCKS = (SLOW,) * 4 + (FAST,) * 4
NO_REASON, CAP = ThrottleReason.NONE, ThrottleReason.SW_POWER_CAP


def switches(*, jitter_s: float = 0.0, stall_s: float = 0.0) -> LatencyTable:
    return LatencyTable(
        evidence=None,
        gpu=None,
        switches=tuple(
            Switch(
                domain=domain,
                from_mhz=None,
                to_mhz=None,
                call_s=CALL_S,
                delay_s=DELAY_S,
                delay_p05_s=DELAY_S - jitter_s,
                delay_p95_s=DELAY_S + jitter_s,
                jitter_s=jitter_s,
                stall_s=stall_s if domain is Domain.MEMORY else 0.0,
                repeats=0,
            )
            for domain in Domain
        ),
    )


def table_of(
    clocks: Sequence[Clocks] = CLOCKS,
    marks: Sequence[int] | None = None,
    latencies: LatencyTable | None = None,
    launch_s: float = LAUNCH_S,
) -> Timetable:
    marks = range(len(clocks)) if marks is None else marks
    return timetable(clocks, latencies or switches(), [launch_s] * len(clocks), marks)


@dataclasses.dataclass
class Player:
    """Plays steps to a machine: marks in order of their time, and calls as they are asked for."""

    machine: Machine
    call_s: float = CALL_S
    now_s: float = 0.0
    calls: list[tuple[float, Ask]] = dataclasses.field(default_factory=list)

    def run(self, until_s: float) -> None:
        """Let time pass in which no mark is seen."""
        while (at_s := max(self.machine.next_s, self.now_s)) <= until_s:
            self.now_s = at_s
            ask = self.machine.ask(at_s)
            if ask is None:
                break
            self.calls.append((at_s, ask))
            self.now_s += self.call_s
            self.machine.asked(ask, at_s, self.now_s)
        self.now_s = max(self.now_s, until_s)

    def step(self, lasts_s: Iterable[float], skipped: Iterable[int] = ()) -> float:
        """Play a step whose stretches between marks last so long; return when it began."""
        began_s = at_s = self.now_s
        for index, each_s in enumerate(lasts_s):
            if index not in skipped:
                self.machine.saw(index + 1, at_s)
            at_s += each_s
            self.run(at_s)
        return began_s

    def steps(self, count: int, lasts_s: Sequence[float]) -> float:
        began_s = self.now_s
        for _ in range(count):
            began_s = self.step(lasts_s)
        self.machine.saw(1, self.now_s)
        return began_s

    def asked(self, since_s: float) -> list[tuple[object, object]]:
        """Return what was asked for since, and how long after."""
        return [
            (round(at_s - since_s, 6), ask.to_mhz)
            for at_s, ask in self.calls
            if at_s >= since_s - 1e-9
        ]


def state(machine: Machine) -> State:
    """Return what it does; type checkers take it to stay the same otherwise."""
    return machine.state


def usual(table: Timetable, factor: float = 1.0) -> list[float]:
    ends = (*table.marks[1:], table.launches)
    return [
        factor * (table.upto_s[b] - table.upto_s[a]) for a, b in zip(table.marks, ends, strict=True)
    ]


def played(marks: Sequence[int] | None = None, **options: int) -> Player:
    machine = Machine(table_of(marks=marks), **options)  # type: ignore[arg-type]
    return Player(machine)
