"""One row of a fit, however it was measured: where a kernel ran, what it took, how sure that is."""

from typing import NamedTuple

STEADY_C = 55.0
"""Where no temperature was read."""


class FitRow(NamedTuple):
    """What one window tells of one kernel, as the columns of `Rows`."""

    kernel: int
    core_mhz: float
    mem_mhz: float
    log_s: float
    log_w: float
    temperature_c: float
    time_windows: float
    power_windows: float
    apart: float = 0.0
    common: tuple[float, ...] = ()

    def counted(self, time: float, energy: float) -> "FitRow":
        """Return it as it counts among repeats; power is energy over time, and odd with either."""
        return self._replace(
            time_windows=time * self.time_windows,
            power_windows=min(time, energy) * self.power_windows,
        )


class Idling(NamedTuple):
    """What the GPU drew while clocks ran and nothing else did: of no kernel, so of all."""

    core_mhz: float
    mem_mhz: float
    temperature_c: float
    log_w: float


class StepDraw(NamedTuple):
    """What the whole step drew at one clock, without its co-load."""

    core_mhz: float
    power_w: float
    spread_w: float
