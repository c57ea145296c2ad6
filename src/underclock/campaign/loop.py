"""The loop of every campaign (requests, windows, the file), and turns of arms for a validation.

A policy says from the samples on file alone what is measured next, so an interrupted campaign
resumes where it stopped. The loop holds clocks, writes windows to the file, ends at limits and
reports progress. `run_in_turns` runs a step at auto, under a plan and at the best fixed clock, each
repeat beginning with another arm, so that drift of the GPU falls on all arms alike.

Shape letters: N repeats; a trailing 2 is time in s and energy in J.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from underclock.arrays import Floats
from underclock.campaign.grid import Campaign, Points, SharedRecorder
from underclock.campaign.progress import TICK_S, Tally, TimeLeft, warming_s
from underclock.campaign.recording import Recorder, WindowPolicy, window_of
from underclock.core.design import Wanted
from underclock.core.model.parameters import unknown_gpu
from underclock.core.model.sample_sets import UNKNOWN_MHZ
from underclock.core.steering import HEATERS, IDLING, SteeringAgenda, fewest_measurements
from underclock.errors import MeasurementError, NoRoomError, UsageError
from underclock.gpus.models import Latency, SwitchingModel
from underclock.hw.base import Capability, Measurer
from underclock.records import AUTO, Clocks, Kernel, MeasurementSettings, Mix, Plan, SampleSet
from underclock.records.latencies import LatencyTable
from underclock.runtime.simulated import Scheduled
from underclock.units import Domain, format_duration

# Heat follows power with some 30 s, and warm silicon leaks more: an arm at another's heat is wrong
# by some tenths of a per cent. So each arm is warmed to its own. After each beginning the
# power loop settles before anything is read: within 1 s power is still 0.1 % too high at the cap of
# a simulated H200, within 3 s it is right. What is left of the bias of a change in energy, without
# noise: 0.01 points on a simulated RTX 3080 Ti, 0.02 on an H200.
OWN_HEAT = MeasurementSettings(
    warm_s=70.0,
    steady_s=10.0,
    longest_warm_s=200.0,
    settle_s=0.2,
    kernel_warm_s=3.0,
    window_s=10.0,
    launches=2,
)

# Of an arm in its turn; the step is begun anew for each. What one beginning is off by, some 0.3 %
# of power, is averaged over them.
WINDOWS = 6


def course_of(plan: Plan) -> Scheduled | None:
    """Return how the step runs under a plan; ``None`` where its order of launches is unknown."""
    if not plan.step.order:
        return None
    clocks, schedule = plan.launch_clocks, plan.schedule
    if schedule is None:
        return Scheduled(clocks=clocks)
    return Scheduled(
        clocks=clocks,
        table=schedule.latencies,
        predicted_s=schedule.launch_s,
        aims_s=schedule.aims_s,
    )


def switching_model(table: LatencyTable | None) -> SwitchingModel | None:
    """Return the switching model of a simulated GPU with assumed latencies.

    Each clock takes what the slowest of its changes is said to take; only changes of the memory
    clock can stall.

    Returns:
        ``None`` where latencies were measured or do not matter: the GPU switches as it does.
    """
    if table is None or table.evidence is not None:
        return None
    slowest = {switch.domain: switch for switch in sorted(table.slowest(), key=lambda s: s.total_s)}
    calls_s = [switch.call_s for switch in slowest.values()]
    delays_s = {domain: switch.delay_s for domain, switch in slowest.items()}
    jitters = [s.jitter_s / s.delay_s for s in slowest.values() if s.delay_s > 0]
    memory = slowest.get(Domain.MEMORY)
    return SwitchingModel(
        setter=Latency(shares=(0.0, 1.0), points_s=(max(calls_s), max(calls_s))),
        core_s=delays_s.get(Domain.CORE, 0.0),
        mem_s=delays_s.get(Domain.MEMORY, 0.0),
        target_spread=0.0,
        jitter=max(jitters, default=0.0),
        mem_stall_s=0.0 if memory is None else memory.stall_s,
    )


class WholeSteps(NamedTuple):
    """What runs the step whole, at clocks that are held or under the plan."""

    measurer: Measurer  # holds clocks
    led: Measurer | None  # runs the step under the plan; ``None`` where its clocks do not change
    kernels: Sequence[Kernel]  # of each launch


def run_in_turns(
    steps: WholeSteps,
    arms: Mapping[str, Sequence[Clocks]],
    repeats: int,
    progress: Callable[[Tally], None],
) -> dict[str, Floats]:
    """Run every arm as often as asked; return a step's time in s, energy in J. Shapes (N, 2)."""
    names, kernels = list(arms), steps.kernels
    doing = " and ".join(("auto", "the plan", *("the best fixed clock" for _ in names[2:])))
    started_s = steps.measurer.now_s()

    def tell(done: int, doing: str) -> None:
        gpu_s = steps.measurer.now_s() - started_s
        progress(Tally(done=done, total=repeats, gpu_s=gpu_s, doing=doing))

    tell(0, "warming the GPU to a steady temperature")
    steps.measurer.warm(kernels)
    totals: dict[str, list[Floats]] = {name: [] for name in names}
    for repeat in range(repeats):
        tell(repeat, f"run {repeat + 1} of {doing}")
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            # Each arm runs at its own heat.
            held = arms[name][0] if len(set(arms[name])) == 1 else None
            measurer = steps.led if held is None else steps.measurer
            if measurer is None:
                raise AssertionError("an arm whose clocks change was opened with what runs it")
            with measurer.hold(held or AUTO):
                measurer.warm(kernels)
                readings = [measurer.measure(kernels, repeat) for _ in range(WINDOWS)]
            of_step = np.mean([[each.time_s, each.energy_j] for each in readings], axis=0)
            totals[name].append(of_step)
    tell(repeats, "done")
    return {name: np.stack(runs) for name, runs in totals.items()}


class Listed(WindowPolicy):
    """Takes every window of a list: the whole step, then kernels, clocks by clocks."""

    def __init__(
        self, recorder: Recorder | SharedRecorder, points: Points, campaign: Campaign
    ) -> None:
        self._recorder = recorder
        whole = (
            Capability.RUN in recorder.measurer.capabilities
            and campaign.in_situ
            and bool(recorder.samples.order)
        )
        times = range(campaign.repeats)
        steps = [Wanted(timed=False) for _ in times if whole]
        self._every = steps + [
            Wanted(kernel.name, asked=clocks, timed=False)
            for clocks, kernels in points
            for _ in times
            for kernel in kernels
        ]
        self.total = len(self._every)

    def next(self, spent_s: float) -> Sequence[Wanted]:
        """Return what is not on file yet."""
        del spent_s
        left = Counter((w.kernel, w.mix, w.asked) for w in self._recorder.samples.windows)
        wanted = []
        for one in self._every:
            what = one.kernel, one.mix, one.asked
            if left[what] > 0:
                left[what] -= 1
            else:
                wanted.append(one)
        return wanted


class Steering(WindowPolicy):
    """Wants kernels at many clocks, though none may be set: one mix of co-load after the other.

    It ends once the step's energy is as sure as asked.
    """

    why = "nothing more would tell much"

    def __init__(self, recorder: Recorder, campaign: Campaign) -> None:
        self.limit_s = campaign.limit_s(steers=True)
        self._recorder = recorder
        self._precision = campaign.precision
        # As one kernel the step is in each of its mixes, and in no other step.
        self._whole = campaign.in_situ and not recorder.whole
        self.warms = not (self._whole and recorder.samples.order)
        header = recorder.file.header
        self._shape = unknown_gpu(
            [UNKNOWN_MHZ],
            fastest_mhz=float(max(c.core_mhz for c in header.settings if c.core_mhz is not None)),
            most_w=header.gpu.power_limit_w or 1.0,
        )
        self._heater = True

    def begin(self) -> None:
        """Try what a campaign rests on before it spends time, and whether the heater can run."""
        try:
            self._try(HEATERS)
        except NoRoomError as exc:
            self._recorder.file.note(
                (f"{exc}: kernels ran with idling only, so no clock below their own was seen",)
            )
            self._heater = False
            self._try(IDLING)

    def _try(self, mix: Mix) -> None:
        if not self._recorder.taken:  # then it serves as a sample, too
            self._recorder.take(Wanted("", mix))
            return
        reading = self._recorder.measurer.measure((), mix=mix, timed=True)
        window_of(Wanted("", mix), 0, reading, self._recorder.file.header)

    def next(self, spent_s: float) -> list[Wanted]:
        """Return the mix of highest value, given the samples on file."""
        del spent_s
        samples = self._recorder.samples
        if not self._whole:
            alone = msgspec.structs.replace(samples.step, order=(), modules=())
            samples = msgspec.structs.replace(samples, step=alone)
        agenda = SteeringAgenda.of(samples, self._shape, heater=self._heater)
        look = agenda.next(partial(self._recorder.measurer.takes_s, timed=True), self._precision)
        return [] if look is None else [Wanted(*look)]


class CampaignRun:
    """One run of a campaign into a file, which a later run can go on with."""

    def __init__(
        self,
        recorder: Recorder,
        policy: WindowPolicy,
        campaign: Campaign,
        progress: Callable[[Tally], None],
        left: TimeLeft | None = None,
    ) -> None:
        self._recorder = recorder
        self._policy = policy
        self._most = campaign.max_samples
        self._progress = progress
        self._left = left
        self._began_s = recorder.measurer.now_s()
        self._earlier_s = recorder.file.gpu_s
        self._before = recorder.file.taken

    @property
    def _spent_s(self) -> float:
        return self._earlier_s + self._recorder.measurer.now_s() - self._began_s

    @property
    def _is_late(self) -> bool:
        limit_s = self._policy.limit_s
        return limit_s is not None and self._spent_s >= limit_s

    def _ends(self) -> bool:
        return self._is_late or (self._most is not None and self._recorder.taken >= self._most)

    def run(self) -> None:
        """Take windows until the policy wants no more, or time or samples are spent.

        Raises:
            DeviceError, MeasurementError: From the GPU, or the time limit ends it and nothing was
                measured.
        """
        # Whether warming up again would leave nothing of a time limit that earlier runs used.
        measuring, limit_s = self._recorder.file.header.measuring, self._policy.limit_s
        goes_on = True
        if limit_s is not None and measuring is not None and self._policy.warms:
            goes_on = self._earlier_s + measuring.least_warm_s < limit_s
        if goes_on and not self._ends():
            self._policy.begin()
            wanted = self._policy.next(self._spent_s)
            if (
                wanted
                and self._policy.warms
                and Capability.RUN in self._recorder.measurer.capabilities
            ):
                self._warm()
            while wanted and not self._ends():
                self._take(wanted)
                wanted = () if self._ends() else self._policy.next(self._spent_s)
            if not wanted and not self._ends() and self._policy.why:
                self._tell(self._policy.why)
        taken = self._recorder.taken
        if not taken or (goes_on and taken == self._before and self._is_late):
            more = " more" if self._before else ""
            raise MeasurementError(
                f"the whole time limit went into warming up, and nothing{more} was measured",
                hint="run the same command with a larger --time-limit",
            )
        self._tell("done")

    def _take(self, wanted: Sequence[Wanted]) -> None:
        """Take windows, clocks by clocks, until the campaign ends."""
        for clocks, some in itertools.groupby(wanted, key=lambda one: one.asked):
            if self._ends():
                return
            with self._recorder.measurer.hold(clocks):
                for one in some:
                    if self._ends():
                        return
                    if one.warm:
                        self._warm()
                    self._tell(_words(one))
                    window = self._recorder.take(one)
                    while more := self._policy.at_once(window):  # while its clocks are held
                        for called_for in more:
                            if self._ends():
                                return
                            self._tell(_words(called_for))
                            self._recorder.take(called_for)

    def _warm(self) -> None:
        self._tell("warming the GPU to a steady temperature")
        header = self._recorder.file.header
        self._recorder.measurer.warm(header.launches or header.kernels)

    def _tell(self, doing: str) -> None:
        taken, limit_s = self._recorder.taken, self._policy.limit_s
        phase, phase_s, left_s = "", 0.0, None
        if self._left is not None and self._policy.total is None:
            phase, phase_s, left_s = self._left.phase(taken - self._before, self._policy.short_of)
        self._progress(
            Tally(
                done=taken,
                total=self._policy.total or self._most,
                gpu_s=self._recorder.measurer.now_s() - self._began_s,
                doing=doing,
                time_limit_s=None if limit_s is None else max(0.0, limit_s - self._earlier_s),
                phase=phase,
                phase_s=phase_s,
                left_s=left_s,
            )
        )


def _words(wanted: Wanted) -> str:
    mix = wanted.mix
    what = wanted.kernel or ("the whole step" if mix.launches else "co-load by itself")
    at = f" at {wanted.asked}" if wanted.kernel or not wanted.asked.is_auto else ""
    parts = [f"{mix.hot} heaters"] if mix.hot else []
    parts += [f"{mix.idle_s * 1e3:.3g} ms of idling"] if mix.idle_s else []
    if not parts:
        return f"{what}{at}" if wanted.kernel else f"{what} at {wanted.asked}"
    pieces = f" in {mix.pieces} pieces" if mix.pieces > 1 else ""
    return f"{what}{at} with {' and '.join(parts)}{pieces}"


def check_time_limit(
    measurer: Measurer, header: SampleSet, time_limit_s: float | None, *, steers: bool
) -> None:
    """Refuse to begin what would end before anything can be compared with auto.

    Raises:
        UsageError: The time limit does not last until every kernel was seen once; where clocks are
            steered, until the step was, and one kernel.
    """
    measuring = header.measuring
    if time_limit_s is None or measuring is None:
        return
    whole = bool(header.order)
    warms = not (steers and whole)  # where the step runs first, it warms the GPU itself
    if steers:
        looks, seen = fewest_measurements(whole=whole) + 1, "the step, and its longest kernel"
    else:
        looks = len(header.kernels) + whole
        seen = f"auto clocks once for each of {len(header.kernels)} kernels"
    each_s = measurer.takes_s(0.0, timed=steers)
    of_looks_s = measuring.settle_s + looks * each_s
    if time_limit_s < measuring.least_warm_s * warms + of_looks_s:
        usual_s = math.ceil(warming_s(measuring) * warms + of_looks_s + looks * TICK_S)
        least = format_duration(measuring.least_warm_s)
        warming = f"warming up takes {least} at least, and " if warms else ""
        raise UsageError(
            f"a time limit of {format_duration(time_limit_s)} is too short: {warming}every sample "
            f"takes {format_duration(each_s)}",
            hint=f"--time-limit {usual_s}s is about the least that helps: {seen}; more where "
            "launches take long, for twenty are measured at a time",
        )
