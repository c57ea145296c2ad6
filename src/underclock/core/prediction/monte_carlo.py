"""The kernels and GPUs that runs at auto clocks leave possible, drawn at random.

One run tells a kernel's time and power, and little of what other clocks would do to them. The rest
is drawn: how its time splits, from kernels that are known, those of like power more often; what
the GPU's shared constants are, from a spread around the known ones, what draws more at rest than a
kernel did at work less often. Every draw reproduces the runs. The known kernels are a sample
themselves, so each draw weighs them anew (a Bayesian bootstrap), alike for all kernels of a step:
else an odd population would make a step of many kernels seem well known. For the same reason each
draw lets the known kernels' fixed time count more or less: it is that of other programs.

Shape letters: D draws, K kernels, S settings, N known kernels.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats
from underclock.core.prediction.prior import Known, Run, Spread, steady_c
from underclock.core.prediction.time_shares import (
    BUSIEST_DRAM,
    Seen,
    Split,
    kernel_of_split,
    split_of_dram_share,
)
from underclock.physics.cap import capped_core_mhz
from underclock.physics.constants import GpuConstants, KernelConstants
from underclock.physics.power import busy_w, idle_w
from underclock.physics.thermal import boost_mhz
from underclock.physics.timing import duration_s

_CANDIDATES = 12  # shared constants looked at for each draw
_ALIKE = 0.3  # logarithms of power closer than this make kernels alike
_UNLIKE = 0.1  # weight of a kernel that is not
_JITTER = 0.6  # of the logarithm of each part of a split: no kernel is just like a known one
_STRANGE = 0.3  # at most this part of kernels is like none that is known
_ANY_SPLIT = (0.5, 0.5, 0.5)  # of a Dirichlet distribution: often one part is nearly all
_BUSIEST = 0.04  # relative spread of what counts as fully busy DRAM
_COUNTED = 0.03  # and of one counter reading
_AT_REST = 0.95  # a GPU at work draws no less than this at rest; a little for the sensors
_OVER = 0.05  # weighs how far above it does
_SLOWEST = 0.6  # a capped clock that nobody read is above this part of boost
_MOST_FIXED = 0.98
# What memory bounds still follows the core a little: caches and crossbar. Assumed.
_LEAST_CORE = (0.003, 0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Possible:
    """Costs of kernels at settings, over those of their run, in every draw.

    Attributes:
        time: Shape (D, K, S).
        energy: Shape (D, K, S).
    """

    time: Floats
    energy: Floats


def possible(
    known: Known,
    runs: Sequence[Run],
    core_mhz: Floats,
    mem_mhz: Floats,
    *,
    draws: int,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> Possible:
    """Draw what kernels may cost at other clocks.

    Args:
        known: What is known of the GPU.
        runs: One of each kernel. Length K.
        core_mhz: Core clock of each setting; ``nan`` is auto. Shape (S,).
        mem_mhz: Memory clock, likewise.
        draws: How many.
        seed: Of the draws.
        progress: Told which share of the draws is done.
    """
    random = np.random.default_rng(seed)
    time = np.empty((draws, len(runs), len(core_mhz)))
    energy = np.empty_like(time)
    alike = np.stack([_alike(known, run) for run in runs])
    for d in range(draws):
        gpu = _draw_gpu(known, runs, random)
        traffic_j = known.dram_j_per_mcycle * _factor(known.spread.traffic, random)
        habits = _Habits.draw(known, random)
        off = _factor(known.spread.time, random), _factor(known.spread.power, random)
        for k, run in enumerate(runs):
            weight = alike[k] * habits.popular
            n = random.choice(len(weight), p=weight / weight.sum())
            split = _draw_split(gpu, known.members[int(n)].split, run, habits, random)
            warm_c = _temperature_c(gpu, run)
            ran_mhz = _draw_core_mhz(gpu, run, warm_c, random)
            kernel = kernel_of_split(
                gpu,
                split,
                Seen(
                    time_s=run.time_s,
                    power_w=run.power_w,
                    core_mhz=ran_mhz,
                    mem_mhz=run.mem_mhz,
                    temperature_c=warm_c,
                ),
                traffic_j,
            )
            limit_w = run.power_w if run.capped else max(known.limit_w, run.power_w)
            shorter, less = _against_run(
                gpu, kernel, run, (ran_mhz, warm_c, limit_w), core_mhz, mem_mhz
            )
            time[d, k], energy[d, k] = shorter * off[0], less * off[0] * off[1]
        if progress is not None:
            progress((d + 1) / draws)
    return Possible(time=time, energy=energy)


@dataclass(frozen=True, slots=True)
class _Habits:
    """What all kernels of one draw share, beside the GPU.

    Attributes:
        popular: How common known kernels are. Shape (N,).
        strange: Part of kernels that are like none that is known, 0 to 1.
        still: Their fixed time counts this much, 0 to 1.
        least_core: No kernel that memory bounds follows the core less than this.
        busiest: What counters show of DRAM that is fully busy.
        xbar: Part of a memory-bound kernel's core time that is the crossbar's, 0 to 1.
    """

    popular: Floats
    strange: float
    still: float
    least_core: float
    busiest: float
    xbar: float

    @classmethod
    def draw(cls, known: Known, random: np.random.Generator) -> "_Habits":
        return cls(
            popular=random.dirichlet(np.ones(len(known.members))),
            strange=_STRANGE * float(random.uniform()),
            still=math.sqrt(float(random.uniform())),
            least_core=math.exp(float(random.uniform(*np.log(_LEAST_CORE)))),
            busiest=BUSIEST_DRAM * _factor(_BUSIEST, random),
            xbar=float(random.uniform()),
        )


def _factor(deviation: float, random: np.random.Generator) -> float:
    return math.exp(deviation * float(random.standard_normal()))


def _temperature_c(gpu: GpuConstants, run: Run) -> float:
    return steady_c(gpu, run.power_w) if run.temperature_c is None else run.temperature_c


def _draw_gpu(known: Known, runs: Sequence[Run], random: np.random.Generator) -> GpuConstants:
    """Draw shared constants; of some candidates one that the runs leave possible."""
    candidates = [_vary(known.gpu, known.spread, random) for _ in range(_CANDIDATES)]
    over = np.array([_over(gpu, runs) for gpu in candidates]) / _OVER
    weight = np.exp(-0.5 * (over**2 - over.min() ** 2))
    return candidates[int(random.choice(len(weight), p=weight / weight.sum()))]


def _vary(gpu: GpuConstants, spread: Spread, random: np.random.Generator) -> GpuConstants:
    rise, memory = _factor(spread.rise, random), _factor(spread.memory, random)
    slower = [e * _factor(spread.efficiency, random) for e in gpu.mem_points_efficiency[:-1]]
    return dataclasses.replace(
        gpu,
        exponent=gpu.exponent * _factor(spread.exponent, random),
        knee_mhz=gpu.knee_mhz * _factor(spread.knee, random),
        slope_v_per_mhz=gpu.slope_v_per_mhz * rise,
        bend_v_per_mhz2=gpu.bend_v_per_mhz2 * rise,
        leak_w_per_v3=gpu.leak_w_per_v3 * _factor(spread.leak, random),
        clock_w_per_ghz_v2=gpu.clock_w_per_ghz_v2 * _factor(spread.clock, random),
        board_w=gpu.board_w * _factor(spread.board, random),
        mem_points_w=tuple(w * memory for w in gpu.mem_points_w),
        mem_points_efficiency=(*slower, gpu.mem_points_efficiency[-1]),
    )


def _over(gpu: GpuConstants, runs: Sequence[Run]) -> float:
    """Return by how much clocks alone would draw more than kernels did; mean of logarithms."""
    warm_c = np.array([_temperature_c(gpu, run) for run in runs])
    core_mhz = np.array([_slowest_mhz(gpu, run) for run in runs])
    mem_mhz = np.array([run.mem_mhz for run in runs])
    power_w = np.array([run.power_w for run in runs])
    rest_w = idle_w(gpu, core_mhz, mem_mhz, warm_c)
    return float(np.maximum(0.0, np.log(rest_w / (_AT_REST * power_w))).mean())


def _slowest_mhz(gpu: GpuConstants, run: Run) -> float:
    """Return the least core clock a run may have had."""
    if run.core_mhz is not None:
        return run.core_mhz
    return (_SLOWEST if run.capped else 1.0) * boost_mhz(gpu, _temperature_c(gpu, run))


def _alike(known: Known, run: Run) -> Floats:
    """Weigh known kernels by how like their power is. Shape (N,)."""
    shares = np.array([member.power_share for member in known.members])
    apart = np.log(shares * known.limit_w / run.power_w) / _ALIKE
    weight: Floats = np.exp(-0.5 * apart**2) + _UNLIKE
    return weight


def _draw_split(
    gpu: GpuConstants, like: Split, run: Run, habits: _Habits, random: np.random.Generator
) -> Split:
    """Draw a split: near that of a known kernel, its DRAM part as counted where it was."""
    parts = np.array([like.core + like.xbar, like.dram, habits.still * like.fixed])
    parts *= np.exp(_JITTER * random.standard_normal(3))
    if random.uniform() < habits.strange:
        parts = random.dirichlet(_ANY_SPLIT)
    core, dram, fixed = (parts / parts.sum()).tolist()
    if run.utilisation is not None:
        seen = run.utilisation
        # While a part is busy, a clock counts.
        busy = max(seen.tensor, seen.fp32, seen.dram)
        counted = split_of_dram_share(
            gpu,
            dram_share=min(1.0, seen.dram / habits.busiest * _factor(_COUNTED, random)),
            fixed=min(fixed, _MOST_FIXED, max(0.0, 1.0 - busy)),
            serial=like.serial,
        )
        core, dram, fixed = counted.core, counted.dram, counted.fixed
    moving = core + dram
    core = max(core, habits.least_core * moving)
    dram = moving - core
    xbar = core * habits.xbar * dram / moving if moving > 0 else 0.0
    return Split(core=core - xbar, dram=dram, xbar=xbar, fixed=fixed, serial=like.serial)


def _draw_core_mhz(
    gpu: GpuConstants, run: Run, warm_c: float, random: np.random.Generator
) -> float:
    """Return the core clock of a run: as read, or as it may have been."""
    if run.core_mhz is not None:
        return run.core_mhz
    highest = boost_mhz(gpu, warm_c)
    return highest * float(random.uniform(_SLOWEST, 1.0)) if run.capped else highest


def _against_run(
    gpu: GpuConstants,
    kernel: KernelConstants,
    run: Run,
    at: tuple[float, float, float],
    asked_mhz: Floats,
    mem_asked_mhz: Floats,
) -> tuple[Floats, Floats]:
    """Return time and energy at settings over those of the run. Shapes (S,).

    Args:
        gpu: Shared constants.
        kernel: Its constants.
        run: The run.
        at: Its core clock, its temperature and the power limit.
        asked_mhz: Core clocks; ``nan`` is auto. Shape (S,).
        mem_asked_mhz: Memory clocks, likewise.
    """
    ran_mhz, warm_c, limit_w = at
    boost = boost_mhz(gpu, warm_c)
    auto_mhz = max(ran_mhz, boost) if run.capped else ran_mhz
    core_mhz = np.where(np.isnan(asked_mhz), auto_mhz, asked_mhz)
    if not run.locked:
        core_mhz = np.minimum(core_mhz, auto_mhz)
    mem_mhz = np.where(np.isnan(mem_asked_mhz), run.mem_mhz, mem_asked_mhz)
    drawn_w = np.minimum(busy_w(gpu, kernel, core_mhz, mem_mhz, warm_c), limit_w)
    settled_c = warm_c + gpu.c_per_w * (drawn_w - run.power_w)
    if not run.locked:  # a cooler GPU boosts higher
        for s in np.flatnonzero(~(asked_mhz < auto_mhz)).tolist():
            cooler_mhz = auto_mhz * boost_mhz(gpu, float(settled_c[s])) / boost
            core_mhz[s] = np.fmin(asked_mhz[s], cooler_mhz)
    over: Bools = busy_w(gpu, kernel, core_mhz, mem_mhz, settled_c) > limit_w
    for mem in np.unique(mem_mhz[over]).tolist():
        rows = mem_mhz == mem
        bins_mhz = np.unique(core_mhz[rows])
        most = capped_core_mhz(gpu, kernel, bins_mhz, mem, warm_c, limit_w)
        core_mhz[rows] = np.minimum(core_mhz[rows], most)
    time = duration_s(gpu, kernel, core_mhz, mem_mhz)
    power_w = busy_w(gpu, kernel, core_mhz, mem_mhz, settled_c)
    was_w = float(busy_w(gpu, kernel, ran_mhz, run.mem_mhz, warm_c))
    time = time / float(duration_s(gpu, kernel, ran_mhz, run.mem_mhz))
    return time, time * power_w / was_w
