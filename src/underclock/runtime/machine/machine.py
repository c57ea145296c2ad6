"""What to ask of the clocks next, from marks that a step passes: pure, without a clock of its own.

Its driver looks at the page and says what it `saw`, sleeps until `next_s`, calls the setter with
what `ask` returns, and says when it `asked`. Calls block, one after another, and never
the GPU. A change is asked for as long ahead of its launch as call and delay take. Where the time
for that lies beyond the next mark, it waits for the mark, which knows better. What is overdue gives
way to what is newer.

A simulator's clock, a real page and tests drive the same machine.
"""

import math

from underclock.records import AUTO, Clocks, ThrottleReason
from underclock.records.latencies import mhz_of
from underclock.runtime.machine.clock_domains import (
    SLOWDOWNS,
    ClockDomains,
    Latencies,
    Lock,
    Readings,
    why,
)
from underclock.runtime.machine.position import Position, Seen
from underclock.runtime.machine.timetable import Ask, PassedStep, State, Timetable
from underclock.units import Domain

_STILL = 2.0  # of the longest stretch between marks: then the step stands still
_LEAST_STILL_S = 0.05
_LONG_STILL_S = 3.0  # a process that is done training has ended by then, mostly
_AGAIN_S = 1.0  # after a refusal, giving a clock back is tried again
_COMPARED_EVERY = 10  # steps, with what the plan says of marks
_UNCOUNTED = (
    "steps are not counted: a graph of them is replayed where PyTorch does not see it, so several "
    "may be taken for one, and nothing is judged by what one takes"
)
_SENSIBLE_STEPS = 2  # whole steps whose marks made sense, until they are believed again


class Machine:
    """Follows a timetable.

    Args:
        first: What clocks are held as it begins.
        low_mhz: Core clock to wait at while the step stands still; ``None`` changes nothing then.
    """

    def __init__(
        self, timetable: Timetable, *, first: Clocks = AUTO, low_mhz: int | None = None
    ) -> None:
        self.timetable, self.is_planned = timetable, True
        self.state = State.WAITING
        self.events: list[tuple[float, str]] = []  # what a reader of the log should know
        self.locks = {domain: Lock(domain, mhz_of(first, domain)) for domain in Domain}
        self.latencies = Latencies()
        self.position = Position(timetable)
        self._readings = Readings(self.locks, self.latencies)
        self._held: Clocks | None = None  # by whom drives it; None follows the timetable
        self._low_mhz = low_mhz
        self.waits_low = False  # whether it waits so too where clocks are held
        self._pending: Ask | None = None
        self._back_s: dict[Domain, float] = {}  # when a refused clock is given back; inf: it was
        # What was refused is asked for no more.
        self._domains = ClockDomains(timetable, self.position, self.latencies, self._back_s.keys())
        self._said: set[tuple[object, ...]] = set()
        self._passed: list[PassedStep] = []
        self._sensible = 0
        self._under: Clocks | None = None  # what is held, as far as what lasts how long goes
        self._even = True  # whether that was so in all of this step
        self._stands_s = math.inf  # since when the step stands still, until that was reported
        self._step = PassedStep(state=self.state)

    def follow(self, timetable: Timetable) -> None:
        """Let clocks follow a timetable of the same launches and marks as the first."""
        self._readings.begin_anew()
        if timetable != self.timetable:
            self.timetable, refused = timetable, self._back_s.keys()
            self._domains = ClockDomains(timetable, self.position, self.latencies, refused)
            self.position.learn_anew(timetable)
            if self.state is State.FOLLOWING:
                self._enter(State.FOLLOWING)
        self._held = None
        if self.state is State.HELD:
            self._enter(State.FOLLOWING)

    def lay_out(self, timetable: Timetable) -> None:
        """Take a timetable of other launches and marks, before the first of them is seen."""
        refused, self.is_planned = self._back_s.keys(), False
        self.timetable, self.position = timetable, Position(timetable)
        self._domains = ClockDomains(timetable, self.position, self.latencies, refused)

    def hold(self, clocks: Clocks) -> None:
        """Hold clocks whatever the launch; steps go on being counted."""
        self._held = clocks
        if self.state in {State.FOLLOWING, State.STALLED, State.HELD}:
            self._enter(State.HELD)

    def saw(self, mark: int, at_s: float, steps: int | None = None) -> None:
        """Take note of the page; of its step's number, ``None`` where steps are not counted."""
        position = self.position
        # Now and then a step stands still, and a median does not mind; one that always does is so.
        learned = {State.FOLLOWING, State.STALLED, State.HELD}
        position.learns = self._even and self._step.state in learned
        expected_s, before_s = position.next_mark_s(), position.at_s
        seen = position.saw(mark, at_s, steps)
        if seen is Seen.NOTHING:
            return
        if steps is not None and position.counts is None and position.mark is not None:
            self._say_once(_UNCOUNTED, at_s, _UNCOUNTED)
        self._domains.moved()
        if seen is Seen.IMPOSSIBLE:
            # Leave clocks to the driver until marks make sense again; what is held needs none.
            if self.state is not State.LOST:
                self.events.append((at_s, f"mark {self.position.mark}: {Seen.IMPOSSIBLE}"))
            if self._held is None:
                self._enter(State.LOST)
            self._sensible = 0
            self._step = PassedStep(state=self.state)
            return
        if self.state is State.WAITING:
            self._enter(State.FOLLOWING if self._held is None else State.HELD)
        elif self.state is State.STALLED:
            self._step.stalled_s += max(0.0, at_s - expected_s)
            self._tell_of_stall(at_s, at_s - before_s, "stood")
            self._enter(State.FOLLOWING if self._held is None else State.HELD)
        if self.state is State.FOLLOWING and position.before is not None:
            self._step.outcomes += self._domains.passes()
        if seen is Seen.STEP:
            self._end_step(position.step_began_s)

    def begin_anew(self) -> None:
        """Wait for marks again: another process is to mark, and no step is of both."""
        self.position.begin_anew()
        self._enter(State.WAITING)
        self._step = PassedStep(state=self.state)

    @property
    def next_s(self) -> float:
        """When there will be something to ask for, if no mark is seen before; infinite if never."""
        if self._pending is not None:
            return math.inf
        if self.state is State.FOLLOWING and not self._back_s:  # nearly always, and asked for often
            return min(self._domains.next_s(), self._still_s())
        back_s = min(self._back_s.values(), default=math.inf)
        wanted = self._wanted()
        if wanted is not None and self._differing(wanted) is not None:
            return self._domains.quiet_until_s()
        if wanted is not None:
            return min(back_s, self._still_s())
        if self.state is State.WAITING:
            return back_s
        return min(self._domains.next_s(), self._still_s(), back_s)

    def ask(self, now_s: float) -> Ask | None:
        """Return what to call the setter with now; ``None`` where there is nothing.

        After an answer, `asked` or `refused` must be called before any other call.
        """
        if self._pending is not None:
            return None
        if self.state in {State.FOLLOWING, State.HELD} and now_s >= self._still_s():
            self._stands_s = self.position.at_s  # it may be the end of training: not reported yet
            self._enter(State.STALLED)
        wanted = self._wanted()
        back = next((each for each, due_s in self._back_s.items() if due_s <= now_s), None)
        if back is not None:
            ask: Ask | None = Ask(domain=back, to_mhz=None)
        elif wanted is not None:
            is_quiet = now_s < self._domains.quiet_until_s()
            ask = None if is_quiet else self._differing(wanted)
        elif self.state is State.WAITING:
            ask = None
        else:
            ask = self._domains.next_change(
                now_s, {domain: lock.mhz for domain, lock in self.locks.items()}
            )
        if ask is not None:
            self._pending = ask
            self.locks[ask.domain].ask(ask.to_mhz, now_s)
        return ask

    def asked(self, ask: Ask, called_s: float, returned_s: float) -> None:
        """Note that the driver accepted what it was asked for."""
        self._answered(ask)
        if ask.domain in self._back_s:
            self._back_s[ask.domain] = math.inf
            self.events.append((returned_s, f"the {ask.domain} was given back to the driver"))
        latencies, domain = self.latencies, self._domains.of.get(ask.domain)
        latencies.returned(ask.domain, ask.to_mhz, returned_s - called_s)
        sure_s = returned_s
        if domain is not None:
            number, to_mhz = ask.number, ask.to_mhz
            change = domain.change_to(to_mhz) if number is None else domain.change(number)
            sure_s += latencies.sure_s(change)
            domain.sure_s = sure_s
            effect_s = returned_s + latencies.delay_s(change)
            self.position.will_stall(effect_s, change.believed.stall_s)
            if number is not None:
                self._step.asked += 1
                self._step.outcomes += domain.flies(number, ask.expected_s, effect_s)
        self.locks[ask.domain].accept(returned_s, sure_s)

    def _answered(self, ask: Ask) -> None:
        if ask is not self._pending:
            raise ValueError(f"{ask} is not what was to be asked for")
        self._pending = None
        self._domains.moved()

    def refused(self, ask: Ask, at_s: float, why: str) -> None:
        """Note that the driver did not accept it.

        What was locked before may still be: it is given back as soon as the driver lets us, and
        that clock is left alone from then on.
        """
        self._answered(ask)
        self.locks[ask.domain].refuse(at_s)
        if ask.domain in self._back_s:
            self._back_s[ask.domain] = at_s + _AGAIN_S
            return
        self._back_s[ask.domain] = at_s
        what = f"to give the {ask.domain} back"
        if ask.to_mhz is not None:
            what = f"{ask.domain} {ask.to_mhz} MHz"
        words = (
            f"the driver refused {what}: {why}; it is given back as soon as the driver takes that, "
            "and asked for no more"
        )
        self.events.append((at_s, words))

    def observed(
        self,
        clocks: Clocks | None,
        reasons: ThrottleReason,
        at_s: float,
        *,
        power_w: float | None = None,
    ) -> None:
        """Take note of what the driver shows of the GPU, some times a second.

        Args:
            clocks: Those that run; ``None`` where locks are only pretended, so that the clocks
                that run say nothing of them.
            reasons: Why they are what they are.
            power_w: What the board draws; separates a step that waits from lost marks.
        """
        if clocks is not None:
            follows = self.state is State.FOLLOWING
            for lock in self._readings.compare(
                clocks, reasons, at_s, self._domains.of, follows=follows
            ):
                self._step.overruled.append(lock.why)
                self._say_once(lock.why, at_s, lock.domain, lock.mhz, why(reasons))
        if reasons & SLOWDOWNS:  # it slows what is not locked as well
            self._say_once(why(reasons), at_s, why(reasons))
        if self.state is State.STALLED and at_s - self._stands_s >= _LONG_STILL_S:
            self._tell_of_stall(at_s, at_s - self._stands_s, "stands")
            self._stands_s = math.inf
        moves = self.state in {State.FOLLOWING, State.HELD} and at_s < self._still_s()
        self._readings.draws(power_w, usually=moves)

    def _say_once(self, words: str, at_s: float, *of: object) -> None:
        """Tell of something, once for each that it is of."""
        if of not in self._said:
            self._said.add(of)
            self.events.append((at_s, words))

    def above_cap(self) -> frozenset[int]:
        """Return the launches whose core lock the power cap keeps from being in force."""
        return self._readings.above_cap(self._domains.of.get(Domain.CORE))

    def passed(self) -> list[PassedStep]:
        """Return the steps that ended since this was asked last."""
        some, self._passed = self._passed, []
        return some

    def _wanted(self) -> Clocks | None:
        """Return what to hold whatever the launch; ``None`` where the timetable says."""
        if self.state is State.LOST:
            return AUTO
        if self.state is State.STALLED and self.timetable.busy:
            return None  # it waits for other ranks, mostly in a collective: nothing is asked then
        if self.state is State.STALLED:
            # Marks may be lost while training goes on: a low clock would slow it unseen.
            return Clocks(core_mhz=self._low_mhz) if self._readings.waits else self._held or AUTO
        return self._held

    def _differing(self, wanted: Clocks) -> Ask | None:
        """Return what brings the clocks to those wanted."""
        for domain, lock in self.locks.items():
            mhz = mhz_of(wanted, domain)
            if lock.mhz != mhz and domain not in self._back_s:
                return Ask(domain=domain, to_mhz=mhz)
        return None

    def _still_s(self) -> float:
        """Return when a mark is so late that the step stands still; first steps may take long."""
        position = self.position
        if self.state is State.FOLLOWING and self.timetable.changes and position.knows:
            return position.at_s + max(_STILL * position.longest_s, _LEAST_STILL_S)
        if self.waits_low and self.state is State.HELD and self._held != AUTO and position.knows:
            return position.next_mark_s() + max(position.longest_s, _LEAST_STILL_S)
        return math.inf

    def _tell_of_stall(self, at_s: float, still_s: float, verb: str) -> None:
        self.events.append((at_s, f"no mark was seen for {still_s:.3g} s: the step {verb} still"))

    def _enter(self, state: State) -> None:
        self.state = state
        self._domains.moved()
        self.position.want_all()
        under = self._held if state is State.HELD else None
        if state in {State.FOLLOWING, State.HELD} and under != self._under:
            self._under, self._even = under, False
            self.position.under(under)
        if state is State.FOLLOWING:
            self._domains.enter(self.position.launch)
        else:
            self._step.state = state

    def _end_step(self, at_s: float) -> None:
        position = self.position
        self._compare_marks(at_s)
        if not math.isnan(self._step.began_s):  # else its beginning was not seen
            self._want_marks()
            step, steps = self._step, position.ended
            step.number, step.steps = position.rounds - steps, steps
            step.time_s = (at_s - step.began_s) / steps
            step.planned, step.counted = self.timetable.planned, position.counts is not None
            step.closely &= steps == 1
            step.busy_s, step.between_s = position.busy_s, position.between_s
            self._passed.append(step)
        if self.state is State.LOST:
            self._sensible += 1
            if self._sensible > _SENSIBLE_STEPS:
                self._enter(State.FOLLOWING if self._held is None else State.HELD)
                self.events.append((at_s, "marks make sense again"))
        self._even = True
        self._step = PassedStep(state=self.state, began_s=at_s, closely=position.closely)

    def _want_marks(self) -> None:
        """Want the marks before clocks are asked for: they tell when exactly that is."""
        position, latencies = self.position, self.latencies
        if self.state is State.LOST or (position.wanted is not None and not self._step.closely):
            return
        domains = () if self.state is State.HELD else self._domains.of.values()
        position.wants(
            position.intervals.into_s(change.at) + change.aim_s - latencies.lead_s(change)
            for domain in domains
            for change in domain.changes
        )

    def _compare_marks(self, at_s: float) -> None:
        """Tell, now and then and once, where marks lie otherwise than planned."""
        if self.position.rounds % _COMPARED_EVERY >= self.position.ended or not self.is_planned:
            return
        # Where a rank of a job waits changes from step to step.
        if not self.timetable.busy and (found := self.position.mismatch()):
            words = f"the step is not as planned: {found}; trace it again, and plan it"
            self._say_once(words, at_s, "not as planned")
