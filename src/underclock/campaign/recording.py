"""Samples on their way into a file, made or continued."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from underclock.campaign.provenance import check_same, set_apart
from underclock.core.steering.mixing import spin_mhz
from underclock.core.steering.wanted import ALONE
from underclock.errors import MeasurementError, NotSupportedError
from underclock.hw.base import Capability, Measurer, Reading
from underclock.records import AUTO, Clocks, Mix, MixSample, Sample, SampleSet
from underclock.store import SampleFile

_TIMED = 4  # runs of which launches are timed; more tell what the step costs, and hardly more of it


class Recorder:
    """Appends what a measurer measures to a file, with the measurer's time that went into it.

    Attributes:
        measurer: What measures.
        file: Where samples go.
    """

    def __init__(self, measurer: Measurer, file: SampleFile) -> None:
        self.measurer = measurer
        self.file = file
        self._told_s = measurer.now_s()

    def append(
        self, name: str, asked: Clocks, repeat: int, reading: Reading, *, in_situ: bool = False
    ) -> None:
        """Add a reading of a kernel, or of the whole step."""
        sample = as_sample(name, asked, repeat, reading)
        self.file.append(sample, in_situ=in_situ, gpu_s=self._passed_s())

    def append_step(self, reading: Reading) -> None:
        """Add a run of the whole step at auto, and what its launches took inside, where timed.

        Both are counted by themselves: a campaign may have been cut off between the two.

        Raises:
            MeasurementError: Launches were timed, and the clock is not known.
        """
        before = self.file.sample_set()
        self.append(self.file.header.workload, AUTO, len(before.in_situ), reading, in_situ=True)
        if reading.durations is None:
            return
        repeat = sum(s.is_step and s.mix == ALONE and s.asked.is_auto for s in before.mixed)
        kernel_s = of_kernels(self.file.header, reading.durations.kernel_s)
        self.append_mixed(as_mix_sample("", ALONE, AUTO, repeat, reading, kernel_s))

    def append_mixed(self, sample: MixSample) -> None:
        """Add a measurement in company."""
        self.file.append_mixed(sample, gpu_s=self._passed_s())

    def finish(self) -> None:
        """Add the time since the last sample, and what the measurer has to say of all of them."""
        passed_s = self._passed_s()
        if passed_s > 0:
            self.file.spend(passed_s)
        self.file.note(self.measurer.notes())

    def _passed_s(self) -> float:
        before_s, self._told_s = self._told_s, self.measurer.now_s()
        return self._told_s - before_s


class StepRuns:
    """Runs the whole step at auto, and times its launches inside where that can be done.

    Attributes:
        can_time: Whether launches can be timed; ``False`` from where it was seen that they cannot.
    """

    def __init__(self, recorder: Recorder, tell: Callable[[str], None]) -> None:
        header = recorder.file.header
        self._recorder = recorder
        self._tell = tell
        self._launches = header.launches
        self.can_time = Capability.MIX in recorder.measurer.capabilities
        self._timed = sum(sample.is_step for sample in recorder.file.sample_set().mixed)

    def run(self) -> None:
        """Run it once more.

        Raises:
            DeviceError, MeasurementError: From the GPU.
        """
        self._tell("the whole step at auto clocks")
        self._recorder.append_step(self._measure())

    def _measure(self) -> Reading:
        measurer = self._recorder.measurer
        if self.can_time and self._timed < _TIMED:
            try:
                reading = measurer.measure(self._launches, mix=ALONE, timed=True)
            except (NotSupportedError, MeasurementError) as exc:
                self._give_up(str(exc))
            else:
                if reading.core_mhz is not None:
                    self._timed += 1
                    return reading
                self._give_up("the core clock cannot be read")
                return dataclasses.replace(reading, durations=None)
        # What is wrong with more than the timing is raised here.
        return measurer.measure(self._launches)

    def _give_up(self, why: str) -> None:
        """Go on without; the file says so."""
        self.can_time = False
        self._recorder.file.note(
            (f"{why}: what launches take inside the step is not known, only the step as a whole",)
        )


def record(
    measurer: Measurer, path: Path, header: SampleSet, take: Callable[[Recorder], None]
) -> SampleSet:
    """Take samples into a file, made or continued, with what the measurer has to say of them.

    Args:
        measurer: Where they are taken.
        path: Of the file.
        header: What it must say.
        take: Appends the samples.

    Returns:
        Everything in the file.

    Raises:
        UsageError: The file is of another campaign, or another process is writing it.
    """
    file = (
        SampleFile.open(path, writable=True) if path.exists() else SampleFile.create(path, header)
    )
    with file:
        file.note(set_apart(file, header))
        file.note(check_same(path, file.header, header))
        recorder = Recorder(measurer, file)
        try:
            take(recorder)
        finally:
            recorder.finish()
        return file.sample_set()


def of_kernels(header: SampleSet, of_launches: Sequence[float]) -> tuple[float, ...]:
    """Return the mean over each kernel's launches in the step.

    Args:
        header: Of the campaign, with the launch sequence.
        of_launches: Of one step or several; none where nothing is known.
    """
    if not of_launches:
        return ()
    of_kernel: list[list[float]] = [[] for _ in header.kernels]
    for k, each in zip(itertools.cycle(header.order), of_launches, strict=False):
        of_kernel[k].append(each)
    return tuple(sum(each) / len(each) for each in of_kernel)


def as_mix_sample(
    kernel: str,
    mix: Mix,
    asked: Clocks,
    repeat: int,
    reading: Reading,
    kernel_s: tuple[float, ...] | None = None,
    highest_mhz: float | None = None,
) -> MixSample:
    """Say of a reading in company what it is of.

    Args:
        kernel: Name; empty for the whole step, and for company by itself.
        mix: What ran.
        asked: Clocks.
        repeat: 0, 1, 2, … of this mix.
        reading: With the launches inside timed.
        kernel_s: Mean duration of each kernel, where it is not that of each place of the sequence.
        highest_mhz: Core clock at which idling lasts as asked, where its length is to tell the
            clock; ``None`` where a lock does.

    Raises:
        MeasurementError: Clock or durations are missing.
    """
    if reading.core_mhz is None or reading.durations is None:
        raise MeasurementError(
            f"{kernel or 'the step or its company'} in company: its core clock or its durations "
            "could not be read",
            hint="measuring in company rests on both: `underclock doctor` says what can be read",
        )
    return MixSample(
        kernel=kernel,
        mix=mix,
        asked=asked,
        repeat=repeat,
        core_mhz=reading.core_mhz,
        core_spread_mhz=reading.core_spread_mhz or 0.0,
        round_s=reading.time_s,
        round_j=reading.energy_j,
        kernel_s=reading.durations.kernel_s if kernel_s is None else kernel_s,
        hot_s=reading.durations.hot_s,
        idle_s=reading.durations.idle_s,
        spin_mhz=spin_mhz(mix, reading.durations.idle_s, highest_mhz),
        window_s=reading.window_s or reading.time_s,
        temperature_c=reading.temperature_c,
        throttle_reasons=reading.throttle_reasons,
    )


_INSIDE = {"core_mhz", "core_spread_mhz", "durations"}  # what only a `MixSample` keeps


def as_sample(name: str, asked: Clocks, repeat: int, reading: Reading) -> Sample:
    """Say of a reading what it is of."""
    return msgspec.convert(
        {"kernel": name, "asked": asked, "repeat": repeat}
        | {field: getattr(reading, field) for field in Reading.__slots__ if field not in _INSIDE},
        Sample,
    )
