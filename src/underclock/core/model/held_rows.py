"""Rows of what the power cap, or heat, held below the clock that was asked for.

What is held runs at one clock between those it holds and the one asked for. Whoever looked read
that clock to a bin; the time tells it closer, where it follows the clock. So such samples of a
kernel are a row of its power at the clock that its time tells: p(t, P) = p(t)·p(P | t), of which
the first tells no more than the rows that it rests on.

Shape letters: K kernels, C core clocks, G points of a grid.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats
from underclock.core.model.laplace import FittedModel
from underclock.core.model.own_heat import STEADY_C, Warmth
from underclock.core.model.posterior import Posterior
from underclock.core.model.predictive import posterior_of
from underclock.core.model.ran_clocks import held_at_auto, held_back, ran_mem_mhz
from underclock.core.model.rows import FitRow, Rows
from underclock.core.steering.reach import reach_mhz
from underclock.records import Clocks, Sample, SampleSet

_FEWEST = 2  # clocks between which a curve can be drawn
_UNSURE = 0.1  # of the exponent of time with clock, beyond what the kernel was seen to hold
_FAR_OFF = 5.0  # deviations from every clock it may have had: something else slowed it down
_BIN_MHZ = 15.0  # of recent GPUs: by so much a clock hunts that is read once
_BINS = 4.0  # from a clock that was read it is no farther off
_POINTS = 65  # of the grid on which a clock is told


def held_rows(
    sample_set: SampleSet, model: FittedModel, settings: Sequence[Clocks]
) -> tuple[FitRow, ...]:
    """Return the rows of samples whose clock was held lower than was asked for.

    Args:
        sample_set: As measured.
        model: A fit of what is known without them, of the kernels of the step.
        settings: Clocks of the GPU.
    """
    # Where nothing could be locked, the clock was read all through each window already.
    if reach_mhz(sample_set) is not None:
        return ()
    auto_mem_mhz = model.rows.auto_mem_mhz
    index = {kernel.name: k for k, kernel in enumerate(sample_set.kernels)}
    groups: dict[tuple[int, float], list[Sample]] = defaultdict(list)
    for sample in (*held_back(sample_set), *held_at_auto(sample_set)):
        groups[index[sample.kernel], ran_mem_mhz(sample, auto_mem_mhz)].append(sample)
    rows: list[FitRow] = []
    for mem_mhz in sorted({mem_mhz for _, mem_mhz in groups}):
        ladder = _ladder(settings, mem_mhz, auto_mem_mhz)
        if len(ladder) < _FEWEST:
            continue
        posterior = posterior_of(
            model, ladder, temperature_c=Warmth.own(sample_set), limit_w=math.inf
        )
        for (k, mem), samples in groups.items():
            if mem == mem_mhz:
                rows += _rows_of(samples, _Curve.of(posterior, model.rows, k, mem_mhz))
    return tuple(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    """What a fit expects of a kernel at the core clocks of one memory clock, where it expects any.

    Attributes:
        kernel: Index of the kernel.
        mem_mhz: The memory clock.
        log_mhz: Ascending. Shape (C,).
        log_s: Shape (C,).
        log_w: Shape (C,).
        variance: Of log time. Shape (C,).
        rows_mhz: Clocks at which the kernel has rows.
        noise: Of a row of usual length: time, power.
    """

    kernel: int
    mem_mhz: float
    log_mhz: Floats
    log_s: Floats
    log_w: Floats
    variance: Floats
    rows_mhz: Floats
    noise: tuple[float, float]

    @classmethod
    def of(cls, posterior: Posterior, rows: Rows, kernel: int, mem_mhz: float) -> "_Curve":
        """Return the curve of a kernel, of a posterior at ascending clocks.

        A fit to rows at one and the same clock may expect less power than none far from it: nothing
        is expected there.
        """
        log_mhz = np.log([clocks.core_mhz or math.nan for clocks in posterior.settings])
        log_s, log_w = posterior.log_s[kernel], posterior.log_w[kernel]
        known = np.isfinite(log_mhz + log_s + log_w)
        own = slice(*rows.bounds[kernel : kernel + 2])
        noise_s, noise_w = posterior.noise[:, kernel].tolist()
        return cls(
            kernel=kernel,
            mem_mhz=mem_mhz,
            log_mhz=log_mhz[known],
            log_s=log_s[known],
            log_w=log_w[known],
            variance=posterior.variance(1.0, 0.0)[kernel][known],
            rows_mhz=rows.core_mhz[own][rows.mem_mhz[own] == mem_mhz],
            noise=(noise_s, noise_w),
        )

    def clock(self, bounds_mhz: tuple[float, float], seen_mhz: float | None) -> "_Clock":
        """Say what is known of a clock that nobody could hold, but for what was measured there.

        Args:
            bounds_mhz: The highest clock that it was seen to hold, and the lowest that it was not.
            seen_mhz: As read; ``None`` where nobody looked.
        """
        core_mhz = np.exp(self.log_mhz)
        near_mhz = seen_mhz or bounds_mhz[0]
        place = int(np.clip(np.searchsorted(core_mhz, near_mhz), 1, len(core_mhz) - 1))
        bin_mhz = max(_BIN_MHZ, float(core_mhz[place] - core_mhz[place - 1]))
        # Bins are wide where few clocks are known; below half of the lowest nothing runs.
        lowest = max(bounds_mhz[0] - bin_mhz, core_mhz[0] / 2.0)
        highest = min(bounds_mhz[1], core_mhz[-1]) + bin_mhz
        if seen_mhz is None:
            return _Clock(np.log(np.linspace(lowest, highest, _POINTS)), np.ones(_POINTS))
        far_mhz = _BINS * bin_mhz
        low, high = np.clip([seen_mhz - far_mhz, seen_mhz + far_mhz], lowest, highest).tolist()
        grid_mhz = np.linspace(low, high, _POINTS)
        off2 = ((grid_mhz - seen_mhz) / bin_mhz) ** 2
        return _Clock(np.log(grid_mhz), np.exp(-0.5 * (off2 - off2.min())))

    def told(self, clock: "_Clock", held_mhz: float, log_s: float) -> "_Clock | None":
        """Return a clock of which a time tells too.

        Args:
            clock: As known without.
            held_mhz: The highest clock that the kernel was seen to hold.
            log_s: Logarithm of the time.

        Returns:
            ``None`` where the kernel takes as long at no such clock.
        """
        beyond = np.maximum(clock.log_mhz - math.log(held_mhz), 0.0)
        variance = np.interp(clock.log_mhz, self.log_mhz, self.variance)
        variance += self.noise[0] ** 2 + (_UNSURE * beyond) ** 2
        off2 = (log_s - np.interp(clock.log_mhz, self.log_mhz, self.log_s)) ** 2 / variance
        if off2.min() > _FAR_OFF**2:
            return None
        likelihood = np.exp(-0.5 * (off2 - off2.min())) / np.sqrt(variance)
        return _Clock(clock.log_mhz, clock.density * likelihood)

    def power_exponent(self, log_mhz: float) -> float:
        """Return by how much power follows the clock."""
        exponents = np.gradient(self.log_w, self.log_mhz)
        return float(np.interp(log_mhz, self.log_mhz, exponents))


@dataclass(frozen=True, slots=True)
class _Clock:
    """What is known of a core clock: densities on a grid of its logarithm. Shapes (G,)."""

    log_mhz: Floats
    density: Floats

    def moments(self) -> tuple[float, float]:
        """Return the mean and the standard deviation of the logarithm."""
        mean = float(np.average(self.log_mhz, weights=self.density))
        variance = float(np.average((self.log_mhz - mean) ** 2, weights=self.density))
        return mean, math.sqrt(variance)


def _rows_of(samples: Sequence[Sample], curve: _Curve) -> list[FitRow]:
    """Return the rows of a kernel's samples that were held; none where they tell nothing.

    Args:
        samples: At one memory clock.
        curve: What is expected of the kernel there.
    """
    asked_mhz = min(float(s.asked.core_mhz or math.inf) for s in samples)
    below_mhz = curve.rows_mhz[curve.rows_mhz < asked_mhz]
    # Of a kernel that was seen to hold no clock, nobody knows how time follows the clock.
    if not len(below_mhz) or len(curve.log_mhz) < _FEWEST:
        return []
    held_mhz = float(below_mhz.max())
    read = [s.observed.core_mhz for s in samples if s.observed and s.observed.core_mhz]
    log_s = statistics.median(math.log(s.time_s) for s in samples)
    clock = curve.clock((held_mhz, asked_mhz), statistics.median(read) if read else None)
    told = curve.told(clock, held_mhz, log_s)
    if told is None:
        return []
    (time_mhz, time_off), (power_mhz, power_off) = clock.moments(), told.moments()
    # A fit of few rows may take for memory-bound what is not: time moves as the clock at most.
    moved = time_off / curve.noise[0]
    moved_w = curve.power_exponent(power_mhz) * power_off / curve.noise[1]
    warm = [s.temperature_c for s in samples if s.temperature_c is not None]
    row = FitRow(
        kernel=curve.kernel,
        core_mhz=math.exp(time_mhz),
        mem_mhz=curve.mem_mhz,
        log_s=log_s,
        log_w=statistics.median(math.log(s.energy_j / s.time_s) for s in samples),
        temperature_c=statistics.median(warm) if warm else STEADY_C,
        time_windows=1.0 / (1.0 / len(samples) + moved**2),
        power_windows=0.0,
    )
    power = row._replace(
        core_mhz=math.exp(power_mhz),
        time_windows=0.0,
        power_windows=1.0 / (1.0 / len(samples) + moved_w**2),
    )
    # Between locks a clock may be anywhere, but for all kernels at the same end: no row of time.
    return [row, power] if read else [power]


def _ladder(settings: Sequence[Clocks], mem_mhz: float, auto_mem_mhz: float) -> tuple[Clocks, ...]:
    """Return one locked setting of each core clock at a memory clock, ascending."""
    core: dict[int, Clocks] = {}
    for clocks in settings:
        if clocks.core_mhz is not None and float(clocks.mem_mhz or auto_mem_mhz) == mem_mhz:
            core.setdefault(clocks.core_mhz, clocks)
    return tuple(core[mhz] for mhz in sorted(core))
