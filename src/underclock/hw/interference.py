"""Noticing that another program sets the clocks of the GPU that is being measured.

NVML can set locks but not read them, so interference shows only in the clock a GPU runs at. Above
its lock it can only be another lock. Below it, power and most slowdowns give a throttle reason,
but two things give none on a real GPU: heat lowers the highest boost bin by bin, and a list of
clocks may reach beyond what a chip ever boosts to. So a core below its lock counts as interference
only where it is also below what the same GPU was seen to boost to, less what heat has cost since.
"""

from dataclasses import dataclass
from itertools import pairwise

from underclock.errors import MeasurementError, NotAppliedError
from underclock.hw.base import Clock, Gpu
from underclock.hw.lease import check_applied
from underclock.records import Clocks, ThrottleReason

_HEAT_MHZ_PER_C = 5.0  # a bin of 15 MHz goes every 4 °C (see `physics.thermal`); and some room
_LEAST_BOOST = 0.6  # of the highest clock listed: no GPU is known to boost to less
_USUAL_BIN_MHZ = 15
_LOOKS, _LOOK_S = 5, 0.02  # clock and reasons are read one after the other: look again
_HINT = "another program sets clocks on this GPU, or holds them: end it and measure again"


@dataclass(frozen=True, slots=True)
class _Boost:
    """A core clock that a GPU ran at under load, below any lock and without a throttle reason."""

    core_mhz: int
    temperature_c: float

    def least_mhz(self, temperature_c: float) -> float:
        """Return what is left of it at another temperature, at the least."""
        hotter_c = max(0.0, temperature_c - self.temperature_c)
        return self.core_mhz - _HEAT_MHZ_PER_C * hotter_c


@dataclass(frozen=True, slots=True, kw_only=True)
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
        self._boost: _Boost | None = None
        self._follows = False  # whether it ever ran at a core clock that was locked

    def read(self, held: Clocks) -> Running:
        """Return what the GPU does, while it is busy at clocks that are held.

        Raises:
            NotAppliedError: It does not follow its locks, and never did.
            MeasurementError: Another program sets its clocks.
        """
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
            self._insist(held, running)
        elif (
            running.temperature_c is not None
            and not _is_explained(running)
            and (held.core_mhz is None or core_mhz < held.core_mhz)
        ):
            self._boost = _Boost(core_mhz, running.temperature_c)
        return running

    def _look(self, held: Clocks) -> Running:
        return Running(
            observed=check_applied(self._gpu, held),
            reasons=self._gpu.throttle_reasons(),
            temperature_c=self._gpu.temperature_c(),
        )

    def _is_unexplained(self, held: Clocks, running: Running) -> bool:
        """Whether the core runs below its lock without a reason."""
        if held.core_mhz is None or running.observed.core_mhz is None or _is_explained(running):
            return False
        celsius, boost_mhz = running.temperature_c, 0.0
        if self._boost is not None and celsius is not None:
            boost_mhz = self._boost.least_mhz(celsius)
        reachable_mhz = min(held.core_mhz, max(boost_mhz, self._least_mhz))
        return running.observed.core_mhz < reachable_mhz - self._bin_mhz

    def _insist(self, held: Clocks, running: Running) -> None:
        """Look again: only what lasts is interference."""
        for _ in range(_LOOKS):
            self._clock.sleep_s(_LOOK_S)
            if not self._is_unexplained(held, self._look(held)):
                return
        raise MeasurementError(
            f"the core is held below its lock without a reason: locked at {held.core_mhz} MHz, it "
            f"runs at {running.observed.core_mhz} MHz: another program sets clocks on this GPU",
            hint=_HINT,
        )


def _is_explained(running: Running) -> bool:
    """Whether there may be a reason for a low clock: there is one, or none can be read."""
    return running.reasons is None or bool(running.reasons & ~ThrottleReason.GPU_IDLE)
