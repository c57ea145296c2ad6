"""A GPU that shows what a test says, and a clock that passes only while somebody sleeps on it."""

from dataclasses import dataclass

from underclock.records import AUTO, Clocks, GpuInfo, ThrottleReason


@dataclass
class FakeClock:
    """Virtual time of nothing."""

    t_s: float = 0.0

    def now_s(self) -> float:
        """Return it."""
        return self.t_s

    def sleep_s(self, duration_s: float) -> None:
        """Let it pass."""
        self.t_s += duration_s


class SteadyGpu:
    """Shows the same all the time, whatever is locked; a test changes what it is about."""

    cores_mhz: tuple[int, ...] = ()
    mems_mhz: tuple[int, ...] = ()
    celsius: float = 40.0
    watts: float = 1.0
    seen: Clocks = AUTO
    reasons: ThrottleReason = ThrottleReason.NONE

    def info(self) -> GpuInfo:
        """Return a name."""
        return GpuInfo(name="fake", power_limit_w=700.0)

    def supported_mem_mhz(self) -> tuple[int, ...]:
        """Return `mems_mhz`."""
        return self.mems_mhz

    def supported_core_mhz(self, mem_mhz: int | None = None) -> tuple[int, ...]:
        """Return `cores_mhz`."""
        del mem_mhz
        return self.cores_mhz

    def observed(self) -> Clocks:
        """Return `seen`."""
        return self.seen

    def energy_j(self) -> float:
        """Return nothing drawn."""
        return 0.0

    def power_w(self) -> float:
        """Return `watts`."""
        return self.watts

    def temperature_c(self) -> float:
        """Return `celsius`."""
        return self.celsius

    def throttle_reasons(self) -> ThrottleReason:
        """Return `reasons`."""
        return self.reasons

    def lock(self, clocks: Clocks) -> None:
        """Do nothing."""

    def unlock(self) -> None:
        """Do nothing."""
