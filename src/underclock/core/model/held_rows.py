"""Rows of what the power cap, or heat, held below the clock that was asked for.

What is held runs at one clock between those it holds and the one asked for, and what was measured
is its time and its power there. Whoever looked read that clock to a bin; where time follows the
clock, the time tells it closer. So a group of such samples makes two rows: its time, at the clock
known without it, and its power, at the clock that the time makes of that. Together they say what
the samples do: p(t, P) = p(t)·p(P | t).

Shape letters: K kernels, C core clocks, G points of a grid.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from underclock.arrays import Floats
from underclock.core.model.laplace import FittedModel
from underclock.core.model.own_heat import STEADY_C, Warmth
from underclock.core.model.posterior import Posterior
from underclock.core.model.predictive import posterior_of
from underclock.core.model.rows import Row, Rows, held_back, held_at_auto, ran_mem_mhz
from underclock.core.steering.taking_off import reach_mhz
from underclock.records import Clocks, Sample, SampleSet

_FEWEST = 2  # clocks between which a curve can be drawn
_FAR_OFF = 5.0  # deviations from every clock it may have had: something else slowed it down
_POINTS = 65  # of the grid on which a clock is told
_BIN_MHZ = 15.0  # of recent GPUs: by so much a clock hunts that is read once


def held_rows(
    sample_set: SampleSet, model: FittedModel, settings: Sequence[Clocks]
) -> tuple[Row, ...]:
    """Return the rows of samples whose clock was held lower than was asked for.

    Args:
        sample_set: As measured.
        model: A fit of what is known without them, of the kernels of the step.
        settings: Clocks of the GPU.
    """
    # Where nothing could be locked, the clock was read all through each window already.
    if reach_mhz(sample_set) is not None:
        return ()
    fastest_mhz = float(model.rows.mem_points_mhz[-1])
    groups: dict[tuple[str, float, int | None], list[Sample]] = defaultdict(list)
    least: dict[tuple[str, float], float] = {}
    for sample in (*held_back(sample_set), *held_at_auto(sample_set)):
        seen = sample.observed.core_mhz if sample.observed else None
        own = sample.kernel, ran_mem_mhz(sample, fastest_mhz)
        groups[*own, seen].append(sample)
        asked_mhz = float(sample.asked.core_mhz or math.inf)
        least[own] = min(asked_mhz, least.get(own, math.inf))
    ladders = {mem_mhz: _ladder(settings, mem_mhz, fastest_mhz) for _, mem_mhz, _ in groups}
    posteriors = {
        mem_mhz: posterior_of(
            model, ladder, temperature_c=Warmth.own(sample_set), limit_w=math.inf
        )
        for mem_mhz, ladder in ladders.items()
        if len(ladder) >= _FEWEST
    }
    index = {kernel.name: k for k, kernel in enumerate(sample_set.kernels)}
    rows: list[Row] = []
    for (name, mem_mhz, seen_mhz), samples in groups.items():
        if mem_mhz not in posteriors:
            continue
        k, curve = index[name], _Curve.of(posteriors[mem_mhz], index[name])
        below_mhz = least[name, mem_mhz]
        clock = curve.clock(_held_mhz(model.rows, k, mem_mhz, below_mhz), below_mhz, seen_mhz)
        if clock is not None:
            rows += _two_rows(k, mem_mhz, samples, curve, clock, model.errors.noise)
    return tuple(rows)


class _Clock(NamedTuple):
    """What is known of a core clock: densities on a grid of its logarithm. Shapes (G,)."""

    log_mhz: Floats
    density: Floats

    def moments(self) -> tuple[float, float]:
        """Return the mean and the standard deviation of the logarithm."""
        mean = float(np.average(self.log_mhz, weights=self.density))
        variance = float(np.average((self.log_mhz - mean) ** 2, weights=self.density))
        return mean, math.sqrt(variance)


@dataclass(frozen=True, slots=True)
class _Curve:
    """What a fit expects of a kernel at the core clocks of one memory clock.

    Attributes:
        log_mhz: Ascending. Shape (C,).
        log: Of time and power. Shape (2, C).
        variance: Of log time. Shape (C,).
    """

    log_mhz: Floats
    log: Floats
    variance: Floats

    @classmethod
    def of(cls, posterior: Posterior, kernel: int) -> "_Curve":
        """Return the curve of a kernel, of a posterior at ascending clocks."""
        core_mhz = np.array([clocks.core_mhz for clocks in posterior.settings], dtype=np.float64)
        log = np.stack([posterior.log_s[kernel], posterior.log_w[kernel]])
        return cls(np.log(core_mhz), log, posterior.variance(1.0, 0.0)[kernel])

    def clock(
        self, held_mhz: float | None, asked_mhz: float, seen_mhz: float | None
    ) -> _Clock | None:
        """Say what is known of the clock of samples but for their time and power.

        Args:
            held_mhz: The highest that the kernel was seen to hold; ``None`` where none.
            asked_mhz: The lowest that it was seen not to hold.
            seen_mhz: As read once; ``None`` where nobody looked.

        Returns:
            ``None`` where nothing is known.
        """
        if held_mhz is None and seen_mhz is None:
            return None
        core_mhz = np.exp(self.log_mhz)
        near_mhz = seen_mhz or held_mhz or core_mhz[0]
        place = int(np.clip(np.searchsorted(core_mhz, near_mhz), 1, len(core_mhz) - 1))
        bin_mhz = max(_BIN_MHZ, float(core_mhz[place] - core_mhz[place - 1]))
        lowest = max(held_mhz or core_mhz[0], (seen_mhz or 0.0) - 4.0 * bin_mhz) - bin_mhz
        highest = min(asked_mhz, core_mhz[-1], (seen_mhz or math.inf) + 4.0 * bin_mhz) + bin_mhz
        if seen_mhz is not None:
            lowest, highest = min(lowest, seen_mhz), max(highest, seen_mhz)
        grid = np.linspace(lowest, highest, _POINTS)
        off = 0.0 if seen_mhz is None else (grid - seen_mhz) / bin_mhz
        return _Clock(np.log(grid), np.exp(-0.5 * np.square(off)) * np.ones(_POINTS))

    def told(self, clock: _Clock, log_s: float, variance: float) -> _Clock | None:
        """Return a clock of which a time tells too.

        Args:
            clock: As known without.
            log_s: Logarithm of the time.
            variance: Of that, by itself.

        Returns:
            ``None`` where the kernel takes as long at no such clock.
        """
        expected = np.interp(clock.log_mhz, self.log_mhz, self.log[0])
        unsure2 = np.interp(clock.log_mhz, self.log_mhz, self.variance) + variance
        off2 = (log_s - expected) ** 2 / unsure2
        if off2.min() > _FAR_OFF**2:
            return None
        likelihood = np.exp(-0.5 * (off2 - off2.min())) / np.sqrt(unsure2)
        return _Clock(clock.log_mhz, clock.density * likelihood)

    def exponent(self, quantity: int, log_mhz: float) -> float:
        """Return by how much time (0) or power (1) follows the clock."""
        return float(np.interp(log_mhz, self.log_mhz, np.gradient(self.log[quantity], self.log_mhz)))


def _two_rows(
    kernel: int,
    mem_mhz: float,
    samples: Sequence[Sample],
    curve: _Curve,
    clock: _Clock,
    noise: Floats,
) -> list[Row]:
    """Return the rows of samples at one clock: time, and power where time says they ran.

    Args:
        kernel: Index of their kernel.
        mem_mhz: At which they ran.
        samples: The samples.
        curve: What is expected of the kernel.
        clock: What is known of their clock without them.
        noise: Of a row of usual length. Shape (2,).
    """
    log_s = statistics.median(math.log(s.time_s) for s in samples)
    log_w = statistics.median(math.log(s.energy_j / s.time_s) for s in samples)
    warm = [s.temperature_c for s in samples if s.temperature_c is not None]
    told = curve.told(clock, log_s, float(noise[0] ** 2) / len(samples))
    if told is None:
        return []
    rows = []
    for quantity, at in enumerate((clock, told)):
        log_mhz, spread = at.moments()
        moved = curve.exponent(quantity, log_mhz) * spread / float(noise[quantity])
        windows = 1.0 / (1.0 / len(samples) + moved**2)
        rows.append(
            Row(
                kernel=kernel,
                core_mhz=math.exp(log_mhz),
                mem_mhz=mem_mhz,
                log_s=log_s,
                log_w=log_w,
                temperature_c=statistics.median(warm) if warm else STEADY_C,
                time_windows=windows if quantity == 0 else 0.0,
                power_windows=windows if quantity == 1 else 0.0,
            )
        )
    return rows


def _held_mhz(rows: Rows, kernel: int, mem_mhz: float, below_mhz: float) -> float | None:
    """Return the highest clock at which a kernel has a row, below another; ``None`` for none."""
    own = slice(*rows.bounds[kernel : kernel + 2])
    core_mhz = rows.core_mhz[own][rows.mem_mhz[own] == mem_mhz]
    core_mhz = core_mhz[core_mhz < below_mhz]
    return float(core_mhz.max()) if len(core_mhz) else None


def _ladder(
    settings: Sequence[Clocks], mem_mhz: float, fastest_mhz: float
) -> tuple[Clocks, ...]:
    """Return one locked setting of each core clock at a memory clock, ascending."""
    core: dict[int, Clocks] = {}
    for clocks in settings:
        if clocks.core_mhz is not None and float(clocks.mem_mhz or fastest_mhz) == mem_mhz:
            core.setdefault(clocks.core_mhz, clocks)
    return tuple(core[mhz] for mhz in sorted(core))
