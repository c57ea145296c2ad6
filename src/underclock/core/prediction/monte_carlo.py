"""Monte Carlo draws of the kernels and GPUs that runs at auto clocks leave possible.

One run tells a kernel's time and power, and little of what other clocks would do to them. The rest
is drawn from a hierarchical prior. A kernel's time shares come from reference kernels, those of
like power more often. The GPU's shared constants vary round the known ones; constants under which
an idle GPU draws more than a kernel did at work are drawn less often. Every draw reproduces the
runs.

The reference kernels are a sample themselves, so each draw weighs them anew (a Bayesian
bootstrap), alike for all kernels of a step: else an odd population would make a step of many
kernels seem well known. For the same reason each draw lets the references' fixed time count more
or less, for it is that of other programs.

Shape letters: D draws, K kernels, S settings, N reference kernels.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats
from underclock.core.prediction.extrapolation import AskedClocks, DrawnKernel, ratios_to_run
from underclock.core.prediction.prior import (
    BaselineRun,
    LogDeviations,
    Prior,
    ReferenceKernel,
    steady_c,
)
from underclock.core.prediction.time_shares import (
    BUSIEST_DRAM,
    OperatingPoint,
    TimeShares,
    kernel_with_shares,
    shares_from_dram,
)
from underclock.physics.constants import GpuConstants
from underclock.physics.costs import boost_mhz, idle_w
from underclock.records import Clocks

_CANDIDATES = 12  # shared constants looked at for each draw
_ALIKE = 0.3  # logarithms of power closer than this make kernels alike
_UNLIKE = 0.1  # weight of a kernel that is not
_JITTER = 0.6  # of the logarithm of each time share: no kernel is just like a reference
_MOST_NOVEL = 0.3  # at most this part of kernels is like no reference
_ANY_SHARES = (0.5, 0.5, 0.5)  # of a Dirichlet distribution: often one share is nearly all
_STRANGE = 0.25  # of draws: the step's kernels are like those of no sweep, but like one another
_LEAST_SHARE = 0.01  # a share may be next to nothing
# Precision of the Dirichlet distribution of their shares: quite unlike, to nearly the same.
_ALIKE_STRANGERS = (3.0, 300.0)
_BUSIEST = 0.04  # relative spread of what counts as fully busy DRAM
_COUNTED = 0.03  # and of one counter reading
_AT_REST = 0.95  # a GPU at work draws no less than this at rest; a little for the sensors
_OVER = 0.05  # weighs how far above it does
_SLOWEST = 0.6  # a capped clock that nobody read is above this part of boost
_MOST_FIXED = 0.98
# What memory bounds still follows the core a little: caches and crossbar. Assumed.
_LEAST_CORE = (1e-4, 0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostDraws:
    """Costs of kernels at settings, over those of their run, in every draw.

    Attributes:
        time: Shape (D, K, S).
        energy: Shape (D, K, S).
    """

    time: Floats
    energy: Floats


def draw_costs(
    prior: Prior,
    runs: Sequence[BaselineRun],
    settings: Sequence[Clocks],
    *,
    draws: int,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> CostDraws:
    """Draw what kernels may cost at other clocks.

    Args:
        prior: What is known of the GPU.
        runs: One of each kernel. Length K.
        settings: The other clocks. Length S.
        draws: How many.
        seed: Of the draws.
        progress: Told which share of the draws is done.
    """
    random = np.random.default_rng(seed)
    asked = AskedClocks.of(settings)
    time = np.empty((draws, len(runs), len(settings)))
    energy = np.empty_like(time)
    likeness = np.stack([_likeness(prior, run) for run in runs])
    for d in range(draws):
        shared = _SharedDraw.draw(prior, runs, random)
        for k, run in enumerate(runs):
            weight = likeness[k] * shared.hyper.popularity
            n = int(random.choice(len(weight), p=weight / weight.sum()))
            kernel = _draw_kernel(prior, shared, prior.references[n], run, random)
            ratios = ratios_to_run(shared.gpu, kernel, asked)
            time[d, k] = ratios.time * shared.time_factor
            energy[d, k] = ratios.energy * shared.time_factor * shared.power_factor
        if progress is not None:
            progress((d + 1) / draws)
    return CostDraws(time=time, energy=energy)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hyperparameters:
    """What the kernels of one draw have in common, as the upper level of the prior.

    Attributes:
        popularity: Weights of the reference kernels. Shape (N,).
        novel: Part of kernels that are like no reference, 0 to 1.
        strange: Parameters of the Dirichlet distribution of the shares of core, DRAM and fixed
            time, where the step's kernels are like those of no sweep; ``None`` where they are like
            some.
        fixed_scale: The references' fixed time counts this much, 0 to 1.
        least_core: No kernel that memory bounds follows the core less than this.
        busiest_dram: What counters show of DRAM that is fully busy.
        xbar: Part of a memory-bound kernel's core time that is the crossbar's, 0 to 1.
    """

    popularity: Floats
    novel: float
    strange: Floats | None
    fixed_scale: float
    least_core: float
    busiest_dram: float
    xbar: float

    @classmethod
    def draw(cls, prior: Prior, random: np.random.Generator) -> "_Hyperparameters":
        strange = random.uniform() > (1.0 - _STRANGE) / prior.off
        return cls(
            popularity=_popularity(prior.references, random),
            strange=_strange(random) if strange else None,
            novel=_MOST_NOVEL * float(random.uniform()),
            fixed_scale=math.sqrt(float(random.uniform())),
            least_core=math.exp(float(random.uniform(*np.log(_LEAST_CORE)))),
            busiest_dram=BUSIEST_DRAM * _factor(_BUSIEST, random),
            xbar=float(random.uniform()),
        )


def _popularity(references: Sequence[ReferenceKernel], random: np.random.Generator) -> Floats:
    """Weigh sweeps, and kernels within each: a step may be like one sweep only. Shape (N,)."""
    sources = [reference.source for reference in references]
    weight = np.empty(len(references))
    every = sorted(set(sources))
    for source, share in zip(every, random.dirichlet(np.ones(len(every))), strict=True):
        mine = [n for n, each in enumerate(sources) if each == source]
        weight[mine] = share * random.dirichlet(np.ones(len(mine)))
    return weight


def _strange(random: np.random.Generator) -> Floats:
    """Draw how the shares of kernels that are like those of no sweep are distributed."""
    precision = math.exp(float(random.uniform(*np.log(_ALIKE_STRANGERS))))
    mean: Floats = random.dirichlet(_ANY_SHARES)
    return precision * mean + _LEAST_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class _SharedDraw:
    """What all kernels of one draw share.

    Attributes:
        gpu: The GPU's constants.
        dram_j_per_mcycle: Energy of DRAM traffic.
        hyper: What kernels have in common.
        time_factor: Of every kernel's time away from its run, for what the model leaves out.
        power_factor: Of every kernel's power away from its run, for the same reason.
    """

    gpu: GpuConstants
    dram_j_per_mcycle: float
    hyper: _Hyperparameters
    time_factor: float
    power_factor: float

    @classmethod
    def draw(
        cls, prior: Prior, runs: Sequence[BaselineRun], random: np.random.Generator
    ) -> "_SharedDraw":
        # The order of these draws decides what a seed gives.
        deviations = prior.deviations.times(prior.off)
        return cls(
            gpu=_draw_gpu(prior, runs, random),
            dram_j_per_mcycle=prior.dram_j_per_mcycle * _factor(deviations.traffic, random),
            hyper=_Hyperparameters.draw(prior, random),
            time_factor=_factor(deviations.time, random),
            power_factor=_factor(deviations.power, random),
        )


def _factor(deviation: float, random: np.random.Generator) -> float:
    return math.exp(deviation * float(random.standard_normal()))


def _temperature_c(gpu: GpuConstants, run: BaselineRun) -> float:
    return steady_c(gpu, run.power_w) if run.temperature_c is None else run.temperature_c


def _draw_gpu(
    prior: Prior, runs: Sequence[BaselineRun], random: np.random.Generator
) -> GpuConstants:
    """Draw some candidates for the shared constants, and pick one that the runs leave possible."""
    deviations = prior.deviations.times(prior.off)
    candidates = [vary(prior.gpu, deviations, random) for _ in range(_CANDIDATES)]
    excess = np.array([_excess_at_rest(gpu, runs) for gpu in candidates]) / _OVER
    weight = np.exp(-0.5 * (excess**2 - excess.min() ** 2))
    return candidates[int(random.choice(len(weight), p=weight / weight.sum()))]


def vary(gpu: GpuConstants, deviations: LogDeviations, random: np.random.Generator) -> GpuConstants:
    """Draw constants around known ones."""
    rise, memory = _factor(deviations.rise, random), _factor(deviations.memory, random)
    slower = [e * _factor(deviations.efficiency, random) for e in gpu.mem_points_efficiency[:-1]]
    return dataclasses.replace(
        gpu,
        exponent=gpu.exponent * _factor(deviations.exponent, random),
        knee_mhz=gpu.knee_mhz * _factor(deviations.knee, random),
        slope_v_per_mhz=gpu.slope_v_per_mhz * rise,
        bend_v_per_mhz2=gpu.bend_v_per_mhz2 * rise,
        leak_w_per_v3=gpu.leak_w_per_v3 * _factor(deviations.leak, random),
        clock_w_per_ghz_v2=gpu.clock_w_per_ghz_v2 * _factor(deviations.clock, random),
        board_w=gpu.board_w * _factor(deviations.board, random),
        mem_points_w=tuple(w * memory for w in gpu.mem_points_w),
        mem_points_efficiency=(*slower, gpu.mem_points_efficiency[-1]),
    )


def _excess_at_rest(gpu: GpuConstants, runs: Sequence[BaselineRun]) -> float:
    """Return by how much a GPU at rest would draw more than kernels did; mean of logarithms."""
    power_w = np.array([run.power_w for run in runs])
    return float(np.maximum(0.0, np.log(least_at_rest_w(gpu, runs) / power_w)).mean())


def least_at_rest_w(gpu: GpuConstants, runs: Sequence[BaselineRun]) -> Floats:
    """Return the least power in W that a GPU at rest can draw where kernels ran. Shape (K,)."""
    warm_c = np.array([_temperature_c(gpu, run) for run in runs])
    core_mhz = np.array([_slowest_mhz(gpu, run) for run in runs])
    mem_mhz = np.array([run.mem_mhz for run in runs])
    rest_w: Floats = idle_w(gpu, core_mhz, mem_mhz, warm_c) / _AT_REST
    return rest_w


def _slowest_mhz(gpu: GpuConstants, run: BaselineRun) -> float:
    """Return the least core clock a run may have had."""
    if run.core_mhz is not None:
        return run.core_mhz
    return (_SLOWEST if run.capped else 1.0) * boost_mhz(gpu, _temperature_c(gpu, run))


def _likeness(prior: Prior, run: BaselineRun) -> Floats:
    """Weigh reference kernels by how near their power is to a run's. Shape (N,)."""
    power_shares = np.array([reference.power_share for reference in prior.references])
    distance = np.log(power_shares * prior.limit_w / run.power_w) / _ALIKE
    weight: Floats = np.exp(-0.5 * distance**2) + _UNLIKE
    return weight


def _draw_kernel(
    prior: Prior,
    shared: _SharedDraw,
    reference: ReferenceKernel,
    run: BaselineRun,
    random: np.random.Generator,
) -> DrawnKernel:
    """Draw a kernel that reproduces a run, with time shares near those of a reference."""
    gpu = shared.gpu
    shares = _draw_shares(shared, reference.shares, run, random)
    warm_c = _temperature_c(gpu, run)
    point = OperatingPoint(
        time_s=run.time_s,
        power_w=run.power_w,
        core_mhz=_draw_core_mhz(gpu, run, warm_c, random),
        mem_mhz=run.mem_mhz,
        temperature_c=warm_c,
    )
    return DrawnKernel(
        constants=kernel_with_shares(gpu, shares, point, shared.dram_j_per_mcycle),
        run=run,
        point=point,
        limit_w=run.power_w if run.capped else max(prior.limit_w, run.power_w),
    )


def _draw_shares(
    shared: _SharedDraw, like: TimeShares, run: BaselineRun, random: np.random.Generator
) -> TimeShares:
    """Draw time shares near those of a reference; DRAM's as counted where it was."""
    hyper = shared.hyper
    shares = np.array([like.core + like.xbar, like.dram, hyper.fixed_scale * like.fixed])
    shares *= np.exp(_JITTER * random.standard_normal(3))
    if hyper.strange is not None:
        shares = random.dirichlet(hyper.strange)
    if random.uniform() < hyper.novel:
        shares = random.dirichlet(_ANY_SHARES)
    core, dram, fixed = (shares / shares.sum()).tolist()
    if run.utilisation is not None:
        utilisation = run.utilisation
        # While a unit is busy, its clock counts.
        busy = max(utilisation.tensor, utilisation.fp32, utilisation.dram)
        counted = shares_from_dram(
            shared.gpu,
            dram_busy=min(1.0, utilisation.dram / hyper.busiest_dram * _factor(_COUNTED, random)),
            fixed=min(fixed, _MOST_FIXED, max(0.0, 1.0 - busy)),
            serial=like.serial,
        )
        core, dram, fixed = counted.core, counted.dram, counted.fixed
    moving = core + dram
    core = max(core, hyper.least_core * moving)
    dram = moving - core
    xbar = core * hyper.xbar * dram / moving if moving > 0 else 0.0
    return TimeShares(core=core - xbar, dram=dram, xbar=xbar, fixed=fixed, serial=like.serial)


def _draw_core_mhz(
    gpu: GpuConstants, run: BaselineRun, warm_c: float, random: np.random.Generator
) -> float:
    """Return the core clock of a run: as read, or as it may have been."""
    if run.core_mhz is not None:
        return run.core_mhz
    highest = boost_mhz(gpu, warm_c)
    return highest * float(random.uniform(_SLOWEST, 1.0)) if run.capped else highest
