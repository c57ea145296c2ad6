"""A steering campaign: kernels at many clocks, though nobody may set one.

What to do next follows from the samples on file alone, so a campaign that was cut off goes on
where it stopped.
"""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from underclock.campaign.recording import Recorder, as_mix_sample, of_kernels
from underclock.campaign.survey import Campaign
from underclock.core.model.ran_clocks import UNKNOWN_MHZ
from underclock.core.model.start import unknown_gpu
from underclock.core.steering.agenda import SteeringAgenda
from underclock.core.steering.mixing import launch_clocks
from underclock.core.steering.wanted import ALONE, COMPANIONS, IDLING, Wanted
from underclock.errors import NoRoomError
from underclock.records import AUTO, Kernel, Mix, SampleSet


class SteeringRun:
    """One run of a campaign into a file."""

    def __init__(
        self, recorder: Recorder, limits: Campaign, tell: Callable[[str], None], *, in_situ: bool
    ) -> None:
        self._bench = recorder.measurer
        self._recorder = recorder
        self._limits = limits
        self._tell = tell
        header = recorder.file.header
        self._kernels = {kernel.name: kernel for kernel in header.kernels}
        self._launches = header.launches if in_situ else ()
        self._started_s = self._bench.now_s() - recorder.file.gpu_s  # earlier runs count too
        clocks = [c.core_mhz for c in header.settings if c.core_mhz is not None]
        self._highest_mhz = float(max(clocks))
        self._shape = unknown_gpu(
            [UNKNOWN_MHZ],
            fastest_mhz=self._highest_mhz,
            most_w=header.gpu.power_limit_w or 1.0,
        )

    def run(self) -> None:
        """Measure until the step's energy is as sure as asked, or time or samples are spent."""
        if self._spent(self._recorder.file.sample_set()):
            return
        companion = self._try_company()
        takes_s = partial(self._bench.takes_s, timed=True)
        self._tell("warming the GPU to a steady temperature")
        self._bench.warm(self._launches or list(self._kernels.values()))
        while not self._spent(samples := self._recorder.file.sample_set()):
            if not self._launches:
                samples = _without_order(samples)
            agenda = SteeringAgenda.of(samples, self._shape, companion=companion)
            wanted = agenda.next(takes_s, self._limits.precision)
            if wanted is None:
                self._tell("nothing more would tell much")
                return
            self._take(wanted, samples)

    def _try_company(self) -> bool:
        """Try what a campaign rests on before it spends time; return whether the companion can run.

        Raises:
            MeasurementError: The core clock or durations cannot be read.
            DeviceError: Launches cannot be timed.
        """
        self._tell("trying to time launches in company")
        try:
            self._try(COMPANIONS)
        except NoRoomError as exc:
            self._recorder.file.note(
                (f"{exc}: kernels ran with idling only, so no clock below their own was seen",)
            )
        else:
            return True
        self._try(IDLING)
        return False

    def _try(self, mix: Mix) -> None:
        reading = self._bench.measure((), mix=mix, timed=True)
        as_mix_sample("", mix, AUTO, 0, reading)

    def _spent(self, samples: SampleSet) -> bool:
        most = self._limits.max_samples
        if most is not None and len(samples.mixed) >= most:
            return True
        limit_s = self._limits.limit_s(steers=True)
        return limit_s is not None and self._bench.now_s() - self._started_s >= limit_s

    def _take(self, wanted: Wanted, samples: SampleSet) -> None:
        """Measure a mix; a kernel, or the step, without company is a plain sample too."""
        kernels: Sequence[Kernel] = ()
        if wanted.kernel:
            kernels = [self._kernels[wanted.kernel]]
        elif wanted.mix.launches:
            kernels = self._launches
        self._tell(_words(wanted))
        repeat = sum((s.kernel, s.mix) == (wanted.kernel, wanted.mix) for s in samples.mixed)
        reading = self._bench.measure(kernels, repeat, mix=wanted.mix, timed=True)
        if wanted.mix == ALONE and not wanted.kernel:
            self._recorder.append_step(reading)
            return
        if wanted.mix == ALONE:
            # Counted by themselves: a campaign may have been cut off between the two.
            plain = sum(sample.kernel == wanted.kernel for sample in samples.samples)
            self._recorder.append(wanted.kernel, AUTO, plain, reading)
        durations = None if wanted.kernel or not wanted.mix.launches else reading.durations
        header = self._recorder.file.header
        kernel_s = of_kernels(header, durations.kernel_s) if durations else None
        sample = as_mix_sample(
            wanted.kernel, wanted.mix, AUTO, repeat, reading, kernel_s, self._highest_mhz
        )
        if durations and wanted.mix.after:
            launches = len(self._launches) * wanted.mix.launches
            clocks = launch_clocks(wanted.mix, durations.pieces_s, self._highest_mhz, launches)
            sample = msgspec.structs.replace(sample, kernel_mhz=of_kernels(header, clocks))
        self._recorder.append_mixed(sample)


def _words(wanted: Wanted) -> str:
    """Say what is measured."""
    mix = wanted.mix
    what = wanted.kernel or ("the whole step" if mix.launches else "company by itself")
    parts = [f"{mix.hot} hot companions"] if mix.hot else []
    parts += [f"{mix.idle_s * 1e3:.3g} ms of idling"] if mix.idle_s else []
    if not parts:
        return f"{what} alone"
    pieces = f" in {mix.pieces} pieces" if mix.pieces > 1 else ""
    return f"{what} with {' and '.join(parts)}{pieces}"


def _without_order(samples: SampleSet) -> SampleSet:
    """Return samples of a campaign that never runs the step whole."""
    return msgspec.structs.replace(samples, order=())
