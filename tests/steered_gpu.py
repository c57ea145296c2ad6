"""A GPU made of physics alone: mixes settle where their mean power is the limit."""

import functools
import math
from dataclasses import replace

import msgspec
import numpy as np

from underclock.core.design import Wanted
from underclock.core.model.parameters import unknown_gpu
from underclock.core.steering import HEATERS, IDLING, SteeringAgenda
from underclock.core.steering.coload import CoLoad
from underclock.core.steering.mixing import METER_S
from underclock.physics.constants import KernelConstants
from underclock.physics.costs import busy_w, duration_s, idle_w
from underclock.records import (
    ALONE,
    AUTO,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    Mix,
    SampleSet,
    Step,
    ThrottleReason,
    Window,
)

BOOST_MHZ, MEM_MHZ, WARM_C = 1980.0, 3200.0, 55.0
SHAPE = unknown_gpu([1.0], fastest_mhz=BOOST_MHZ, most_w=700.0)
GPU = replace(
    unknown_gpu([MEM_MHZ], fastest_mhz=BOOST_MHZ, most_w=700.0),
    board_w=40.0,
    mem_points_w=(25.0,),
    leak_w_per_v3=35.0,
    clock_w_per_ghz_v2=20.0,
    knee_mhz=1300.0,
)
HOT = KernelConstants(core_mcycles=3.2, fixed_s=2e-6, work_j_per_v2=2.0)
KERNELS = {
    "product": KernelConstants(
        core_mcycles=3.0, dram_mcycles=0.9, fixed_s=2e-6, work_j_per_v2=1.7, dram_j=0.03
    ),
    "long product": KernelConstants(
        core_mcycles=9.0, dram_mcycles=4.5, work_j_per_v2=4.6, dram_j=0.1
    ),
    "softmax": KernelConstants(
        core_mcycles=0.8, dram_mcycles=0.5, fixed_s=2e-6, work_j_per_v2=0.12, dram_j=0.02
    ),
    "copy": KernelConstants(
        core_mcycles=0.1, dram_mcycles=1.5, fixed_s=2e-6, work_j_per_v2=0.06, dram_j=0.08
    ),
    "tiny": KernelConstants(core_mcycles=0.004, fixed_s=2e-6, work_j_per_v2=0.0007),
}
ORDER = (0, 1, 0, 2, 3, 4)
COUNTS = (2, 1, 1, 1, 1)


@functools.cache
def _costs(part: KernelConstants | None, core_mhz: float) -> tuple[float, float]:
    """Return what physics says; campaigns ask for the same over and over."""
    if part is None:
        return BOOST_MHZ / core_mhz, float(idle_w(GPU, core_mhz, MEM_MHZ, WARM_C))
    time_s = float(duration_s(GPU, part, core_mhz, MEM_MHZ))
    return time_s, float(busy_w(GPU, part, core_mhz, MEM_MHZ, WARM_C))


class Synthetic:
    """A GPU that is asked for mixes.

    Idling counts cycles. Launches are timed after the window, where ``drift`` is how much a clock
    that hunts has moved by then, as a fraction. ``peak_w`` is what no kernel exceeds, though the
    clock that is read does not show it.
    """

    def __init__(
        self,
        limit_w: float | None = 700.0,
        *,
        seed: int = 0,
        noise: float = 1.0,
        drift: float = 0.0,
        peak_w: float = math.inf,
    ) -> None:
        self.limit_w = limit_w
        self._random = np.random.default_rng(seed)
        self._noise = noise
        self._drift = drift
        self._peak_w = peak_w

    def costs(self, part: KernelConstants | None, core_mhz: float) -> tuple[float, float]:
        """Return time and power of a launch at a clock, or of a second of idling at boost."""
        while part is not None and _costs(part, core_mhz)[1] > self._peak_w:
            core_mhz -= 1.0
        return _costs(part, core_mhz)

    def parts(self, kernel: str, mix: Mix) -> list[tuple[KernelConstants | None, float]]:
        """Return what is in a round, and how often; idling in s."""
        parts: list[tuple[KernelConstants | None, float]] = [(None, mix.idle_s), (HOT, mix.hot)]
        names = [kernel] if kernel else list(KERNELS)
        counts = [1] if kernel else COUNTS
        for name, count in zip(names, counts, strict=True):
            parts.append((KERNELS[name], mix.launches * count))
        return parts

    def drawn(self, kernel: str, mix: Mix, core_mhz: float) -> tuple[float, float]:
        """Return time and energy of a round at a clock."""
        time_s = energy_j = 0.0
        for part, count in self.parts(kernel, mix):
            each_s, power_w = self.costs(part, core_mhz)
            time_s += count * each_s
            energy_j += count * each_s * power_w
        return time_s, energy_j

    def run(self, wanted: Wanted, repeat: int = 0, asked: Clocks = AUTO) -> Window:
        """Measure a mix."""
        kernel, mix = wanted.kernel, wanted.mix
        low, high = 300.0, float(asked.core_mhz or BOOST_MHZ)
        time_s, energy_j = self.drawn(kernel, mix, high)
        limit_w = math.inf if self.limit_w is None else self.limit_w - 2.0
        capped = energy_j / time_s > limit_w
        core_mhz = high
        if capped:
            for _ in range(40):
                core_mhz = (low + high) / 2
                time_s, energy_j = self.drawn(kernel, mix, core_mhz)
                low, high = (low, core_mhz) if energy_j / time_s > limit_w else (core_mhz, high)
        names = [] if not mix.launches else [kernel] if kernel else list(KERNELS)
        timed = 1.0 + self._noise * 3e-4 * self._random.standard_normal(len(names))
        moved = self._drift * self._random.uniform(-1.0, 1.0) if capped else 0.0
        timed_mhz = core_mhz * (1.0 + moved)
        kernel_s = [self.costs(KERNELS[name], timed_mhz)[0] for name in names]
        return Window(
            kernel=kernel,
            mix=mix,
            asked=asked,
            repeat=repeat,
            core_mhz=core_mhz,
            core_spread_mhz=(10.0 + self._drift * core_mhz) if capped else 0.0,
            time_s=time_s,
            energy_j=energy_j * (1.0 + self._noise * 3e-3 * self._random.standard_normal()),
            kernel_s=tuple((np.array(kernel_s) * timed).tolist()),
            hot_s=self.costs(HOT, timed_mhz)[0] if mix.hot else None,
            idle_s=mix.idle_s * BOOST_MHZ / timed_mhz or None,
            spin_mhz=timed_mhz if mix.idle_s >= METER_S else None,
            window_s=1.0,
            temperature_c=WARM_C,
            throttle_reasons=ThrottleReason.SW_POWER_CAP if capped else ThrottleReason.NONE,
        )

    def coload(self, *idle_s: float) -> CoLoad:
        """Learn what co-load draws, by itself and the heater with idling."""
        mixes = [IDLING, HEATERS, *[Mix(launches=0, hot=4, idle_s=each_s) for each_s in idle_s]]
        return CoLoad.of([self.run(Wanted("", mix)) for mix in mixes], SHAPE, 1.0)

    def samples(self, *wanted: Wanted, order: tuple[int, ...] = ORDER) -> SampleSet:
        """Return a campaign's file."""
        samples = SampleSet(
            evidence=Evidence.SIMULATED,
            gpu=GpuInfo(name="S", power_limit_w=self.limit_w),
            step=Step(
                name="w",
                kernels=tuple(
                    Kernel(name=name, count=count)
                    for name, count in zip(KERNELS, COUNTS, strict=True)
                ),
                order=order,
            ),
            settings=(AUTO, *(Clocks(core_mhz=mhz) for mhz in range(1980, 300, -15))),
        )
        for one in wanted:
            samples = self.with_one(samples, one)
        return samples

    def with_one(self, samples: SampleSet, wanted: Wanted) -> SampleSet:
        """Take one more, as the stage does."""
        repeat = sum((s.kernel, s.mix) == (wanted.kernel, wanted.mix) for s in samples.mixed)
        window = self.run(wanted, repeat)
        if wanted.mix == ALONE:
            observed = Clocks(core_mhz=round(window.at_mhz), mem_mhz=round(MEM_MHZ))
            window = msgspec.structs.replace(window, observed=observed)
        return msgspec.structs.replace(samples, windows=(*samples.windows, window))


def takes_s(round_s: float) -> float:
    return 2.0 + round_s


def campaign(
    gpu: Synthetic, *, most: int = 80, goal: float = 0.003, order: tuple[int, ...] = ORDER
) -> SampleSet:
    """Run a campaign to its end."""
    samples = gpu.samples(order=order)
    for _ in range(most):
        look = SteeringAgenda.of(samples, SHAPE).next(takes_s, goal)
        if look is None:
            return samples
        samples = gpu.with_one(samples, Wanted(*look))
    return samples
