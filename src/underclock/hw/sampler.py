"""A log of what a GPU's clocks do, read a thousand times a second. Nothing is set."""

from collections.abc import Callable
from dataclasses import dataclass, field

from underclock.hw.base import Clock, Gpu
from underclock.records import ThrottleReason

_TELL_S = 0.5  # telling takes time that readings need
_EARLY_S = 1e-6  # a reading this early is on time


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One reading.

    Attributes:
        at_s: Since the log began.
        core_mhz: Running core clock; ``None`` where it cannot be read.
        mem_mhz: Running memory clock; ``None`` where it cannot be read.
        power_w: The driver's idea of power, averaged as it likes.
        throttle_reasons: Why the clocks are what they are.
        steps: Finished by then; ``None`` where nothing is launched.
    """

    at_s: float
    core_mhz: int | None
    mem_mhz: int | None
    power_w: float
    throttle_reasons: ThrottleReason
    steps: int | None = None


@dataclass(slots=True)
class Sampler:
    """Reads a GPU at an even rate.

    Attributes:
        gpu: What to read.
        clock: Its time.
        rate_hz: Readings a second.
        steps: Says how many steps are finished; ``None`` where nothing is launched.
        tell: Told now and then of the entries there are, and for how long they were read.
    """

    gpu: Gpu
    clock: Clock
    rate_hz: float = 1000.0
    steps: Callable[[], int] | None = None
    tell: Callable[[int, float], None] = lambda _entries, _at_s: None
    entries: list[Entry] = field(default_factory=list)

    def run(self, duration_s: float) -> tuple[Entry, ...]:
        """Read for a while; a reading that comes late delays none after it.

        Args:
            duration_s: How long.

        Raises:
            DeviceError: The GPU does not answer.
        """
        begun_s = self.clock.now_s()
        period_s = 1.0 / self.rate_hz
        due, tell_s = 0, 0.0
        while True:
            at_s = self.clock.now_s() - begun_s
            if at_s >= duration_s:
                return tuple(self.entries)
            if at_s >= tell_s:
                tell_s = at_s + _TELL_S
                self.tell(len(self.entries), at_s)
            early_s = due * period_s - at_s
            if early_s > _EARLY_S:
                self.clock.sleep_s(early_s)
                continue
            self.entries.append(self._read(at_s))
            due = int((at_s + _EARLY_S) / period_s) + 1

    def _read(self, at_s: float) -> Entry:
        seen = self.gpu.observed()
        return Entry(
            at_s=at_s,
            core_mhz=seen.core_mhz,
            mem_mhz=seen.mem_mhz,
            power_w=self.gpu.power_w(),
            throttle_reasons=self.gpu.throttle_reasons(),
            steps=self.steps() if self.steps else None,
        )
