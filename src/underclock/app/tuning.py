"""tune: what leads from a training command to a plan is kept in one folder, and not done twice."""

from pathlib import Path
from typing import TYPE_CHECKING

import underclock
from underclock.app.backends import open_gpu
from underclock.app.output import say
from underclock.app.planning import plan
from underclock.core.planning.best_choice import Goal
from underclock.core.step.whole_step import whole_steps
from underclock.errors import DataError, InfeasibleError, UsageError
from underclock.gpus.models import gpu_model
from underclock.hw.base import Clock, GpuKind, GpuName, SystemClock
from underclock.hw.nvml_calls import is_simulated, nvml_session
from underclock.hw.watching import samples_of_running
from underclock.records import Plan, Step, Window
from underclock.records.answers import gives_nothing, is_unsure
from underclock.store import SampleFile, read_document, read_samples
from underclock.tracing.source import TrainingCommand, source_of_command
from underclock.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable

_EVERY_S, _FIRST_S = 10.0, 2.0  # an answer; a look whether there is a first one
_SURE = 0.005  # of the step's energy: what anybody would act on


def runs_elsewhere(gpu: GpuName) -> bool:
    """Whether a GPU is simulated, so that a step runs on the CPU and its kernels are assumed."""
    if gpu.kind is GpuKind.REPLAYED:
        hint = "name a GPU: nvml:0"
        raise UsageError(f"{gpu.text} is a table, on which nothing trains", hint=hint)
    if gpu.is_simulated:
        gpu_model(gpu.name)  # there is one, before the script runs
        return True
    with nvml_session():
        return is_simulated()


def traced_before(command: TrainingCommand, file: Path, *, assume: bool) -> Step | None:
    """Return the step on file; ``None`` where there is none."""
    if not file.exists():
        return None
    step = read_document(file, Step)
    if step.source != source_of_command(command, file.parent) or step.is_assumed != assume:
        raise UsageError(
            f"{file} is of {step.source or step.name}, or of what that file held before",
            hint="name another folder with -o, or remove this one to begin again",
        )
    return step


def planned_before(file: Path, samples: Path, gpu: GpuName, goal: Goal) -> Plan | None:
    """Return the plan on file where it is of these samples, this GPU and this budget."""
    if not file.exists() or not samples.exists():
        return None
    if file.stat().st_mtime_ns < samples.stat().st_mtime_ns:
        return None
    plan = read_document(file, Plan)
    with open_gpu(gpu) as opened:
        here = opened.gpu.info().name
    return plan if (plan.gpu.name, plan.max_slowdown) == (here, goal.max_slowdown) else None


def keep_running(step: Step, window: Window, gpu: GpuName, to: Path) -> None:
    """Write the one window there is of a step whose kernels cannot be run alone."""
    with open_gpu(gpu) as opened:
        header = samples_of_running(step, opened.gpu, underclock.__version__)
    with SampleFile.create(to, header) as file:
        file.append(window, gpu_s=window.window_s or 0.0)


class Answers:
    """What samples say of one clock for the step while they are taken; `show` gets each answer."""

    def __init__(self, samples: Path, goal: Goal, clock: Clock | None = None) -> None:
        self.show: Callable[[str], None] = lambda _answer: None
        self._said, self._next_s = False, 0.0
        self._samples, self._goal = samples, goal
        self._clock = clock or SystemClock()
        self._begun_s: float | None = None

    def refresh(self) -> None:
        """Answer again if that is due and there are samples; the first answer stays a line."""
        now_s = self._clock.now_s()
        if now_s < self._next_s or not self._samples.exists():
            return
        self._begun_s = self._begun_s or now_s
        self._next_s = now_s + (_EVERY_S if self._said else _FIRST_S)
        try:
            steps = whole_steps(read_samples(self._samples))
            made = None if steps is None else plan(steps, self._goal)
        except (DataError, InfeasibleError):  # too few yet
            return
        if made is None:
            return
        more, text = self.more(made), "no other clocks save for sure so far"
        if not gives_nothing(made):
            text = f"{made.answer[0]} At {made.one_pair}{more and '; '}{more}"
        if not self._said:
            say(f"first answer, after {now_s - self._begun_s:.0f} s of measuring: {text}", err=True)
        self._said = True
        self.show(text)

    def more(self, made: Plan) -> str:
        """Say how much longer a plan takes to be sure: its errors fall with the root of time."""
        interval = made.headline.energy_interval
        if interval is None or not is_unsure(made) or self._begun_s is None:
            return ""
        half = 0.5 * (interval[1] - interval[0])
        wanted = max(_SURE, abs(made.headline.energy_change or 0.0))
        more_s = (self._clock.now_s() - self._begun_s) * ((half / wanted) ** 2 - 1.0)
        if more_s <= 0.0:
            return ""
        more = format_duration(more_s)
        return f"about {more} more of GPU time would measure it to ± {wanted:.1%}"
