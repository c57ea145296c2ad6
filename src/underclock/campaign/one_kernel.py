"""A step whose kernels cannot be launched alone, measured as if it were one kernel.

Campaigns see a step of one kernel; what is on file are runs of the whole step, with the durations
of all launches inside.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

import msgspec

from underclock.campaign.recording import Recorder, as_mix_sample, of_kernels
from underclock.core.steering.wanted import ALONE
from underclock.core.step.cap import is_uneven
from underclock.core.step.whole import WHOLE, as_one
from underclock.errors import MeasurementError, NotSupportedError
from underclock.hw.base import Durations, Measurer, Reading
from underclock.physics.cap import WINDOW_S
from underclock.records import Clocks, GpuInfo, Kernel, Mix, MixSample, SampleSet, Step
from underclock.store import SampleFile
from underclock.units import format_duration


def one_kernel(step: Step) -> Step:
    """Return a step as one kernel."""
    return msgspec.structs.replace(step, kernels=(WHOLE,), order=(0,), modules=())


class OneKernelMeasurer:
    """Runs the whole step where its one kernel is asked for, and times its launches.

    Attributes:
        evidence: Of the measurer behind it.
        capabilities: Of the measurer behind it.
        step: As it was captured now, all of its kernels.
        untimed: Why launches are not timed; empty while they are.
    """

    def __init__(self, inner: Measurer, launches: Sequence[Kernel]) -> None:
        self.evidence = inner.evidence
        self.capabilities = inner.capabilities
        self.step = inner.step
        self.untimed = ""
        self._inner = inner
        self._launches = launches

    def info(self) -> GpuInfo:
        """Return which GPU answers."""
        return self._inner.info()

    def brings(self) -> tuple[str, tuple[Kernel, ...]]:
        """Return nothing: the step is given."""
        return "", ()

    def can_measure(self, kernel: Kernel, clocks: Clocks) -> bool:
        """Whether every launch of the step has an answer at these clocks."""
        del kernel
        return all(self._inner.can_measure(each, clocks) for each in self._launches)

    def settings(self) -> tuple[Clocks, ...]:
        """Return every clock pair that can be held, auto included."""
        return self._inner.settings()

    def core_clocks(self) -> tuple[int, ...]:
        """Return every core clock there is."""
        return self._inner.core_clocks()

    def repeats(self, kernel: Kernel, clocks: Clocks) -> int | None:
        """Return ``None``: what runs a whole step answers anew each time."""
        del kernel, clocks
        return None

    def notes(self) -> tuple[str, ...]:
        """Return what a reader of the numbers so far must know."""
        untimed = (f"{self.untimed}: times of launches are not known",) if self.untimed else ()
        return (*self._inner.notes(), *untimed)

    def now_s(self) -> float:
        """Return the measurer's own time."""
        return self._inner.now_s()

    def warm(self, kernels: Sequence[Kernel]) -> float:
        """Bring the GPU to the temperature it has when the step runs; return it in °C."""
        del kernels
        return self._inner.warm(self._launches)

    def takes_s(self, launch_s: float, *, timed: bool = False) -> float:
        """Return about how long it takes to measure a step that takes that long."""
        return self._inner.takes_s(launch_s, timed=timed)

    def hold(self, clocks: Clocks) -> AbstractContextManager[None]:
        """Hold clocks from entry to exit."""
        return self._inner.hold(clocks)

    def measure(
        self,
        kernels: Sequence[Kernel],
        repeat: int = 0,
        *,
        mix: Mix | None = None,
        timed: bool = False,
    ) -> Reading:
        """Measure the whole step, or company by itself; by itself the step is timed inside."""
        if not kernels or mix not in {None, ALONE}:
            launches = self._launches if kernels else ()
            return self._inner.measure(launches, repeat, mix=mix, timed=timed)
        if not self.untimed:
            try:
                return self._inner.measure(self._launches, repeat, mix=ALONE, timed=True)
            except (NotSupportedError, MeasurementError) as exc:
                self.untimed = str(exc)
        # What is wrong with more than the timing is raised here. The clock is read all the same.
        return self._inner.measure(self._launches, repeat, mix=ALONE)


class OneKernelFile(SampleFile):
    """A samples file of whole steps, read as one of a step of one kernel."""

    def __init__(self, inner: SampleFile) -> None:
        self.path = inner.path
        self.header = as_one(inner.header)
        self._inner = inner

    @property
    def gpu_s(self) -> float:
        """The GPU's time that everything in the file took, over all runs."""
        return self._inner.gpu_s

    @property
    def taken(self) -> int:
        """How many measurements are in the file."""
        return self._inner.taken

    def note(self, sentences: Iterable[str]) -> None:
        """Add what a reader of the samples must know."""
        self._inner.note(sentences)

    def sample_set(self) -> SampleSet:
        """Return every sample so far, of one kernel."""
        return as_one(self._inner.sample_set())


class OneKernelRecorder(Recorder):
    """Writes what was measured of the one kernel down as runs of the whole step."""

    def __init__(self, inner: Recorder) -> None:
        self.measurer = OneKernelMeasurer(inner.measurer, inner.file.header.launches)
        self.file = OneKernelFile(inner.file)
        self._inner = inner
        self._step = inner.file.header

    def append(
        self, name: str, asked: Clocks, repeat: int, reading: Reading, *, in_situ: bool = False
    ) -> None:
        """Add a run of the step.

        Raises:
            MeasurementError: The core clock was not read.
        """
        del name, in_situ
        if asked.is_auto:
            steps = len(self._inner.file.sample_set().in_situ)
            self._inner.append(self._step.workload, asked, steps, reading, in_situ=True)
            return
        if reading.durations is None:
            reading = dataclasses.replace(reading, durations=Durations(kernel_s=()))
        self.append_mixed(as_mix_sample(WHOLE.name, ALONE, asked, repeat, reading))

    def append_step(self, reading: Reading) -> None:
        """Add a run of the step at auto."""
        self._inner.append_step(reading)

    def append_mixed(self, sample: MixSample) -> None:
        """Add a run of the step, or of company by itself.

        Raises:
            NotSupportedError: The step is too long for company to steer it.
        """
        if sample.kernel:
            kernel_s = of_kernels(self._step, sample.kernel_s)
            sample = msgspec.structs.replace(sample, kernel="", kernel_s=kernel_s)
        if sample.asked.is_auto and is_uneven(sample):
            raise NotSupportedError(
                f"a step of {format_duration(sample.round_s / sample.mix.launches)} cannot be "
                "steered: company can run after it only, and by then the power cap, which looks "
                f"back {format_duration(WINDOW_S)}, has seen the step by itself",
                hint="with root, clocks are held instead",
            )
        self._inner.append_mixed(sample)
