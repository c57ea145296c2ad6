"""The prior of a prediction: what is known of a GPU before its kernels are measured.

It holds the GPU's shared constants, how far off they may be, and reference kernels whose time
shares stand for those of kernels nobody measured at other clocks. What was measured at auto clocks
checks it: a kernel may draw less than the GPU would at rest, or the clocks may be others. By how
much more the prior is off than it allows for, its deviations grow.

Shape letters: N reference kernels, K kernels.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats
from underclock.physics.cap import capped_core_mhz
from underclock.physics.constants import GpuConstants, KernelConstants
from underclock.physics.costs import boost_mhz, busy_w, dram_mhz, idle_w, xbar_mhz
from underclock.records import Utilisation

BUSIEST_DRAM = 0.93
"""Utilisation of a plain copy; nothing measured goes beyond about this."""
_AT_REST = 0.95  # a GPU at work draws no less than this at rest; a little for the sensors
SLOWEST = 0.6
"""A capped clock that nobody read is above this part of boost."""
_DRAWS = 40
_USUAL_CHECKS = 2.0  # a prior is believed in as if so many checks had gone as expected
_WORST = 10.0  # deviations; beyond them a check tells more of itself than of the prior
_CLOCK = 0.03  # relative deviation of boost and memory clocks among boards of one model


Deviations = Mapping[str, float]
"""Standard deviations of the logarithms of shared constants, by what they are of."""

FITTED: Deviations = {
    "exponent": 0.1,  # of the p-norm
    "knee": 0.04,  # the clock above which voltage rises
    "rise": 0.2,  # how steeply it rises
    "leak": 0.3,
    "clock": 0.3,  # power of the clock tree
    "board": 0.3,  # power that no clock changes
    "memory": 0.15,  # power without traffic
    "traffic": 0.3,  # its energy
    "efficiency": 0.03,  # bytes per cycle at slower memory clocks
    # Of time and power at other clocks than the run's, for all that these constants do not say.
    # Where nothing may be slower, the first decides which clocks are.
    "time": 0.006,
    "power": 0.02,
}
"""For constants that were fitted to a sweep: about what fits to other kernels of it differ by."""
PUBLISHED: Deviations = {
    "exponent": 0.4,
    "knee": 0.12,
    "rise": 0.6,
    "leak": 0.6,
    "clock": 0.6,
    "board": 0.5,
    "memory": 0.4,
    "traffic": 0.6,
    "efficiency": 0.15,
    "time": 0.006,
    "power": 0.02,
}
"""For published figures: about what fits to sweeps differ by from the figures they began with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShares:
    """What a kernel's time follows at one pair of clocks; the shares add to 1.

    Each share is an elasticity: with a core share of 0.7, a core clock 1 % slower costs 0.7 % of
    time. Unlike cycles, shares can be carried to another GPU or another kernel.
    """

    core: float
    """Follows the core clock."""
    dram: float
    """Follows the memory clock."""
    xbar: float = 0.0
    """Follows the crossbar's clock, which follows the core above a floor."""
    fixed: float
    """Follows no clock."""
    serial: bool = False
    """Whether core and memory shares add, as in `KernelConstants`."""

    def __post_init__(self) -> None:
        shares = (self.core, self.dram, self.xbar, self.fixed)
        if min(shares) < 0 or not math.isclose(sum(shares), 1.0, abs_tol=1e-6):
            raise ValueError(f"time shares must add to 1 and not be negative, got {shares}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceKernel:
    """A kernel whose sweep is known.

    Attributes:
        shares: Its time shares at auto clocks.
        power_share: Its power at auto clocks over the power limit.
        source: The sweep it was measured in: kernels of one sweep are more alike than others.
    """

    shares: TimeShares
    power_share: float
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is known of a GPU before anything is measured.

    Attributes:
        references: Kernels that are known, of this GPU or of others. Length N.
        limit_w: Power at which a capped GPU settles.
        off: By how much samples lie further from it than it allows for; 1 for what it says.
    """

    gpu: GpuConstants
    deviations: Deviations
    references: tuple[ReferenceKernel, ...]
    dram_j_per_mcycle: float
    limit_w: float
    off: float = 1.0

    @property
    def widened(self) -> Deviations:
        """The deviations, greater by as much as samples ask for."""
        return {name: self.off * each for name, each in self.deviations.items()}

    def __post_init__(self) -> None:
        if not self.references:
            raise ValueError("without reference kernels nothing can be said of others")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRun:
    """What one kernel did at the baseline clocks.

    Attributes:
        temperature_c: ``None`` where nobody read it.
        capped: Whether it was at the power cap.
        locked: Whether its core clock was held rather than auto.
        utilisation: ``None`` where there were no counters.
    """

    time_s: float
    power_w: float
    core_mhz: float | None
    mem_mhz: float
    temperature_c: float | None = None
    capped: bool = False
    locked: bool = False
    utilisation: Utilisation | None = None


def time_shares(
    gpu: GpuConstants, kernel: KernelConstants, core_mhz: float, mem_mhz: float
) -> TimeShares:
    """Return a kernel's time shares at given clocks."""
    core_s = kernel.core_mcycles / core_mhz
    dram_s = kernel.dram_mcycles / float(dram_mhz(gpu, mem_mhz))
    xbar_s = kernel.xbar_mcycles / float(xbar_mhz(gpu, core_mhz))
    n = 1.0 if kernel.serial else gpu.exponent
    longest_s = max(core_s, dram_s, xbar_s)
    if longest_s == 0:
        return TimeShares(core=0.0, dram=0.0, fixed=1.0, serial=kernel.serial)
    core, dram, xbar = ((part_s / longest_s) ** n for part_s in (core_s, dram_s, xbar_s))
    moving_s = longest_s * (core + dram + xbar) ** (1.0 / n)
    fixed = kernel.fixed_s / (moving_s + kernel.fixed_s)
    scale = (1.0 - fixed) / (core + dram + xbar)
    return TimeShares(
        core=scale * core,
        dram=scale * dram,
        xbar=scale * xbar,
        fixed=fixed,
        serial=kernel.serial,
    )


def reference_kernels(
    gpu: GpuConstants,
    kernels: Iterable[KernelConstants],
    bins_mhz: Floats,
    limit_w: float,
    source: str = "",
) -> tuple[ReferenceKernel, ...]:
    """Describe fitted kernels as they run at auto clocks.

    Args:
        bins_mhz: Core clocks of that GPU, ascending.
    """
    mem_mhz = gpu.mem_points_mhz[-1]
    hot_c = steady_c(gpu, limit_w)
    references = []
    for kernel in kernels:
        core_mhz = capped_core_mhz(gpu, kernel, bins_mhz, mem_mhz, hot_c, limit_w)
        drawn_w = float(busy_w(gpu, kernel, core_mhz, mem_mhz, hot_c))
        shares = time_shares(gpu, kernel, core_mhz, mem_mhz)
        references.append(
            ReferenceKernel(shares=shares, power_share=drawn_w / limit_w, source=source)
        )
    return tuple(references)


def steady_c(gpu: GpuConstants, power_w: float) -> float:
    """Return the temperature in °C that a GPU settles at under a power."""
    return gpu.ambient_c + gpu.c_per_w * power_w


def vary(gpu: GpuConstants, deviations: Deviations, random: np.random.Generator) -> GpuConstants:
    """Draw constants around known ones."""
    rise, memory = factor(deviations["rise"], random), factor(deviations["memory"], random)
    slower = [e * factor(deviations["efficiency"], random) for e in gpu.mem_points_efficiency[:-1]]
    return dataclasses.replace(
        gpu,
        exponent=gpu.exponent * factor(deviations["exponent"], random),
        knee_mhz=gpu.knee_mhz * factor(deviations["knee"], random),
        slope_v_per_mhz=gpu.slope_v_per_mhz * rise,
        bend_v_per_mhz2=gpu.bend_v_per_mhz2 * rise,
        leak_w_per_v3=gpu.leak_w_per_v3 * factor(deviations["leak"], random),
        clock_w_per_ghz_v2=gpu.clock_w_per_ghz_v2 * factor(deviations["clock"], random),
        board_w=gpu.board_w * factor(deviations["board"], random),
        mem_points_w=tuple(w * memory for w in gpu.mem_points_w),
        mem_points_efficiency=(*slower, gpu.mem_points_efficiency[-1]),
    )


def factor(deviation: float, random: np.random.Generator) -> float:
    """Draw a factor whose logarithm has a deviation."""
    return math.exp(deviation * float(random.standard_normal()))


def least_at_rest_w(gpu: GpuConstants, runs: Sequence[BaselineRun]) -> Floats:
    """Return the least power in W that a GPU at rest can draw where kernels ran. Shape (K,)."""
    warm_c = np.array([warmth_c(gpu, run) for run in runs])
    core_mhz = np.array([_slowest_mhz(gpu, run) for run in runs])
    mem_mhz = np.array([run.mem_mhz for run in runs])
    rest_w: Floats = idle_w(gpu, core_mhz, mem_mhz, warm_c) / _AT_REST
    return rest_w


def _slowest_mhz(gpu: GpuConstants, run: BaselineRun) -> float:
    """Return the least core clock a run may have had."""
    if run.core_mhz is not None:
        return run.core_mhz
    return (SLOWEST if run.capped else 1.0) * boost_mhz(gpu, warmth_c(gpu, run))


def warmth_c(gpu: GpuConstants, run: BaselineRun) -> float:
    """Return the temperature of a run in °C: as read, or as its power makes it."""
    return steady_c(gpu, run.power_w) if run.temperature_c is None else run.temperature_c


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictiveCheck:
    """How far something measured is from where the prior said.

    Attributes:
        deviations: As many of the prior's own standard deviations.
        words: What was seen, and what the prior said.
    """

    deviations: float
    words: str


def checks_of(prior: Prior, runs: Sequence[BaselineRun], seed: int) -> tuple[PredictiveCheck, ...]:
    """Check a prior by what was measured at the baseline."""
    return (_rest(prior, runs, np.random.default_rng([seed, 1])), *_clocks(prior, runs))


def prior_widening(checks: Sequence[PredictiveCheck]) -> float:
    """Return by how much more a prior is off than it allows for; 1 or more."""
    squares = math.fsum(min(check.deviations, _WORST) ** 2 for check in checks)
    return max(1.0, math.sqrt((_USUAL_CHECKS + squares) / (_USUAL_CHECKS + len(checks))))


def _rest(
    prior: Prior, runs: Sequence[BaselineRun], random: np.random.Generator
) -> PredictiveCheck:
    """Check that no kernel draws less than the GPU at rest."""
    deviations = prior.widened
    rest_w = np.array(
        [least_at_rest_w(vary(prior.gpu, deviations, random), runs) for _ in range(_DRAWS)]
    )
    drawn_w = np.array([run.power_w for run in runs])
    above = np.log(rest_w / drawn_w)
    away = above.mean(axis=0) / above.std(axis=0)
    k = int(away.argmax())
    return PredictiveCheck(
        deviations=max(0.0, float(away[k])),
        words=(
            f"a kernel drew {drawn_w[k]:.3g} W, and the GPU would draw about "
            f"{float(np.median(rest_w[:, k])):.3g} W at rest"
        ),
    )


def _clocks(prior: Prior, runs: Sequence[BaselineRun]) -> Iterator[PredictiveCheck]:
    """Check that clocks left to the driver are those that it would choose."""
    free = [
        (run.core_mhz, boost_mhz(prior.gpu, run.temperature_c))
        for run in runs
        if not (run.capped or run.locked or run.core_mhz is None or run.temperature_c is None)
    ]
    points = np.array(prior.gpu.mem_points_mhz)
    nearest = [float(points[np.abs(np.log(points / run.mem_mhz)).argmin()]) for run in runs]
    memory = [(run.mem_mhz, mhz) for run, mhz in zip(runs, nearest, strict=True) if not run.locked]
    for what, pairs in (("core", free), ("memory", memory)):
        if pairs:
            seen, said = np.median(np.array(pairs), axis=0).tolist()
            yield PredictiveCheck(
                deviations=abs(math.log(seen / said)) / (_CLOCK * prior.off),
                words=f"the {what} ran at {seen:.0f} MHz, and was said to run at {said:.0f}",
            )
