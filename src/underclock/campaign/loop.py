"""The one loop of every campaign: what is wanted, the windows that answer it, the file.

A policy says what is wanted next, from what is on file alone, so that a campaign that was cut off
goes on where it stopped. The loop holds clocks, takes windows into the file, ends at limits and
says how far it is.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from underclock.campaign.progress import TICK_S, Phase, Tally, TimeLeft, warming_s
from underclock.campaign.recording import Recorder, WindowPolicy, window_of
from underclock.campaign.share import SharedRecorder
from underclock.campaign.survey import Campaign, Points
from underclock.core.design.wanted import Wanted
from underclock.core.model.parameters import unknown_gpu
from underclock.core.model.sample_sets import UNKNOWN_MHZ
from underclock.core.steering import HEATERS, IDLING, SteeringAgenda, fewest_measurements
from underclock.errors import MeasurementError, NoRoomError, UsageError
from underclock.hw.base import Capability, Measurer
from underclock.records import Mix, SampleSet, Window
from underclock.units import format_duration


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
        """Return the mix that tells most, by what is on file."""
        del spent_s
        samples = self._recorder.samples
        if not self._whole:
            samples = msgspec.structs.replace(samples, order=())
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
        """GPU time of all runs."""
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
        goes_on = not self._is_spent_by_warming()
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
                    self._follow(self._recorder.take(one))

    def _follow(self, window: Window) -> None:
        """Take what a window calls for while its clocks are held."""
        while more := self._policy.at_once(window):
            for one in more:
                if self._ends():
                    return
                self._tell(_words(one))
                self._recorder.take(one)

    def _warm(self) -> None:
        self._tell("warming the GPU to a steady temperature")
        header = self._recorder.file.header
        self._recorder.measurer.warm(header.launches or header.kernels)

    def _is_spent_by_warming(self) -> bool:
        """Whether warming up again would leave nothing of a time limit that earlier runs used."""
        measuring = self._recorder.file.header.measuring
        if self._policy.limit_s is None or measuring is None or not self._policy.warms:
            return False
        return self._earlier_s + measuring.least_warm_s >= self._policy.limit_s

    def _tell(self, doing: str) -> None:
        """Say how far the campaign is."""
        taken, limit_s = self._recorder.taken, self._policy.limit_s
        phase = Phase()
        if self._left is not None and self._policy.total is None:
            phase = self._left.phase(taken - self._before, self._policy.short_of)
        self._progress(
            Tally(
                done=taken,
                total=self._policy.total or self._most,
                gpu_s=self._recorder.measurer.now_s() - self._began_s,
                doing=doing,
                time_limit_s=None if limit_s is None else max(0.0, limit_s - self._earlier_s),
                phase=phase.name,
                phase_s=phase.spent_s,
                left_s=phase.left_s,
            )
        )


def _words(wanted: Wanted) -> str:
    """Say what is measured."""
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
