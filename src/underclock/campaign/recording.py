"""Windows on their way into a file, made or continued."""

import dataclasses
import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from underclock.core.design import Wanted
from underclock.core.steering import launch_clocks, spin_mhz
from underclock.core.step.power_cap import is_uneven
from underclock.core.step.whole_step import WHOLE, as_one
from underclock.core.tracing.recapture import difference, identity
from underclock.errors import MeasurementError, NotSupportedError, UsageError
from underclock.hw.base import Capability, Measurer, Reading
from underclock.physics.cap import WINDOW_S
from underclock.records import ALONE, MeasurementSettings, SampleSet, Window
from underclock.store import SampleFile
from underclock.units import format_duration

_REPEAT = "name another file with -o, or repeat the options it was begun with"
_NEAR = (
    "name another file with -o for this board; with --near a plan of the other board, few windows "
    "will do"
)


def check_same_campaign(path: Path, begun: SampleSet, wanted: SampleSet) -> tuple[str, ...]:
    """Refuse to mix two campaigns in one file; return warnings for its reader.

    Raises:
        UsageError: Something differs that decides the samples.
    """
    for noun, before, now, hint in _compared(begun, wanted):
        if before != now:
            raise UsageError(
                f"{path} holds samples of another {noun}: it was begun with {before}, this run "
                f"has {now}; they do not mix",
                hint=hint,
            )
    old = begun.provenance.version if begun.provenance else None
    new = wanted.provenance.version if wanted.provenance else None
    if old == new:
        return ()
    return (f"begun with underclock {old or 'unknown'}, gone on with {new or 'unknown'}",)


def set_apart(file: SampleFile, wanted: SampleSet) -> tuple[str, ...]:
    """Let a file go on with a step whose libraries chose other algorithms; say what that left.

    Samples of kernels that run as before stay. The rest, and those of the whole step, are of
    kernels that no longer run: they are put into a file of their own, and taken anew.

    Raises:
        UsageError: Something else differs too.
    """
    begun = file.header
    kernels = (*begun.kernels, *wanted.kernels)
    if (
        begun.step.fingerprint == wanted.step.fingerprint
        or not (begun.order and wanted.order)
        or any(kernel.launch is None for kernel in kernels)
        or difference(begun.step, wanted.step) is not None
    ):
        return ()
    expected, lacking = wanted.expected_samples, wanted.lacking
    header = msgspec.structs.replace(
        begun, step=wanted.step, expected_samples=expected, lacking=lacking
    )
    check_same_campaign(file.path, header, wanted)
    before = {identity(kernel): kernel.name for kernel in begun.kernels}
    same = {kernel.name for kernel in wanted.kernels if before.get(identity(kernel)) == kernel.name}
    apart, left = file.set_apart(header, same)
    words = (
        f"other algorithms were chosen than when this file was begun: {left} measurements, of the "
        f"whole step and of kernels that run otherwise now, lie in {apart.name}"
    )
    return (words,)


def _compared(begun: SampleSet, wanted: SampleSet) -> Iterator[tuple[str, str, str, str]]:
    old, new = begun.gpu, wanted.gpu
    yield "kind of evidence", begun.evidence, wanted.evidence, _REPEAT
    yield "GPU", old.name, new.name, _REPEAT
    if old.is_another_board(new):
        yield "GPU", f"board {old.uuid}", f"board {new.uuid}", _NEAR
    yield "driver", str(old.driver), str(new.driver), _REPEAT
    yield "power limit", f"{old.power_limit_w} W", f"{new.power_limit_w} W", _REPEAT
    yield "workload", repr(begun.workload), repr(wanted.workload), _REPEAT
    yield "step", f"step {begun.step.fingerprint}", f"step {wanted.step.fingerprint}", _REPEAT
    if begun.provenance and wanted.provenance:
        was, is_ = begun.provenance, wanted.provenance
        instead = "name another file with -o: the rows of two tables are not repeats of one another"
        yield "table", f"content {was.table}", f"content {is_.table}", instead
        yield "seed", f"--seed {was.seed}", f"--seed {is_.seed}", _REPEAT
        if was.measuring and is_.measuring:
            for name in MeasurementSettings.__struct_fields__:
                old_value, new_value = (getattr(each.measuring, name) for each in (was, is_))
                before, now = f"{name} {old_value:g}", f"{name} {new_value:g}"
                yield "measuring settings", before, now, _REPEAT
        which = {True: "the whole step run too", False: "isolated kernels only"}
        yield "closure", which[was.in_situ], which[is_.in_situ], _REPEAT
    # A file keeps what it began with of what no two profiles say alike.
    kernels = [
        [msgspec.structs.replace(kernel, waited_for=1.0) for kernel in each.kernels]
        for each in (begun, wanted)
    ]
    for name, of_both, noun in (
        ("set of kernels", kernels, "kernels"),
        ("clock grid", (begun.settings, wanted.settings), "clock pairs"),
    ):
        sizes = [len(each) for each in of_both]
        other = " other" if sizes[0] == sizes[1] and of_both[0] != of_both[1] else ""
        yield name, f"{sizes[0]} {noun}", f"{sizes[1]}{other} {noun}", _REPEAT
    yield "number of repeats", str(begun.repeats), str(wanted.repeats), _REPEAT
    before, now = (
        "an adaptive one" if samples is None else f"one of {samples} samples"
        for samples in (begun.expected_samples, wanted.expected_samples)
    )
    yield "grid", before, now, _REPEAT


_TIMED = 4  # runs of the step of which launches are timed; more tell hardly more of it


class WindowPolicy(ABC):
    """Decides what a campaign measures."""

    total: int | None = None  # windows it will have taken at its end; ``None`` where that is open
    limit_s: float | None = None  # GPU time at which it ends; ``None`` for never
    why: str = ""  # why nothing more is wanted, for a person; empty where that says itself
    # how many times as unsure as asked its promise is; ``None`` where it makes none
    short_of: float | None = None
    # whether the GPU is warmed first; not where the step itself runs first, which does
    warms: bool = True

    def begin(self) -> None:  # noqa: B027 - most have nothing to try
        """Try what the campaign rests on, before anything is warmed for it; usually nothing."""

    @abstractmethod
    def next(self, spent_s: float) -> Sequence[Wanted]:
        """Return what to measure next, what is at the same clocks in a row; nothing at the end."""

    def at_once(self, window: Window) -> Sequence[Wanted]:
        """Return what a window just taken calls for at the clocks held; usually nothing."""
        del window
        return ()


class Recorder:
    """Takes the windows that are wanted into a file, with the measurer's time that each took.

    Attributes:
        file: Where windows go.
        whole: Whether kernels of the step cannot be launched alone: then `samples` shows it as a
            step of one kernel, `WHOLE`, and what is wanted of that kernel is run of the step.
        can_time: Whether launches can be timed; ``False`` from where it was seen that they cannot.
    """

    def __init__(self, measurer: Measurer, file: SampleFile, *, whole: bool = False) -> None:
        self.measurer = measurer
        self.file = file
        self.whole = whole
        self.can_time = Capability.MIX in measurer.capabilities
        self._told_s = measurer.now_s()
        self._windows = list(file.sample_set().windows)
        self._taken = Counter(window.what for window in self._windows)
        self._kernels = {kernel.name: kernel for kernel in file.header.kernels}
        self._samples: SampleSet | None = None

    @property
    def samples(self) -> SampleSet:
        """Everything on file, as a campaign sees it."""
        if self._samples is None:
            every = msgspec.structs.replace(self.file.header, windows=tuple(self._windows))
            self._samples = as_one(every) if self.whole else every
        return self._samples

    @property
    def taken(self) -> int:
        """How many windows are on file."""
        return len(self._windows)

    def take(self, wanted: Wanted) -> Window:
        """Measure what is wanted at the clocks that are held, and add it to the file.

        Raises:
            DeviceError, MeasurementError: From the GPU.
            NotSupportedError: The step is too long for co-load to steer it.
        """
        if wanted.kernel == WHOLE.name:
            wanted = dataclasses.replace(wanted, kernel="", timed=wanted.mix != ALONE)
        what = wanted.kernel, wanted.mix, wanted.asked
        reading = self._read(wanted, self._taken[what])
        window = window_of(wanted, self._taken[what], reading, self.file.header)
        if self.whole and window.is_step and window.asked.is_auto and is_uneven(window):
            raise NotSupportedError(
                f"a step of {format_duration(window.time_s / window.mix.launches)} cannot be "
                "steered: co-load can run after it only, and by then the power cap, which looks "
                f"back {format_duration(WINDOW_S)}, has seen the step by itself",
                hint="with root, clocks are held instead",
            )
        self.file.append(window, gpu_s=self._passed_s())
        self._windows.append(window)
        self._taken[what] += 1
        self._samples = None
        return window

    def _read(self, wanted: Wanted, repeat: int) -> Reading:
        """Measure; a step by itself is useful without timed launches too."""
        launches = self.file.header.launches if wanted.is_step else ()
        if wanted.kernel:
            launches = (self._kernels[wanted.kernel],)
        by_itself = wanted.is_step and wanted.mix == ALONE and not wanted.timed
        may_fail = by_itself and (self.whole or wanted.asked.is_auto)
        timed = wanted.timed
        if may_fail:
            timed = self.can_time and (self.whole or repeat < _TIMED)
        if timed:
            try:
                reading = self.measurer.measure(launches, repeat, mix=wanted.mix, timed=True)
            except (NotSupportedError, MeasurementError) as exc:
                if not may_fail:
                    raise
                self._give_up(str(exc))
            else:
                if reading.core_mhz is not None or not may_fail:
                    return reading
                self._give_up("the core clock cannot be read")
                return dataclasses.replace(reading, durations=None)
        # What is wrong with more than the timing is raised here.
        mix = ALONE if self.whole else None
        return self.measurer.measure(launches, repeat, mix=mix)

    def _give_up(self, why: str) -> None:
        """Go on without timing launches; the file says so."""
        self.can_time = False
        self.file.note(
            (f"{why}: what launches take inside the step is not known, only the step as a whole",)
        )

    def finish(self) -> None:
        """Add the time since the last window, and what the measurer has to say of all of them."""
        passed_s = self._passed_s()
        if passed_s > 0:
            self.file.spend(passed_s)
        self.file.note(self.measurer.notes())

    def _passed_s(self) -> float:
        before_s, self._told_s = self._told_s, self.measurer.now_s()
        return self._told_s - before_s


def record(
    measurer: Measurer,
    path: Path,
    header: SampleSet,
    take: Callable[[Recorder], None],
    *,
    whole: bool = False,
) -> SampleSet:
    """Take windows into a file, made or continued, with what the measurer has to say of them.

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
        file.note(check_same_campaign(path, file.header, header))
        recorder = Recorder(measurer, file, whole=whole)
        try:
            take(recorder)
        finally:
            recorder.finish()
        return file.sample_set()


def window_of(wanted: Wanted, repeat: int, reading: Reading, header: SampleSet) -> Window:
    """Say of a reading what it is of; the campaign's header has launch sequence and listed clocks.

    Raises:
        MeasurementError: Clock or durations are missing where steering rests on them.
    """
    lacks = reading.core_mhz is None or reading.durations is None
    if lacks and (wanted.mix != ALONE or wanted.timed):
        raise MeasurementError(
            f"{wanted.kernel or 'the step or its co-load'} with co-load: its core clock or its "
            "durations could not be read",
            hint="measuring with co-load rests on both: `underclock doctor` says what can be read",
        )
    window = Window(
        kernel=wanted.kernel,
        mix=wanted.mix,
        asked=wanted.asked,
        repeat=repeat,
        time_s=reading.time_s,
        energy_j=reading.energy_j,
        observed=reading.observed,
        core_mhz=reading.core_mhz,
        core_spread_mhz=None if reading.core_mhz is None else reading.core_spread_mhz or 0.0,
        window_s=reading.window_s,
        ticks=reading.ticks,
        temperature_c=reading.temperature_c,
        throttle_reasons=reading.throttle_reasons,
    )
    durations = reading.durations
    if durations is None:
        return window
    kernel_s, mix = durations.kernel_s, window.mix
    kernel_mhz: tuple[float, ...] = ()
    # At a lock idling lasts as long as the lock says, so its length says nothing of the clock.
    listed = [] if window.asked.core_mhz else [c.core_mhz or 0 for c in header.settings]
    highest_mhz = float(max(listed)) if any(listed) else None
    if window.is_step:
        if mix.after and highest_mhz is not None:
            launches = len(header.order) * mix.launches
            clocks = launch_clocks(mix, durations.pieces_s, highest_mhz, launches)
            kernel_mhz = _of_kernels(header, clocks)
        kernel_s = _of_kernels(header, kernel_s)
    return msgspec.structs.replace(
        window,
        kernel_s=kernel_s,
        kernel_mhz=kernel_mhz,
        hot_s=durations.hot_s,
        idle_s=durations.idle_s,
        spin_mhz=spin_mhz(mix, durations.idle_s, highest_mhz),
    )


def _of_kernels(header: SampleSet, of_launches: Sequence[float]) -> tuple[float, ...]:
    """Return the mean over each kernel's launches in the step, or several; of none, none."""
    of_kernel: list[list[float]] = [[] for _ in header.kernels]
    for k, each in zip(itertools.cycle(header.order), of_launches, strict=False):
        of_kernel[k].append(each)
    return tuple(sum(each) / len(each) for each in of_kernel) if of_launches else ()
