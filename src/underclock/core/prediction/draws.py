"""Draws of what kernels may cost at other clocks, as far as runs at one clock pair leave it open.

One run tells a kernel's time and power, and little of what other clocks would do to them. The rest
is drawn from a hierarchical prior. A kernel's time shares come from reference kernels, those of
like power more often, or from counters where it has any. The GPU's shared constants vary round the
known ones; constants under which an idle GPU draws more than a kernel did at work are drawn less
often. Every draw reproduces the runs.

The reference kernels are a sample themselves, so each draw weighs them anew (a Bayesian
bootstrap), alike for all kernels of a step: else an odd population would make a step of many
kernels seem well known. For the same reason each draw lets the references' fixed time count more
or less, for it is that of other programs.

Shape letters: D draws, K kernels, S settings, N reference kernels.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.prediction.prior import (
    BUSIEST_DRAM,
    SLOWEST,
    BaselineRun,
    Prior,
    ReferenceKernel,
    factor,
    least_at_rest_w,
    vary,
)
from underclock.core.step.cap import Between
from underclock.physics.constants import GpuConstants, KernelArrays
from underclock.physics.costs import (
    boost_mhz,
    dram_mhz,
    duration_s,
    idle_w,
    launch_w,
    voltage_v,
    xbar_mhz,
)
from underclock.records import Clocks

_CANDIDATES = 12  # shared constants looked at for each draw
_OVER = 0.05  # weighs how far above a run's power a GPU at rest would be
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
# Of a kernel's time so much follows DRAM as DRAM is busy, to a power; powers of draws and kernels
# scatter. Of the rest a part waits for no clock: between these of kernels that keep a unit busy,
# more of those that keep none. So an H200's counters give its exponents (docs/evidence/prediction).
_BEND, _BENDS = 1.3, (0.3, 0.6)
_WAITS, _WAITING, _IDLE = (0.0, 0.6), 0.8, 1.0
# What memory bounds still follows the core a little: caches and crossbar. Assumed.
_LEAST_CORE = (1e-4, 0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostDraws:
    """Costs of kernels at settings, over those of their run, in every draw."""

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
        settings: The other clocks. Length S.
    """
    random = np.random.default_rng(seed)
    every = _Runs.of(runs)
    core_mhz, mem_mhz = (
        np.array([math.nan if mhz is None else float(mhz) for mhz in column])
        for column in zip(*((c.core_mhz, c.mem_mhz) for c in settings), strict=True)
    )
    likeness = _likeness(prior, every.power_w)
    deviations = prior.widened
    time = np.empty((draws, len(runs), len(settings)))
    energy = np.empty_like(time)
    for d in range(draws):
        gpu = _draw_gpu(prior, runs, random)
        traffic_j = prior.dram_j_per_mcycle * factor(deviations["traffic"], random)
        shares = _draw_shares(prior, every, likeness, random)
        more_s, more_w = factor(deviations["time"], random), factor(deviations["power"], random)
        ran = _Ran.of(gpu, every, random)
        time[d], energy[d] = _ratios(
            gpu, _constants(gpu, shares, ran, traffic_j), ran, (core_mhz, mem_mhz), prior.limit_w
        )
        time[d] *= more_s
        energy[d] *= more_s * more_w
        if progress is not None:
            progress((d + 1) / draws)
    return CostDraws(time=time, energy=energy)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """Runs of all kernels as arrays, as of `BaselineRun`; what nobody read is ``nan``. (K,)."""

    time_s: Floats
    power_w: Floats
    core_mhz: Floats
    mem_mhz: Floats
    temperature_c: Floats
    capped: Bools
    locked: Bools
    busy: Floats
    dram: Floats

    @classmethod
    def of(cls, runs: Sequence[BaselineRun]) -> "_Runs":
        """Return runs as arrays; ``busy`` is the busiest unit, ``dram`` how busy DRAM was."""
        read = [run.utilisation for run in runs]
        numbers = {
            name: np.array([getattr(run, name) for run in runs], dtype=np.float64)
            for name in ("time_s", "power_w", "core_mhz", "mem_mhz", "temperature_c")
        }
        return cls(
            **numbers,
            capped=np.array([run.capped for run in runs]),
            locked=np.array([run.locked for run in runs]),
            busy=np.array([max(u.tensor, u.fp32, u.dram) if u else math.nan for u in read]),
            dram=np.array([u.dram if u else math.nan for u in read]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    """Runs, and in one draw the conditions that nobody read. Shapes (K, 1)."""

    runs: _Runs
    core_mhz: Floats
    warm_c: Floats
    boost_mhz: Floats

    @classmethod
    def of(cls, gpu: GpuConstants, runs: _Runs, random: np.random.Generator) -> "_Ran":
        """Draw what nobody read: a capped clock is somewhat below boost."""
        steady_c = gpu.ambient_c + gpu.c_per_w * runs.power_w
        warm_c = np.where(np.isnan(runs.temperature_c), steady_c, runs.temperature_c)
        boosts = np.array([boost_mhz(gpu, each) for each in warm_c.tolist()])
        below = np.where(runs.capped, random.uniform(SLOWEST, 1.0, len(boosts)), 1.0)
        core_mhz = np.where(np.isnan(runs.core_mhz), boosts * below, runs.core_mhz)
        return cls(
            runs=runs,
            core_mhz=core_mhz[:, None],
            warm_c=warm_c[:, None],
            boost_mhz=boosts[:, None],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shares:
    """What the time of each kernel follows, at the clocks of its run; they add to 1. (K, 1)."""

    core: Floats
    dram: Floats
    xbar: Floats
    fixed: Floats
    serial: Bools


def _draw_gpu(
    prior: Prior, runs: Sequence[BaselineRun], random: np.random.Generator
) -> GpuConstants:
    """Draw some candidates for the shared constants, and pick one that the runs leave possible."""
    deviations = prior.widened
    candidates = [vary(prior.gpu, deviations, random) for _ in range(_CANDIDATES)]
    power_w = np.array([run.power_w for run in runs])
    above = [np.log(least_at_rest_w(gpu, runs) / power_w) for gpu in candidates]
    excess = np.maximum(0.0, above).mean(axis=1) / _OVER
    weight = np.exp(-0.5 * (excess**2 - excess.min() ** 2))
    return candidates[int(random.choice(len(weight), p=weight / weight.sum()))]


def _likeness(prior: Prior, power_w: Floats) -> Floats:
    """Weigh reference kernels by how near their power is to a run's. Shape (K, N)."""
    shares = np.array([reference.power_share for reference in prior.references])
    distance = np.log(shares * prior.limit_w / power_w[:, None]) / _ALIKE
    weight: Floats = np.exp(-0.5 * distance**2) + _UNLIKE
    return weight


def _popularity(references: Sequence[ReferenceKernel], random: np.random.Generator) -> Floats:
    """Weigh sweeps, and kernels within each: a step may be like one sweep only. Shape (N,)."""
    sources = [reference.source for reference in references]
    weight = np.empty(len(references))
    every = sorted(set(sources))
    for source, share in zip(every, random.dirichlet(np.ones(len(every))), strict=True):
        mine = [n for n, each in enumerate(sources) if each == source]
        weight[mine] = share * random.dirichlet(np.ones(len(mine)))
    return weight


def _references(
    prior: Prior, likeness: Floats, random: np.random.Generator
) -> tuple[Floats, Bools]:
    """Draw a reference for each kernel: shares of core, DRAM, fixed time; whether they add up."""
    weight = likeness * _popularity(prior.references, random)
    weight = np.cumsum(weight / weight.sum(axis=1, keepdims=True), axis=1)
    chosen: Ints = (random.uniform(size=(len(weight), 1)) > weight[:, :-1]).sum(axis=1)
    like = [each.shares for each in prior.references]
    shares = np.array([[s.core + s.xbar, s.dram, s.fixed] for s in like])[chosen]
    shares[:, 2] *= math.sqrt(float(random.uniform()))
    shares *= np.exp(_JITTER * random.standard_normal(shares.shape))
    return shares, np.array([each.serial for each in like])[chosen]


def _draw_shares(
    prior: Prior,
    runs: _Runs,
    likeness: Floats,
    random: np.random.Generator,
) -> _Shares:
    """Draw time shares: those of references, of kernels like no reference, or as counted."""
    count = len(likeness)
    shares, serial = _references(prior, likeness, random)
    if random.uniform() > (1.0 - _STRANGE) / prior.off:
        precision = math.exp(float(random.uniform(*np.log(_ALIKE_STRANGERS))))
        alpha = precision * random.dirichlet(_ANY_SHARES) + _LEAST_SHARE
        shares = random.dirichlet(alpha, count)
    novel = random.uniform(size=count) < _MOST_NOVEL * float(random.uniform())
    shares[novel] = random.dirichlet(_ANY_SHARES, count)[novel]
    core, dram, fixed = (shares / shares.sum(axis=1, keepdims=True)).T
    counted = ~np.isnan(runs.dram)
    if counted.any():
        as_counted = _counted_shares(runs, random)
        core, dram, fixed = (
            np.where(counted, *pair) for pair in zip(as_counted, (core, dram, fixed), strict=True)
        )
    moving = core + dram
    core = np.maximum(core, math.exp(float(random.uniform(*np.log(_LEAST_CORE)))) * moving)
    dram = np.maximum(moving - core, 0.0)
    xbar = core * float(random.uniform()) * dram / np.maximum(moving, 1e-9)
    return _Shares(
        core=(core - xbar)[:, None],
        dram=dram[:, None],
        xbar=xbar[:, None],
        fixed=fixed[:, None],
        serial=serial[:, None],
    )


def _counted_shares(runs: _Runs, random: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """Draw shares of core, DRAM and fixed time of kernels of which counters were read. (K,)."""
    count = len(runs.dram)
    noise = factor(_BUSIEST, random) * np.exp(_COUNTED * random.standard_normal(count))
    busy = np.minimum(1.0, runs.dram / BUSIEST_DRAM * noise)
    bends = _BEND * factor(_BENDS[0], random) * np.exp(_BENDS[1] * random.standard_normal(count))
    dram = busy**bends
    idle = 1.0 - np.minimum(1.0, runs.busy)
    usual, apart = float(random.uniform(*_WAITS)), _WAITING * random.standard_normal(count)
    odds = usual / (1.0 - usual) * np.exp(_IDLE * idle * (1.0 + random.standard_normal()) + apart)
    fixed = (1.0 - dram) * odds / (1.0 + odds)
    return 1.0 - dram - fixed, dram, fixed


def _constants(gpu: GpuConstants, shares: _Shares, ran: _Ran, traffic_j: float) -> KernelArrays:
    """Return kernels that have given time shares and reproduce their runs. Shapes (K, 1)."""
    runs = ran.runs
    time_s, power_w, mem_mhz = (each[:, None] for each in (runs.time_s, runs.power_w, runs.mem_mhz))
    n = np.where(shares.serial, 1.0, gpu.exponent)
    moving = np.maximum(1.0 - shares.fixed, 1e-9)
    core_s, dram_s, xbar_s = (
        time_s * moving * (share / moving) ** (1.0 / n)
        for share in (shares.core, shares.dram, shares.xbar)
    )
    dram_mcycles = dram_s * dram_mhz(gpu, mem_mhz)
    dram_j = traffic_j * dram_mcycles
    own_w = power_w - idle_w(gpu, ran.core_mhz, mem_mhz, ran.warm_c)
    return KernelArrays(
        core_mcycles=core_s * ran.core_mhz,
        dram_mcycles=dram_mcycles,
        xbar_mcycles=xbar_s * xbar_mhz(gpu, ran.core_mhz),
        fixed_s=time_s * shares.fixed,
        work_j_per_v2=np.maximum(0.0, own_w * time_s - dram_j) / voltage_v(gpu, ran.core_mhz) ** 2,
        dram_j=dram_j,
        serial=shares.serial,
    )


def _ratios(
    gpu: GpuConstants,
    kernels: KernelArrays,
    ran: _Ran,
    asked: tuple[Floats, Floats],
    settled_w: float,
) -> tuple[Floats, Floats]:
    """Return what kernels cost at settings, over what they cost in their runs. Shapes (K, S)."""
    runs, warm_c = ran.runs, ran.warm_c
    run_w, run_mem = runs.power_w[:, None], runs.mem_mhz[:, None]
    capped, locked = runs.capped[:, None], runs.locked[:, None]
    limit_w = np.where(capped, run_w, np.maximum(settled_w, run_w))
    auto_mhz = np.where(capped, np.maximum(ran.core_mhz, ran.boost_mhz), ran.core_mhz)
    core_mhz = np.where(np.isnan(asked[0]), auto_mhz, asked[0])
    core_mhz = np.where(locked, core_mhz, np.minimum(core_mhz, auto_mhz))
    mem_mhz = np.where(np.isnan(asked[1]), run_mem, asked[1])

    def costs(warm_c: Floats) -> tuple[Floats, Floats]:
        """Return time in s and power in W; `busy_w` would work out the time again."""
        taken_s = duration_s(gpu, kernels, core_mhz, mem_mhz)
        own_w = launch_w(gpu, kernels, core_mhz, taken_s)
        return taken_s, idle_w(gpu, core_mhz, mem_mhz, warm_c) + own_w

    settled_c = warm_c + gpu.c_per_w * (np.minimum(costs(warm_c)[1], limit_w) - run_w)
    free = ~locked & ~(asked[0] < auto_mhz)  # a cooler GPU boosts higher
    boosts = np.array([boost_mhz(gpu, each) for each in settled_c[free].tolist()])
    cooler = (auto_mhz / ran.boost_mhz * np.ones_like(core_mhz))[free] * boosts
    core_mhz[free] = np.fmin(np.broadcast_to(asked[0], core_mhz.shape)[free], cooler)
    time_s, power_w = costs(settled_c)
    if (power_w > limit_w).any():
        most_mhz = _most_mhz(core_mhz, costs(warm_c)[1], limit_w, asked)
        core_mhz = np.where(power_w > limit_w, np.minimum(core_mhz, most_mhz), core_mhz)
        time_s, power_w = costs(settled_c)
    run_s = duration_s(gpu, kernels, ran.core_mhz, run_mem)
    own_w = launch_w(gpu, kernels, ran.core_mhz, run_s)
    time = time_s / run_s
    return time, time * power_w / (idle_w(gpu, ran.core_mhz, run_mem, warm_c) + own_w)


def _most_mhz(
    core_mhz: Floats, power_w: Floats, limit_w: Floats, asked: tuple[Floats, Floats]
) -> Floats:
    """Return the core clock that the cap leaves kernels, by memory clock. Shape (K, S)."""
    most_mhz = np.empty_like(core_mhz)
    order = np.argsort(asked[0], kind="stable")  # auto is last
    for mem in np.unique(asked[1]):
        same = order[np.isnan(asked[1][order]) if np.isnan(mem) else asked[1][order] == mem]
        between = Between.of(power_w[:, same], limit_w)
        most_mhz[:, same] = between.of_each(core_mhz[:, same])[:, None]
    return most_mhz
