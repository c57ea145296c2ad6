"""Watching a GPU at work: its clocks all through a window, launches that get on, and interference.

Nothing is set. NVML can set locks but not read them, so another program's show only in the clock a
GPU runs at. Above its lock it can only be another lock. Below it, power and most slowdowns give a
throttle reason, but two things give none on a real GPU: heat lowers the highest boost bin by bin,
and a list of clocks may reach beyond what a chip ever boosts to. So a core below its lock counts as
interference only where it is also below what the same GPU was seen to boost to, less what heat has
cost since.
"""

import math
import statistics
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from underclock.errors import DeviceError, MeasurementError, NotAppliedError, UnderclockError
from underclock.hw.base import Clock, Gpu, Loop, Progress
from underclock.hw.cuda.driver import wait_for_gpu
from underclock.hw.lease import check_applied
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import gpu_count, nvml_session
from underclock.records import (
    AUTO,
    Clocks,
    Evidence,
    Provenance,
    SampleSet,
    Step,
    ThrottleReason,
    Window,
)
from underclock.records.common import can_climb

LONGEST_STILL_S = 120.0
"""No launch takes longer: of steps seen, the longest took some seconds."""
_LOOKS = 3  # at a counter that falls or leaps: two in a row may be odd
_EVERY_S = 0.0093  # no divisor of the power loop's tick (20 ms) or of the counter's (100 ms)
_MOST = 1024  # readings; of a longer window every second one is dropped, and half as many follow
_EARLY_S = 1e-6  # a reading this early is on time
_HEAT_MHZ_PER_C = 5.0  # a bin of 15 MHz goes every 4 °C (see `physics.thermal`); and some room
_LEAST_BOOST = 0.6  # of the highest clock listed: no GPU is known to boost to less
_USUAL_BIN_MHZ = 15
_INSISTS, _LOOK_S = 5, 0.02  # clock and reasons are read one after the other: look again
_HINT = "another program sets clocks on this GPU, or holds them: end it and measure again"


class WatchedLoop:
    """A running loop that must get on; what is waited for, the error says."""

    def __init__(self, loop: Loop, clock: Clock, doing: str) -> None:
        self._loop, self._clock, self._doing = loop, clock, doing
        self._ended = (0, 0.0)
        self._since_s = clock.now_s()

    def progress(self) -> Progress:
        """Return how far it is."""
        progress, now_s = self._loop.progress(), self._clock.now_s()
        ended = (progress.launches, progress.work)
        if ended > self._ended:
            self._ended, self._since_s = ended, now_s
        elif now_s - self._since_s > LONGEST_STILL_S:
            raise MeasurementError(
                f"no launch ended in {now_s - self._since_s:.0f} s while {self._doing}",
                hint="the GPU hangs or was lost for a while: look at it with `nvidia-smi`, then "
                "run the same command again",
            )
        return progress


class EnergyCounter:
    """A GPU's energy counter, without single readings that those around them belie.

    A reading after which the counter would have fallen or leapt is looked at again at once. Where
    the next one goes on from the reading before, the odd one is dropped; where it goes on from the
    odd one, the counter did fall or leap, which the caller sees.
    """

    def __init__(self, gpu: Gpu, clock: Clock, limit_w: float | None) -> None:
        self._gpu, self._clock, self._limit_w = gpu, clock, limit_w
        self._last: tuple[float, float] | None = None
        self.dropped = 0  # readings that were

    def energy_j(self) -> float:
        """Read it; the call may block for milliseconds."""
        before, odd = self._last, None
        for _ in range(_LOOKS):
            read = self._clock.now_s(), self._gpu.energy_j()
            if before is None or self._follows(before, read):
                self.dropped += odd is not None
                break
            if odd is not None and self._follows(odd, read):
                break
            odd = read
        self._last = read
        return read[1]

    def _follows(self, one: tuple[float, float], other: tuple[float, float]) -> bool:
        return can_climb(other[1] - one[1], other[0] - one[0], self._limit_w)


class ClockWatch:
    """A clock that reads the GPU's core clock while it sleeps, so that no other reading is late."""

    def __init__(self, gpu: Gpu, clock: Clock) -> None:
        self._gpu = gpu
        self._clock = clock
        self._every_s = _EVERY_S
        self._next_s = -math.inf
        self._seen_mhz: list[int] = []

    @property
    def core_mhz(self) -> float | None:
        """Mean of the readings; ``None`` where there are none."""
        return statistics.fmean(self._seen_mhz) if self._seen_mhz else None

    @property
    def spread_mhz(self) -> float | None:
        """Standard deviation of the readings; ``None`` where there are none."""
        return statistics.pstdev(self._seen_mhz) if self._seen_mhz else None

    def now_s(self) -> float:
        """Return the clock's time."""
        return self._clock.now_s()

    def sleep_s(self, duration_s: float) -> None:
        """Sleep; every now and then read the core clock."""
        clock = self._clock
        end_s = clock.now_s() + duration_s
        while True:
            if clock.now_s() >= self._next_s - _EARLY_S:
                self._next_s = clock.now_s() + self._every_s
                core_mhz = self._gpu.observed().core_mhz
                if core_mhz is not None:
                    self._seen_mhz.append(core_mhz)
                if len(self._seen_mhz) == _MOST:
                    self._seen_mhz, self._every_s = self._seen_mhz[::2], 2.0 * self._every_s
            now_s = clock.now_s()
            if now_s >= end_s:
                return
            clock.sleep_s(min(end_s, max(self._next_s, now_s)) - now_s)


@dataclass(frozen=True, slots=True)
class Running:
    """What a busy GPU does."""

    observed: Clocks  # its clocks
    reasons: ThrottleReason | None  # why they are what they are; None if unknown
    temperature_c: float | None  # how hot it is; None if unknown


class InterferenceCheck:
    """Reads a busy GPU back and refuses what only another program explains."""

    def __init__(self, gpu: Gpu, clock: Clock) -> None:
        self._gpu = gpu
        self._clock = clock
        cores_mhz = gpu.supported_core_mhz()
        steps = [upper - lower for lower, upper in pairwise(cores_mhz)]
        self._bin_mhz = min(steps, default=_USUAL_BIN_MHZ)
        self._least_mhz = _LEAST_BOOST * cores_mhz[-1] if cores_mhz else 0.0
        # A core clock in MHz at which it ran under load, below any lock and without a throttle
        # reason, and how hot it was.
        self._boost: tuple[int, float] | None = None
        self._follows = False  # whether it ever ran at a core clock that was locked

    def read(self, held: Clocks) -> Running:
        """Return what the GPU does, while it is busy at clocks that are held."""
        try:
            running = self._look(held)
        except NotAppliedError as exc:
            if not self._follows:
                raise
            raise MeasurementError(
                f"the GPU left its lock while it was measured: {exc}", hint=_HINT
            ) from exc
        core_mhz = running.observed.core_mhz
        if core_mhz is None:
            return running
        self._follows |= core_mhz == held.core_mhz
        if self._is_unexplained(held, running):
            for _ in range(_INSISTS):  # only what lasts is interference
                self._clock.sleep_s(_LOOK_S)
                if not self._is_unexplained(held, self._look(held)):
                    return running
            raise MeasurementError(
                "the core is held below its lock without a reason: locked at "
                f"{held.core_mhz} MHz, it runs at {core_mhz} MHz: another program sets clocks on "
                "this GPU",
                hint=_HINT,
            )
        if (
            running.temperature_c is not None
            and not _is_explained(running)
            and (held.core_mhz is None or core_mhz < held.core_mhz)
        ):
            self._boost = core_mhz, running.temperature_c
        return running

    def _look(self, held: Clocks) -> Running:
        observed, gpu = check_applied(self._gpu, held), self._gpu
        return Running(observed, gpu.throttle_reasons(), gpu.temperature_c())

    def _is_unexplained(self, held: Clocks, running: Running) -> bool:
        if held.core_mhz is None or running.observed.core_mhz is None or _is_explained(running):
            return False
        celsius, boost_mhz = running.temperature_c, 0.0
        if self._boost is not None and celsius is not None:
            seen_mhz, seen_c = self._boost
            boost_mhz = seen_mhz - _HEAT_MHZ_PER_C * max(0.0, celsius - seen_c)
        reachable_mhz = min(held.core_mhz, max(boost_mhz, self._least_mhz))
        return running.observed.core_mhz < reachable_mhz - self._bin_mhz


def _is_explained(running: Running) -> bool:
    """Whether there may be a reason for a low clock: there is one, or none can be read."""
    return running.reasons is None or bool(running.reasons & ~ThrottleReason.GPU_IDLE)


_LEAST_S = 1.0  # counters of energy step every 20 to 100 ms


def samples_of_running(step: Step, gpu: Gpu, version: str) -> SampleSet:
    """Return the samples of a step on a GPU to which a window of it running may be added."""
    listed = sorted(gpu.supported_core_mhz(), reverse=True)
    return SampleSet(
        evidence=Evidence.MEASURED,
        gpu=gpu.info(),
        step=step,
        settings=(AUTO, *(Clocks(core_mhz=mhz) for mhz in listed)),
        provenance=Provenance(in_situ=True, version=version),
        warnings=step.warnings,
    )


class StepMeter:
    """Reads the energy counter of PyTorch's current GPU where it is made, and where it is asked."""

    def __init__(self, library: Any, clock: Clock) -> None:  # noqa: ANN401 - PyTorch
        self._library, self._clock = library, clock
        self._begun = self._read()

    def window(self, steps: int) -> Window | None:
        """Return the mean of so many steps since then; ``None`` where they cannot be read."""
        with suppress(UnderclockError), nvml_session():
            gpu = self._gpu()
            observed, reasons, read_c = gpu.observed(), gpu.throttle_reasons(), gpu.temperature_c()
            begun, ended = self._begun, self._read()
            if begun is None or ended is None:
                return None
            took_s, drawn_j = ended[0] - begun[0], ended[1] - begun[1]
            climbs = drawn_j > 0.0 and can_climb(drawn_j, took_s, gpu.info().power_limit_w)
            if not (steps and climbs and took_s >= _LEAST_S):
                return None
            return Window(
                time_s=took_s / steps,
                energy_j=drawn_j / steps,
                observed=observed,
                core_mhz=None if observed.core_mhz is None else float(observed.core_mhz),
                core_spread_mhz=0.0,
                window_s=took_s,
                temperature_c=read_c,
                throttle_reasons=reasons,
            )
        return None

    def _read(self) -> tuple[float, float] | None:
        """Return the time in s and the energy in J, once the GPU has done what was asked of it."""
        wait_for_gpu(self._library)
        with suppress(UnderclockError), nvml_session():
            return self._clock.now_s(), self._gpu().energy_j()
        return None

    def _gpu(self) -> NvmlGpu:
        """Return PyTorch's current GPU, to which the driver may give another number."""
        cuda = self._library.cuda
        uuid = str(cuda.get_device_properties(cuda.current_device()).uuid)
        for gpu in map(NvmlGpu, range(gpu_count())):
            if uuid in gpu.uuid():
                return gpu
        raise DeviceError(f"the driver lists no GPU {uuid}")
