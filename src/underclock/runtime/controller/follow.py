"""What a controller does while a plan is held: it follows the mark page of each GPU.

A `GpuController` hands marks to its machine, and to the setter what the machine asks for. Now and
then, where there is time, it hands on what the driver showed, and writes what happened.
"""

import atexit
import gc
import math
import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from underclock.errors import UnderclockError
from underclock.hw.base import Clock, SystemClock
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import is_simulated
from underclock.learning.pieces import read_places
from underclock.records import AUTO, Clocks, Evidence, Plan, ThrottleReason
from underclock.records.job import JobPlan
from underclock.records.runs import LEARNED, AskLine, EndLine, EventLine, RunLine
from underclock.runtime.controller.booking import Booking, RunTally, booked
from underclock.runtime.controller.gauges import Gauges, TelemetryBuffer
from underclock.runtime.controller.log import Log, Metrics, held_before
from underclock.runtime.controller.polling import Polling, PollingThread, wake_on_time
from underclock.runtime.controller.process import TRAINER_ENDED, Setter, WorkDone, try_clocks
from underclock.runtime.controller.run_files import Run
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.timetable import Ask, PassedStep, State
from underclock.runtime.policy.arms import ExpectedRun
from underclock.runtime.policy.job import JobPolicy, JobRanks, RankPolicy
from underclock.runtime.policy.parts import digest_of
from underclock.runtime.policy.policy import OBSERVED, LearningPolicy, Policy, policy_of
from underclock.runtime.trainer import page as pages
from underclock.runtime.trainer.page import Page
from underclock.runtime.trainer.sites import planned_mhz
from underclock.runtime.undo.guarded_gpu import GuardedGpu
from underclock.runtime.undo.ownership import Process, say
from underclock.units import Domain

if TYPE_CHECKING:
    from underclock.learning.blocks import JobLearning

NEAR_S = 5e-4
"""To what is due next: so long one waits for it without doing anything else."""
_LOW = 0.5  # of the highest core clock, while a step stands still
_TURN_S = 2e-3  # in which one looks closely; a trainer's end is learned of that much later
_LEARNING_S = 60.0  # in which clocks that were set are compared often with those that run
_HOUSEKEEPING_S = 0.1
_PUT_OFF_S = 0.1  # housekeeping waits so long for something else to wake it
_STANDING_S = 1.0  # in which power is read often once a step stands still
_UNSEEN = {
    pages.WAITING: "no step was seen: no optimiser of PyTorch's took one",
    pages.LEARNING: "no step was seen: training ended, or its step was captured as a graph, before "
    "the third one",
    pages.MARKING: "no step was seen, though marks were to come",
}


class GpuController:
    """Follows one GPU's page; without a setter it does all but set clocks.

    Attributes:
        next_s: When it wants to be woken.
        over: Why it is over, once it is.
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
        self.over = ""
        self._setter, self._gauges = setter, gauges
        self._clock = clock
        self.polling = Polling(page, clock, machine.position)
        self._free_s = 0.0  # when a call that is only pretended would return
        self.shown, self._error = TelemetryBuffer(), ""
        self._waiting: list[tuple[PassedStep, str]] = []  # whose energy is not known yet
        self._ended_s = -math.inf  # the last step that did
        self._pid = self.restarts = 0  # of who marks; how often that was another
        self._trainer: Process | None = None  # where its end matters to other GPUs
        self._tidy_s = self._ask_s = self.next_s = 0.0

    def _rest(self) -> None:
        """Set the time of the next poll, from the marks, the clocks and housekeeping."""
        self.next_s = min(self.polling.next_s, self._tidy_s + _PUT_OFF_S, self._ask_s)

    def wake(self, now_s: float, log: Log, thread: PollingThread) -> None:
        """Poll, and ask for what is due."""
        if not self.over:
            seen = self.polling.poll()
            if seen is not None:
                self._saw(*seen)
            if self._ask_s <= now_s:
                self._ask(log, thread)
        has_time = min(self.polling.next_s, self._ask_s) > now_s + NEAR_S
        if now_s >= self._tidy_s + (0.0 if has_time else _PUT_OFF_S):
            self._tidy_s = now_s + _HOUSEKEEPING_S
            self._tidy(log)
            log.flush()
        self._rest()

    def noted(self, mark: int, at_s: float, steps: int) -> None:
        """Take note of a mark that passed while a setter blocked, this GPU's or another's."""
        self._saw(mark, at_s, steps)
        self._rest()

    def _saw(self, mark: int, at_s: float, steps: int) -> None:
        """Take note of a mark; of the first of a process that replaced another, begin anew."""
        pid, before = self.page.pid, self._pid
        if pid and pid != before:
            self._pid = pid
            if before:
                self.restarts += 1
                self.machine.begin_anew()
                self._tell(
                    f"the trainer was started again, process {pid} after {before}: its steps are "
                    "counted after those before",
                    at_s,
                )
            if places := read_places(self.page.path):
                self._tell(f"steps are marked at {len(places)} places", at_s)
                self._tell(self.policy.discovered(places), at_s)
                self.polling.position = self.machine.position
        self.machine.saw(mark, at_s, steps)
        self._expect()

    def ordered(self, words: str = "") -> None:
        """Find out what is due where another machine's controller may have ordered something."""
        self._tell(words)
        self._expect()
        self._rest()

    def _tell(self, words: str, at_s: float | None = None) -> None:
        if words:
            self.machine.events.append((self._clock.now_s() if at_s is None else at_s, words))

    def _expect(self) -> None:
        """Find out when something is due next; each mark and each answer changes it."""
        if self.over:
            self._ask_s = self.polling.next_s = math.inf
            return
        self.polling.expect(self.machine.position.next_mark_s(), self._clock.now_s())
        self._ask_s = max(self.machine.next_s, self._free_s)

    def _ask(self, log: Log, thread: PollingThread) -> None:
        now_s = self._clock.now_s()
        self._observe()
        ask = self.machine.ask(now_s) if self.machine.next_s <= now_s else None
        if self.machine.state is State.STALLED:
            self._gauges.read_closely(_STANDING_S)
        if ask is not None:
            if self._setter is None:
                call_s = ask.call_s
                self._free_s = now_s + call_s
                self.machine.asked(ask, now_s, self._free_s)
            else:
                call_s = self._set(ask, self._setter, thread)
            to_mhz = ask.to_mhz
            log.write(
                AskLine(gpu=self.rank, at_s=now_s, domain=ask.domain, to_mhz=to_mhz, call_s=call_s)
            )
        self._expect()

    def _set(self, ask: Ask, setter: Setter, thread: PollingThread) -> float:
        """Call the driver, and note the marks that pass meanwhile; return how long it took."""
        called_s = self._clock.now_s()
        failed: Exception | None = None
        with thread.during():
            try:
                setter(ask.domain, ask.to_mhz)
            except (UnderclockError, OSError) as exc:  # refused, or no journal
                failed = exc
        returned_s = self._clock.now_s()
        if failed is None:
            self.machine.asked(ask, called_s, returned_s)
            if ask.to_mhz is not None and self.policy.changed and self.machine.state is State.HELD:
                with thread.during():
                    delay_s = self._gauges.follows_s(ask.to_mhz)
                self.policy.changed(returned_s - called_s, delay_s)
        else:
            self.machine.refused(ask, returned_s, str(failed))
        return returned_s - called_s

    def _observe(self) -> None:
        """Hand the driver's readings to the machine: of locks as they are, before any changes."""
        gauges = self._gauges.taken()
        if not gauges and self._error == self._gauges.error:
            return
        error, self._error = self._error, self._gauges.error
        if self._error and not error:
            self._tell(f"the GPU cannot be read: {self._error}")
        for gauge in gauges:
            # A dry run asked for nothing; without reasons there is no telling why clocks differ.
            clocks = None if self._setter is None or gauge.reasons is None else gauge.clocks
            reasons = gauge.reasons or ThrottleReason.NONE
            self.machine.observed(clocks, reasons, gauge.at_s, power_w=gauge.power_w)
        for words in self.shown.add(gauges):
            self._tell(words)
        if gauges:
            self._expect()

    def _tidy(self, log: Log) -> None:
        self._observe()
        self._tell(self.policy.capped(self.machine.above_cap()))
        self._take_note()
        known_s = self.shown.upto_s()
        while self._waiting and (self._waiting[0][0].ended_s <= known_s or self._gauges.error):
            self._write_step(log)
        self.shown.drop_before(self._waiting[0][0].began_s if self._waiting else self._ended_s)
        if not self.over and self.page.state in {pages.REFUSED, pages.DETACHED}:
            self._end(self.page.sentence or "the trainer marks no more")
        if not self.over and self.policy.needs_all:
            # Other ranks may wait for this one's trainer for long, with their clocks set.
            pid = self.page.pid
            if pid and (self._trainer is None or self._trainer.pid != pid):
                self._trainer = Process.of(pid)
            if pid and (self._trainer is None or not self._trainer.lives):
                self._end(TRAINER_ENDED)
            else:  # the policy of another GPU may have ordered something meanwhile
                self._expect()
        self._write_events(log)

    def _end(self, why: str) -> None:
        """Leave the clocks to the driver; steps are seen no more."""
        self.over = why
        words = self.policy.lost(why)
        self._tell(words if self.policy.needs_all else why)
        self.machine.hold(AUTO)
        self._expect()
        if self._setter is not None:
            for setting in (Domain.CORE, Domain.MEMORY):
                try:
                    self._setter(setting, None)
                except UnderclockError as exc:  # other GPUs go on; the undo tries it again
                    self._tell(f"the {setting} STAYS set for now: {exc}")

    def _take_note(self) -> None:
        for step in self.machine.passed():
            self._waiting.append((step, self.policy.label))
            self._ended_s = step.ended_s
            words = self.policy.passed(step)
            if words:
                self._speak(words, step.ended_s)
                self._expect()

    def _write_step(self, log: Log) -> None:
        """Write the first step that waits, whose energy is known now if it ever will be."""
        step, label = self._waiting.pop(0)
        line = self.shown.line(self.rank, step, label)
        log.write(line)
        self._speak(self.policy.known(step, line), step.ended_s)
        self._expect()

    def _speak(self, words: str, at_s: float) -> None:
        if words and self.policy.speaks and not self.rank:
            say(words)
        self._tell(words, at_s)

    def _write_events(self, log: Log) -> None:
        events, self.machine.events = self.machine.events, []
        for at_s, text in events:
            log.write(EventLine(gpu=self.rank, at_s=at_s, text=text))

    def flush(self, log: Log, refused: str = "") -> None:
        """Write what is known of the last steps.

        Args:
            refused: Why another rank was refused: it holds for one that never came too.
        """
        self._gauges.close()
        self.shown.add(self._gauges.taken())
        seen = None if self.over else self.polling.poll()  # where the last step came to
        if seen is not None:
            self._saw(*seen)
        has_begun = self.machine.state is not State.WAITING
        if not has_begun and not self.over:
            why = _UNSEEN.get(self.page.state, self.page.sentence)
            if self.page.state == pages.WAITING and not Path(self.page.path).exists():
                why = f"no step was seen: the page of marks {self.page.path} was removed"
            elif self.page.state == pages.WAITING and refused:
                why = f"no step was seen: {refused}"
            self._tell(why)
        self._take_note()
        while self._waiting:
            self._write_step(log)
        self._tell(self.shown.dropped())
        self._tell(self.policy.ends() if has_begun else "")
        self._write_events(log)
        expected = ExpectedRun(
            gpu=self.rank,
            limit_w=self.shown.limit_w,
            enqueued=self.page.enqueued,
            is_set=self._setter is not None,
        )
        for line in self.policy.differences(expected):
            log.write(line)


class Follow:
    """Follows the pages of a run."""

    waits_on = ()  # marks are looked for

    def __init__(
        self,
        followers: tuple[GpuController, ...],
        log: Log,
        clock: Clock,
        ranks: JobRanks | None = None,
    ) -> None:
        self.followers, self._ranks = followers, ranks
        self._log, self._clock = log, clock
        self._thread = PollingThread(clock, [(each.polling, each.noted) for each in followers])
        self._began_s, self._cpu_s = time.monotonic(), time.process_time()

    def next_s(self) -> float:
        """When to wake it."""
        next_s = min([each.next_s for each in self.followers])
        return next_s if self._ranks is None else min(next_s, self._ranks.next_s)

    def wake(self, now_s: float) -> None:
        """Do what is due. `WorkDone`: no trainer marks any more."""
        leave_s = now_s + _TURN_S
        while True:
            if self._ranks is not None and self._ranks.next_s <= now_s:
                words = "; ".join(filter(None, self._ranks.tend(now_s)))
                for each in self.followers if words else ():
                    each.ordered(words if each is self.followers[0] else "")
            for each in self.followers:
                if each.next_s <= now_s:
                    each.wake(now_s, self._log, self._thread)
            now_s, next_s = self._clock.now_s(), self.next_s()
            if next_s > min(now_s + NEAR_S, leave_s):
                break
            self._clock.sleep_s(next_s - now_s)
            now_s = self._clock.now_s()
        if self.followers[0].over and all(each.over for each in self.followers):
            whys = [each.over for each in self.followers if each.over != TRAINER_ENDED]
            raise WorkDone((whys or [TRAINER_ENDED])[0])

    def close(self) -> None:
        """Write what is left to write."""
        if self._ranks is not None:
            self._ranks.close()
        states = [(each.page.state, each.page.sentence) for each in self.followers]
        refused = next((why for state, why in states if state == pages.REFUSED), "")
        for each in self.followers:
            each.flush(self._log, refused)
        energies_j = [each.shown.energy_j for each in self.followers]
        self._log.write(
            EndLine(
                cpu_s=time.process_time() - self._cpu_s,
                wall_s=time.monotonic() - self._began_s,
                looks=sum(each.polling.polls for each in self.followers),
                restarts=max(each.restarts for each in self.followers),
                enqueued=sum(each.page.enqueued for each in self.followers),
                energy_j=None if None in energies_j else math.fsum(filter(None, energies_j)),
            )
        )
        self._log.close()


def begin(gpus: Mapping[str, GuardedGpu], options: Mapping[str, Any]) -> Follow:
    """Begin to follow a run.

    Args:
        gpus: By UUID; none for a dry run.
        options: ``run``: the run's folder; ``log``: where steps are noted; ``dry``: whether
            nothing is set; ``arms``, ``window`` and ``seed``: as `policy.policy_of` takes them;
            or nothing: ``max_slowdown`` of clocks that are learned, ``leader`` of a job on several
            machines, its host and port, and ``metrics_port``, where Prometheus may ask.

    Raises:
        NotPermittedError: A clock cannot be set. DataError: The run's files cannot be read.
    """
    run = Run.open(Path(options["run"]))
    plan, parts = run.plan(), run.parts()
    learns = options["max_slowdown"] is not None
    prior = plan if learns and isinstance(plan, Plan) and not plan.sets_nothing else None
    plan = None if learns else plan
    ranks = _ranks(plan, run, options) if isinstance(plan, JobPlan) else None
    chosen = 0 if ranks is None else ranks.job.chosen
    opened, boards = run.pages(), [NvmlGpu(each.index) for each in run.gpus]
    names = [board.info().name for board in boards]
    followers: list[GpuController] = []
    listeners: list[Booking | Metrics] = []
    if options["metrics_port"] is not None:
        uuids, port = [each.uuid for each in run.gpus], options["metrics_port"]
        listeners.append(Metrics(uuids, port, lambda at: followers[at].shown.energy_j))
    named = [(each.uuid, name) for each, name in zip(run.gpus, names, strict=True)]
    listeners += booked(
        RunTally(plan, named, run.first, os.environ, lambda at: followers[at].shown)
    )
    log = Log(Path(options["log"]), listeners)
    clock, paces = SystemClock(), list[float]()
    job: JobLearning | None = None
    for rank, (part, page, gpu) in enumerate(zip(parts, opened, boards, strict=True)):
        setter = None if options["dry"] else gpus[run.gpus[rank].uuid].set
        # What comes after waiting begins at the clock to wait at, until its mark is seen.
        cores_mhz = gpu.supported_core_mhz(max(gpu.supported_mem_mhz(), default=None))
        if setter is not None:
            tried = [each.clocks for each in part.schedules[chosen].segments]
            try_clocks(setter, [Clocks(core_mhz=cores_mhz[-1])] if learns else tried)
        low_mhz = min((mhz for mhz in cores_mhz if mhz >= _LOW * cores_mhz[-1]), default=None)
        machine = Machine(part.timetable(chosen), low_mhz=low_mhz)
        if ranks is not None:
            policy: Policy = RankPolicy(machine, part, run.first + rank, ranks)
        elif isinstance(plan, Plan):
            asked = {name: options[name] for name in ("arms", "window", "seed", "steps")}
            policy = policy_of(machine, plan, paces=paces, **asked)
        elif learns:
            from underclock.learning import blocks  # noqa: PLC0415 - it loads NumPy

            if job is None:  # one for all GPUs
                asked = {name: options[name] for name in ("max_slowdown", "seed", "dry")}
                asked["planned"] = partial(planned_mhz, prior) if prior else None
                before = held_before(Path(options["log"]), tuple(names), options["name"])
                job = blocks.JobLearning(cores_mhz, held_before=before, **asked)
            policy = LearningPolicy(machine, part.schedules[0], job)
        else:
            policy = Policy(machine, part.schedules[0], OBSERVED)
            machine.hold(AUTO)
        # Arms are compared by the energy of single steps; a dry run has nothing to compare.
        compares = bool(options["arms"]) or job is not None
        closely_s = math.inf if compares else 0.0 if options["dry"] else _LEARNING_S
        limit_w = gpu.info().power_limit_w
        gauges = Gauges(gpu, clock, closely_s=closely_s, exactly=compares, limit_w=limit_w)
        followers.append(
            GpuController(rank, page, machine, policy, setter=setter, gauges=gauges, clock=clock)
        )
    promise = None if plan is None else plan.promise
    log.write(
        RunLine(
            evidence=Evidence.SIMULATED if is_simulated() else Evidence.MEASURED,
            gpus=tuple(names),
            workload=options["name"] if plan is None else plan.workload,
            marks=len(followers[0].machine.timetable.marks),
            dry=options["dry"],
            is_job=ranks is not None,
            began_s=clock.now_s(),
            energy_change=None if promise is None else promise.energy_change,
            time_change=None if promise is None else promise.time_change,
            arms=options["arms"] if job is None else LEARNED,
            seed=options["seed"],
        )
    )
    wake_on_time()
    gc.freeze()  # what is loaded now stays: none of it is garbage
    follow = Follow(tuple(followers), log, clock, ranks)
    atexit.register(follow.close)  # after everything was undone, which matters more
    return follow


def _ranks(plan: JobPlan, run: Run, options: Mapping[str, Any]) -> JobRanks:
    """Return who decides for the ranks of a job that are followed here, all together."""
    window = options["window"]
    if not options["leader"]:
        return JobRanks(JobPolicy(plan, window=window))
    from underclock.runtime.controller import nodes  # noqa: PLC0415 - of several machines

    kind = nodes.OrderedRanks if run.first else nodes.DecidingRanks
    job = JobPolicy(plan, window=window, ahead=nodes.AHEAD)
    return kind(job, tuple(options["leader"]), digest_of(plan))
