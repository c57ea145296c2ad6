"""Follows one GPU's page: tells its machine of marks, and the setter what the machine asks for.

Now and then, where there is time, it hands on what the driver showed, and writes what happened.
"""

import math
from collections.abc import Callable
from pathlib import Path

from underclock.errors import UnderclockError
from underclock.hw.base import Clock
from underclock.hw.settable import Setting
from underclock.records import AUTO
from underclock.records.runs import ArmLine, AskLine, EventLine
from underclock.runtime.conductor.gauges import Gauges
from underclock.runtime.conductor.looking import Looking, LookingOn
from underclock.runtime.conductor.telemetry import Log, Shown
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.steps import Ask, PassedStep, State
from underclock.runtime.policy.arms import ArmDifference, ExpectedRun
from underclock.runtime.policy.policy import Policy
from underclock.runtime.trainer import page as pages
from underclock.runtime.trainer.page import Page

NEAR_S = 5e-4
"""To what is due next: so long one waits for it without doing anything else."""
_HOUSEKEEPING_S = 0.1
_PUT_OFF_S = 0.1  # housekeeping waits so long for something else to wake it
_STANDING_S = 1.0  # in which power is read often once a step stands still
_UNSEEN = {
    pages.WAITING: "no step was seen: no optimiser of PyTorch's took one",
    pages.LEARNING: "no step was seen: training ended, or its step was captured as a graph, before "
    "the third one",
    pages.MARKING: "no step was seen, though marks were to come",
}

Setter = Callable[[Setting, float | None], None]
"""Sets a clock; ``None`` gives it back to the driver."""


class Follower:
    """Follows one GPU's page.

    Args:
        rank: Local rank of its trainer.
        page: Its page.
        machine: What says what to ask for.
        policy: What decides what the machine does.
        setter: Sets a clock; ``None`` where everything but that is done.
        gauges: What the driver shows.
        clock: The machine's.

    Attributes:
        next_s: When it wants to be woken.
    """

    def __init__(
        self,
        rank: int,
        page: Page,
        machine: Machine,
        policy: Policy,
        *,
        setter: Setter | None,
        gauges: Gauges,
        clock: Clock,
    ) -> None:
        self.rank, self.page, self.machine, self.policy = rank, page, machine, policy
        self.over = ""  # why it is, once it is
        self._setter, self._gauges = setter, gauges
        self._clock = clock
        self.looking = Looking(page, clock, machine.position)
        self._free_s = 0.0  # when a call that is only pretended would return
        self._shown, self._error = Shown(), ""
        self._waiting: list[tuple[PassedStep, str]] = []  # whose energy is not known yet
        self._ended_s = -math.inf  # the last step that did
        self._tidy_s = self._ask_s = self.next_s = 0.0

    def _rest(self) -> None:
        """Say when to be woken next; it is asked for often."""
        self.next_s = min(self.looking.next_s, self._tidy_s + _PUT_OFF_S, self._ask_s)

    def wake(self, now_s: float, log: Log, others: LookingOn) -> None:
        """Look, and ask for what is due."""
        if not self.over:
            seen = self.looking.look()
            if seen is not None:
                self.machine.saw(*seen)
                self._expect()
            if self._ask_s <= now_s:
                self._ask(log, others)
        has_time = min(self.looking.next_s, self._ask_s) > now_s + NEAR_S
        if now_s >= self._tidy_s + (0.0 if has_time else _PUT_OFF_S):
            self._tidy_s = now_s + _HOUSEKEEPING_S
            self._tidy(log)
            log.flush()
        self._rest()

    def noted(self, mark: int, at_s: float, steps: int) -> None:
        """Take note of a mark that passed while a setter blocked, this GPU's or another's."""
        self.machine.saw(mark, at_s, steps)
        self._expect()
        self._rest()

    def _expect(self) -> None:
        """Find out when something is due next; it changes with what the machine is told."""
        now_s = self._clock.now_s()
        self.looking.expect(self.machine.position.next_mark_s(), now_s)
        self._ask_s = math.inf if self.over else max(self.machine.next_s, self._free_s)

    def _ask(self, log: Log, others: LookingOn) -> None:
        now_s = self._clock.now_s()
        self._observe()
        next_ask = self.machine.ask(now_s) if self.machine.next_s <= now_s else None
        if self.machine.state is State.STALLED:
            self._gauges.read_closely(_STANDING_S)
        if next_ask is not None:
            self._call(next_ask, now_s, log, others)
        self._expect()

    def _call(self, ask: Ask, now_s: float, log: Log, others: LookingOn) -> None:
        if self._setter is None:
            call_s = ask.call_s
            self._free_s = now_s + call_s
            self.machine.asked(ask, now_s, self._free_s)
        else:
            call_s = self._set(ask, self._setter, others)
        log.write(
            AskLine(gpu=self.rank, at_s=now_s, domain=ask.domain, to_mhz=ask.to_mhz, call_s=call_s)
        )

    def _set(self, ask: Ask, setter: Setter, others: LookingOn) -> float:
        """Call the driver, and note the marks that pass meanwhile."""
        failed: Exception | None = None
        called_s = self._clock.now_s()
        with others.during():
            try:
                setter(Setting(ask.domain), ask.to_mhz)
            except (UnderclockError, OSError) as exc:  # refused, or no journal: nothing is set
                failed = exc
        returned_s = self._clock.now_s()
        if failed is None:
            self.machine.asked(ask, called_s, returned_s)
        else:
            self.machine.refused(ask, returned_s, str(failed))
        return returned_s - called_s

    def _observe(self) -> None:
        """Hand the driver's readings to the machine: of locks as they are, before others come."""
        gauges = self._gauges.taken()
        if not gauges and self._error == self._gauges.error:
            return
        error, self._error = self._error, self._gauges.error
        if self._error and not error:
            words = f"the GPU cannot be read: {self._error}"
            self.machine.events.append((self._clock.now_s(), words))
        for gauge in gauges:
            clocks = None if self._setter is None else gauge.clocks  # nothing was asked of these
            self.machine.observed(clocks, gauge.reasons, gauge.at_s, power_w=gauge.power_w)
        for words in self._shown.add(gauges):
            self.machine.events.append((self._clock.now_s(), words))
        if gauges:
            self._expect()

    def _tidy(self, log: Log) -> None:
        """Write what happened."""
        self._observe()
        words = self.policy.capped(self.machine.above_cap())
        if words:
            self.machine.events.append((self._clock.now_s(), words))
        self._take_note()
        known_s = self._shown.upto_s()
        while self._waiting and (self._waiting[0][0].ended_s <= known_s or self._gauges.error):
            self._write_step(log)
        self._shown.forget(self._waiting[0][0].began_s if self._waiting else self._ended_s)
        events, self.machine.events = self.machine.events, []
        for at_s, text in events:
            log.write(EventLine(gpu=self.rank, at_s=at_s, text=text))
        if not self.over and self.page.state in {pages.REFUSED, pages.DETACHED}:
            self._end(self.page.sentence or "the trainer marks no more", log)

    def _end(self, why: str, log: Log) -> None:
        """Leave the clocks to the driver; steps are seen no more."""
        self.over = why
        log.write(EventLine(gpu=self.rank, at_s=self._clock.now_s(), text=why))
        self.machine.hold(AUTO)
        self._expect()
        self.looking.next_s = math.inf
        if self._setter is not None:
            for setting in (Setting.CORE, Setting.MEMORY):
                try:
                    self._setter(setting, None)
                except UnderclockError as exc:  # other GPUs go on; the undo tries it again
                    words = f"the {setting} STAYS set for now: {exc}"
                    log.write(EventLine(gpu=self.rank, at_s=self._clock.now_s(), text=words))

    def _take_note(self) -> None:
        """Tell the policy of steps that ended."""
        for step in self.machine.passed():
            self._waiting.append((step, self.policy.label))
            self._ended_s = step.ended_s
            words = self.policy.passed(step)
            if words:
                self.machine.events.append((step.ended_s, words))
                self._expect()

    def _write_step(self, log: Log) -> None:
        """Write the first step that waits, whose energy is known now if it ever will be."""
        step, label = self._waiting.pop(0)
        line = self._shown.line(self.rank, step, label)
        log.write(line)
        words = self.policy.known(step, line.energy_j)
        if words:
            self.machine.events.append((step.ended_s, words))
        self._expect()

    def flush(self, log: Log) -> None:
        """Write what is known of the last steps."""
        self._gauges.close()
        seen = None if self.over else self.looking.look()  # where the last step came to
        if seen is not None:
            self.machine.saw(*seen)
        if self.machine.state is State.WAITING and not self.over:
            why = _UNSEEN.get(self.page.state, self.page.sentence)
            if self.page.state == pages.WAITING and not Path(self.page.path).exists():
                why = f"no step was seen: somebody removed the page of marks {self.page.path}"
            log.write(EventLine(gpu=self.rank, at_s=self._clock.now_s(), text=why))
        self._take_note()
        while self._waiting:
            self._write_step(log)
        words = self.policy.ends() if self.machine.state is not State.WAITING else ""
        if words:
            log.write(EventLine(gpu=self.rank, at_s=self._clock.now_s(), text=words))
        expected = ExpectedRun(
            limit_w=self._shown.limit_w,
            enqueued=self.page.enqueued,
            is_set=self._setter is not None,
        )
        for each in self.policy.differences(expected):
            log.write(_arm_line(self.rank, each))

    @property
    def energy_j(self) -> float | None:
        """What the GPU drew so far; ``None`` where its counter told nothing, or stands still."""
        return self._shown.energy_j or None


def _arm_line(rank: int, of: ArmDifference) -> ArmLine:
    energy = of.energy
    return ArmLine(
        gpu=rank,
        arm=str(of.arm),
        rounds=of.rounds,
        steps=of.steps,
        time_change=of.time.mean,
        time_interval=of.time.interval,
        energy_change=None if energy is None else energy.mean,
        energy_interval=None if energy is None else energy.interval,
        verdict=of.verdict,
    )
