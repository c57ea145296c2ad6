"""Time and energy of a script's steps as they run by themselves, by the GPU's own counter."""

from contextlib import suppress
from typing import Any

from underclock.errors import DeviceError, UnderclockError
from underclock.hw.base import Clock, Gpu
from underclock.hw.cuda.driver import wait_for_gpu
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import gpu_count, nvml_session
from underclock.records import AUTO, Clocks, Evidence, Provenance, SampleSet, Step, Window
from underclock.records.common import can_climb

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
