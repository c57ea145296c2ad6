"""Drives a machine on a virtual GPU's time: marks are launches that begin, and calls take time.

What really happens is the device's doing; nothing here that the machine is told knows its delays.
"""

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

import numpy as np

from underclock.gpus.models import Latency
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.work import LaunchLoop
from underclock.records.latencies import Domain
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.steps import Ask
from underclock.runtime.trainer.page import STEPS

_LEAST_LENGTH = 0.2  # of a step that varies


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLengths:
    """Steps of a length each, as inputs of varying size make them: every launch takes that part.

    Attributes:
        spread: Standard deviation, as a fraction.
        seed: Of the draws.
    """

    spread: float = 0.0
    seed: int = 0

    def drawn(self) -> Iterator[float]:
        """Return the length of one step after the other, against the usual one."""
        random = np.random.default_rng(self.seed)
        while True:
            yield max(1.0 + self.spread * float(random.standard_normal()), _LEAST_LENGTH)


class Driven:
    """A step that runs on a virtual GPU, and the machine that asks for its clocks.

    Args:
        gpu: Runs the step.
        machine: Follows it; ``None`` where nothing is asked for.
        lengths: Of the steps.
        looks: How long after a mark it is seen; by default at once.
    """

    def __init__(
        self,
        gpu: VirtualGpu,
        machine: Machine | None,
        lengths: StepLengths,
        looks: Latency | None = None,
    ) -> None:
        self.rounds: list[tuple[float, float]] = []  # when each began but the first; energy so far
        self.lengths: list[float] = []  # of every round, the first too
        self.ran_s = 0.0  # time in which launches executed: a stall puts nothing off its launch
        self.began_s: dict[int, float] = {}  # `ran_s` at the launches at which clocks change
        self.happened: list[tuple[int, float]] = []  # launch a change was for, and `ran_s` then
        self._gpu = gpu
        self._machine = machine
        table = None if machine is None else machine.timetable
        self._words = {} if table is None else {at: i for i, at in enumerate(table.marks, 1)}
        some = [] if table is None else [c for each in table.changes.values() for c in each]
        self._watched = {change.at for change in some}
        self._flying: dict[Domain, int] = {}
        self._drawn = lengths.drawn()
        random = np.random.default_rng([lengths.seed, 1])
        self._looks_s = None if looks is None else looks.draws(random)
        self._launch = self._word = 0
        self._wakes_s, self._alarm = math.inf, 0
        self._stopped = False
        self.length = self._draw()
        self._reaches(0)

    @contextmanager
    def driving(self) -> Iterator[None]:
        """Have the device, which just began the step, tell what it does until the block ends."""
        begun = self._gpu.running
        if begun is None:
            raise AssertionError("the loop was entered")
        same = {each.name: getattr(begun, each.name) for each in fields(begun) if each.init}
        self._gpu.running = _Told(**same, driven=self, usual_noise=begun.time_noise)
        self._gpu.on_follow = self.follows
        try:
            yield
        finally:
            self._stopped = True  # a call under way is as if it had not been made
            self._gpu.on_follow = None

    def runs(self, stride_s: float) -> None:
        """Note that a launch executed for so long."""
        self.ran_s += stride_s

    def begins(self, launches: int) -> None:
        """Note that the next launch begins, of so many in a round."""
        self._launch += 1
        at = self._launch % launches
        if at == 0:
            self.rounds.append((self._gpu.now_s, self._gpu.energy_j))
            self.length = self._draw()
        if at in self._watched:
            self.began_s[self._launch] = self.ran_s
        self._reaches(at)

    def follows(self, domain: Domain) -> None:
        """Note for scoring that a clock changed; the machine does not get to know."""
        launch = self._flying.pop(domain, None)
        if launch is not None:
            self.happened.append((launch, self.ran_s))

    def _draw(self) -> float:
        self.lengths.append(next(self._drawn))
        return self.lengths[-1]

    def _reaches(self, at: int) -> None:
        """Show the machine a mark, where there is one."""
        if at not in self._words:
            return
        self._word = self._words[at]
        if self._looks_s is None:
            self._look()
        else:
            self._gpu.agenda.add(self._gpu.now_s + next(self._looks_s), self._look)

    def _look(self) -> None:
        """Show the machine the page, which has the last mark only."""
        if self._machine is not None and not self._stopped:
            self._machine.saw(self._word, self._gpu.now_s, len(self.rounds) % STEPS)
            self._look_ahead()

    def _look_ahead(self) -> None:
        """Set the alarm to when there is something to ask for, unless it is set earlier."""
        at_s = math.inf if self._machine is None else self._machine.next_s
        if at_s < self._wakes_s:
            self._wakes_s = at_s
            self._alarm += 1
            wake = functools.partial(self._wake, self._alarm)
            self._gpu.agenda.add(max(at_s, self._gpu.now_s), wake)

    def _wake(self, alarm: int) -> None:
        if self._stopped or alarm != self._alarm or self._machine is None:
            return  # the alarm was set to another time meanwhile
        self._wakes_s = math.inf
        now_s = self._gpu.now_s
        ask = self._machine.ask(now_s)
        if ask is not None:
            returned_s = now_s + next(self._gpu.setter_call_s)
            self._gpu.agenda.add(returned_s, functools.partial(self._returns, ask, now_s))
        self._look_ahead()

    def _returns(self, ask: Ask, called_s: float) -> None:
        """End a call: the driver holds the lock, and the clock follows when it does."""
        if self._stopped or self._machine is None:
            return
        if ask.number is not None:
            self._flying[ask.domain] = self._machine.timetable.launch(ask.domain, ask.number)
        bounds = None if ask.to_mhz is None else (ask.to_mhz, ask.to_mhz)
        if ask.domain is Domain.CORE:
            self._gpu.lock_core(bounds)
        else:
            self._gpu.lock_mem(bounds)
        self._machine.asked(ask, called_s, self._gpu.now_s)
        self._look_ahead()


@dataclass(slots=True, kw_only=True)
class _Told(LaunchLoop):
    """A loop that tells of every launch that begins, and whose steps are of a length each."""

    driven: Driven
    usual_noise: float

    def __post_init__(self) -> None:
        """Begin with the first step's length."""
        LaunchLoop.__post_init__(self)
        self.time_noise = self.usual_noise * self.driven.length

    def progress(self, stride_s: float, launch_s: float) -> None:
        """Count what a stride completed."""
        before = self.position
        LaunchLoop.progress(self, stride_s, launch_s)
        self.driven.runs(stride_s)
        if self.position != before:
            self.driven.begins(len(self.turns))
            self.time_noise = self.usual_noise * self.driven.length
