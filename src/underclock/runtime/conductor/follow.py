"""What a conductor does while a plan is held: it begins followers of pages, and wakes them."""

import atexit
import gc
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from underclock.errors import DataError
from underclock.hw.base import Clock
from underclock.hw.clock import SystemClock
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import is_simulated
from underclock.hw.settable import Setting
from underclock.records import Evidence, Plan
from underclock.records.runs import EndLine, RunLine
from underclock.runtime.conductor.follower import NEAR_S, Follower, Setter
from underclock.runtime.conductor.gauges import Gauges
from underclock.runtime.conductor.looking import LookingOn, wake_on_time
from underclock.runtime.conductor.metrics import Metrics
from underclock.runtime.conductor.process import WorkDone
from underclock.runtime.conductor.run_files import Run
from underclock.runtime.conductor.telemetry import Log
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.timetable import timetable_of
from underclock.runtime.policy.policy import policy_of, scheduled
from underclock.runtime.trainer.page import Page
from underclock.runtime.undo.armed import Armed

_LOW = 0.5  # of the highest core clock, while a step stands still
_TURN_S = 2e-3  # in which one looks closely; a trainer's end is learned of that much later
_LEARNING_S = 60.0  # in which clocks that were set are compared often with those that run


class Follow:
    """Follows the pages of a run."""

    def __init__(self, followers: tuple[Follower, ...], log: Log, clock: Clock) -> None:
        self.followers = followers
        self._log, self._clock = log, clock
        self._looking_on = LookingOn(clock)
        for each in followers:
            self._looking_on.add(each.looking, each.noted)
        self._began_s, self._cpu_s = time.monotonic(), time.process_time()

    def next_s(self) -> float:
        """When to wake it."""
        return min([each.next_s for each in self.followers])

    def wake(self, now_s: float) -> None:
        """Do what is due.

        Raises:
            WorkDone: No trainer marks any more.
        """
        leave_s = now_s + _TURN_S
        while True:
            for each in self.followers:
                if each.next_s <= now_s:
                    each.wake(now_s, self._log, self._looking_on)
            now_s, next_s = self._clock.now_s(), self.next_s()
            if next_s > min(now_s + NEAR_S, leave_s):
                break
            self._clock.sleep_s(next_s - now_s)
            now_s = self._clock.now_s()
        if self.followers[0].over and all(each.over for each in self.followers):
            raise WorkDone(self.followers[0].over)

    def close(self) -> None:
        """Write what is left to write."""
        for each in self.followers:
            each.flush(self._log)
        energies_j = [each.energy_j for each in self.followers]
        positions = [each.machine.position for each in self.followers]
        self._log.write(
            EndLine(
                cpu_s=time.process_time() - self._cpu_s,
                wall_s=time.monotonic() - self._began_s,
                looks=sum(each.looking.looks for each in self.followers),
                enqueued=sum(each.page.enqueued for each in self.followers),
                executed=sum(each.first + each.rounds for each in positions),
                counted=all(each.counts is not None for each in positions if each.rounds),
                energy_j=None if None in energies_j else math.fsum(filter(None, energies_j)),
            )
        )
        self._log.close()


def begin(gpus: Mapping[str, Armed], options: Mapping[str, Any]) -> Follow:
    """Begin to follow a run.

    Args:
        gpus: By UUID; none for a dry run.
        options: ``run``: the run's folder; ``log``: where steps are noted; ``dry``: whether
            nothing is set; ``arms``, ``window`` and ``seed``: as `policy.policy_of` takes them;
            ``metrics_port``: where Prometheus may ask, or nothing.

    Raises:
        NotPermittedError: A clock cannot be set. DataError: The run's files cannot be read.
    """
    run = Run.open(Path(options["run"]))
    plan = run.plan()
    opened = [_page(told.page) for told in run.gpus]
    log = Log(Path(options["log"]), _metrics(options["metrics_port"]))
    clock = SystemClock()
    followers = []
    for rank, (told, page) in enumerate(zip(run.gpus, opened, strict=True)):
        setter = None if options["dry"] else gpus[told.uuid].set
        if setter is not None:
            _try(setter, plan)
        gpu = NvmlGpu(told.index)
        machine = Machine(timetable_of(scheduled(plan), page.marks), low_mhz=_low_mhz(gpu))
        policy = policy_of(
            machine, plan, arms=options["arms"], window=options["window"], seed=options["seed"]
        )
        # Arms are compared by the energy of single steps; a dry run has nothing to compare.
        closely_s = math.inf if options["arms"] else 0.0 if options["dry"] else _LEARNING_S
        gauges = Gauges(gpu, clock, closely_s=closely_s, exactly=bool(options["arms"]))
        followers.append(
            Follower(rank, page, machine, policy, setter=setter, gauges=gauges, clock=clock)
        )
    cost, schedule = plan.headline.cost, scheduled(plan)
    log.write(
        RunLine(
            evidence=Evidence.SIMULATED if is_simulated() else Evidence.MEASURED,
            gpus=tuple(NvmlGpu(told.index).info().name for told in run.gpus),
            workload=plan.workload,
            marks=len(followers[0].page.marks),
            dry=options["dry"],
            began_s=clock.now_s(),
            planned_s=math.fsum(schedule.launch_s),
            energy_change=None if cost is None else cost.energy_change,
            time_change=None if cost is None else cost.time_change,
            arms=options["arms"],
            seed=options["seed"],
        )
    )
    wake_on_time()
    gc.freeze()  # what is loaded now stays: none of it is garbage
    follow = Follow(tuple(followers), log, clock)
    atexit.register(follow.close)  # after everything was undone, which matters more
    return follow


def _page(path: str) -> Page:
    try:
        return Page.open(path)
    except OSError as exc:
        raise DataError(
            f"cannot open the page of marks {path}: {exc.strerror}", hint="start the run anew"
        ) from exc


def _metrics(port: int | None) -> Metrics | None:
    if port is None:
        return None
    metrics = Metrics()
    metrics.serve(port)
    return metrics


def _low_mhz(gpu: NvmlGpu) -> int:
    """Return the core clock to wait at: what comes next begins at it, until its mark is seen."""
    clocks = gpu.supported_core_mhz(max(gpu.supported_mem_mhz()))
    return min(mhz for mhz in clocks if mhz >= _LOW * clocks[-1])


def _try(setter: Setter, plan: Plan) -> None:
    """Set and give back each clock that the plan changes, so that a refusal is known at once."""
    clocks = scheduled(plan).segments
    for setting, values in (
        (Setting.CORE, {each.core_mhz for each in clocks} - {None}),
        (Setting.MEMORY, {each.mem_mhz for each in clocks} - {None}),
    ):
        if values:
            setter(setting, max(each for each in values if each is not None))
            setter(setting, None)
