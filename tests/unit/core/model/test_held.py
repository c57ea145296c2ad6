"""What the power cap held: rows of it, and costs under a limit; and how warm a kernel is alone."""

import dataclasses
import math
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from underclock.arrays import Floats
from underclock.core.model.capped import capped
from underclock.core.model.entries import held_means
from underclock.core.model.estimate import estimate
from underclock.core.model.fitting import fit_rows, start_of
from underclock.core.model.held_rows import held_rows
from underclock.core.model.laplace import FittedModel
from underclock.core.model.own_heat import STEADY_C, Warmth
from underclock.core.model.parameters import Shared
from underclock.core.model.predictive import posterior_of
from underclock.core.model.sample_rows import rows_of
from underclock.core.model.subsample import fitted
from underclock.gpus.models import gpu_model
from underclock.physics.cap import capped_core_mhz
from underclock.physics.constants import KernelConstants
from underclock.physics.costs import busy_w, duration_s
from underclock.records import (
    AUTO,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    Mix,
    MixSample,
    Sample,
    SampleSet,
    ThrottleReason,
)

_GPU = gpu_model("rtx3080ti").constants
_MEM, _BOOST_MHZ, _LIMIT_W = 9251, 1890, 230.0
_BINS = np.arange(600.0, _BOOST_MHZ + 1, 15)
_LADDER = tuple(Clocks(core_mhz=mhz, mem_mhz=_MEM) for mhz in range(900, _BOOST_MHZ + 1, 45))
_KERNELS = {
    f"k{i}": KernelConstants(
        core_mcycles=(0.8 + 0.2 * i) * 2.0,
        dram_mcycles=(1.6 - 0.2 * i) * 4.0,
        fixed_s=2e-5,
        work_j_per_v2=0.15 + 0.04 * i,
        dram_j=0.05,
    )
    for i in range(8)
}
_CAP = ThrottleReason.SW_POWER_CAP


def _held_mhz(kernel: KernelConstants, asked_mhz: float) -> float:
    bins = _BINS[asked_mhz >= _BINS]
    return float(capped_core_mhz(_GPU, kernel, bins, float(_MEM), 60.0, _LIMIT_W))


def _campaign(
    seed: int, locks: int = 6, own_c: Callable[[float], float] = lambda _: 60.0
) -> SampleSet:
    """Measure some locks of each kernel, and auto, under a limit that holds many of them."""
    random = np.random.default_rng(seed)
    samples = []
    for name, kernel in _KERNELS.items():
        some = random.choice(len(_LADDER), locks, replace=False).tolist()
        for asked in [*(_LADDER[i] for i in some), AUTO]:
            asked_mhz = float(asked.core_mhz or _BOOST_MHZ)
            core = _held_mhz(kernel, asked_mhz)
            held = core < asked_mhz - 1.0
            time_s = float(duration_s(_GPU, kernel, core, _MEM)) * random.normal(1.0, 3e-4)
            warm_c = own_c(float(busy_w(_GPU, kernel, core, _MEM, 60.0)))
            power_w = float(busy_w(_GPU, kernel, core, _MEM, warm_c))
            power_w = _LIMIT_W if held else power_w * random.normal(1.0, 4e-3)
            samples.append(
                Sample(
                    kernel=name,
                    asked=asked,
                    time_s=time_s,
                    energy_j=time_s * power_w,
                    observed=Clocks(core_mhz=round(core / 15) * 15, mem_mhz=_MEM),
                    throttle_reasons=_CAP if held else ThrottleReason.NONE,
                    temperature_c=warm_c,
                )
            )
    return SampleSet(
        evidence=Evidence.MEASURED,
        workload="w",
        kernels=tuple(Kernel(name=name) for name in _KERNELS),
        settings=_LADDER,
        samples=tuple(samples),
        gpu=GpuInfo(name="G", driver="1", power_limit_w=_LIMIT_W),
    )


def _without(sample_set: SampleSet) -> FittedModel:
    """Fit all but what was held."""
    rows = rows_of(sample_set)
    return fitted(rows, Shared(start_of(rows, _LADDER)))


def _busy_w(kernel: KernelConstants, core_mhz: Floats) -> Floats:
    """Return what a kernel draws at held clocks, no cap in the way. Shape (C,)."""
    power_w: Floats = busy_w(_GPU, kernel, core_mhz, np.full_like(core_mhz, _MEM), 60.0)
    return power_w


def _misses(model: FittedModel) -> tuple[Floats, Floats]:
    """Return how far power is off where the cap holds kernels, over the truth and its error."""
    posterior = posterior_of(model, _LADDER, temperature_c=60.0, limit_w=math.inf)
    core = np.array([float(c.core_mhz or 0) for c in _LADDER])
    truth = np.stack([_busy_w(kernel, core) for kernel in _KERNELS.values()])
    held = truth > _LIMIT_W
    off = (posterior.log_w - np.log(truth))[held]
    return off, off / np.sqrt(posterior.variance(0.0, 1.0)[held])


@pytest.fixture(scope="module")
def campaign() -> SampleSet:
    return _campaign(0)


@pytest.fixture(scope="module")
def model(campaign: SampleSet) -> FittedModel:
    return _without(campaign)


@pytest.mark.slow
def test_what_the_cap_held_tells_what_higher_clocks_would_draw(
    campaign: SampleSet, model: FittedModel
) -> None:
    off, over = _misses(fit_rows(campaign, _LADDER)[1])
    without, _ = _misses(model)

    assert np.abs(off).mean() < 0.75 * np.abs(without).mean()
    assert (np.abs(over) < 2.0).mean() > 0.85


def test_a_held_kernel_is_a_row_at_the_clock_where_it_ran(
    campaign: SampleSet, model: FittedModel
) -> None:
    rows = held_rows(campaign, model, _LADDER)
    kernels = list(_KERNELS.values())

    assert {row.kernel for row in rows} == set(range(len(kernels)))
    for row in rows:
        true_mhz = _held_mhz(kernels[row.kernel], float(_BOOST_MHZ))
        assert row.core_mhz == pytest.approx(true_mhz, rel=0.01)
        assert math.exp(row.log_w) == pytest.approx(_LIMIT_W, rel=1e-3)
        assert (row.time_windows > 0.0) != (row.power_windows > 0.0)
        # Its clock was read to a bin, so its time is worth little by itself.
        assert row.time_windows < 0.05


def test_a_clock_that_nobody_read_is_told_by_the_time_alone(
    campaign: SampleSet, model: FittedModel
) -> None:
    unread = [msgspec.structs.replace(s, observed=None) for s in campaign.samples]
    rows = held_rows(msgspec.structs.replace(campaign, samples=tuple(unread)), model, _LADDER)

    assert rows
    assert all(row.time_windows == 0.0 for row in rows)
    for row in rows:
        true_mhz = _held_mhz(_KERNELS[f"k{row.kernel}"], float(_BOOST_MHZ))
        assert row.core_mhz == pytest.approx(true_mhz, rel=0.02)


def test_held_samples_that_tell_no_clock_are_no_rows(
    campaign: SampleSet, model: FittedModel
) -> None:
    def told(*samples: Sample) -> tuple[object, ...]:
        return held_rows(msgspec.structs.replace(campaign, samples=samples), model, _LADDER)

    held = [s for s in campaign.samples if s.throttle_reasons == _CAP]
    cold = [msgspec.structs.replace(s, temperature_c=None) for s in held]
    slow = [msgspec.structs.replace(s, time_s=3.0 * s.time_s) for s in held]
    low = [msgspec.structs.replace(s, asked=_LADDER[0]) for s in held]

    assert {row.temperature_c for row in told(*cold)} == {STEADY_C}  # type: ignore[attr-defined]
    assert not told(*slow)  # something else slowed them down
    assert not told(*low)  # the kernel was seen to hold no lower clock
    assert not held_rows(campaign, model, _LADDER[:1])
    step = MixSample(
        kernel="k0",
        mix=Mix(launches=1, hot=1),
        core_mhz=1500.0,
        core_spread_mhz=0.0,
        round_s=0.01,
        round_j=2.0,
        kernel_s=(0.005,),
        window_s=1.0,
    )
    free = [s for s in campaign.samples if s.asked.is_auto]
    steered = msgspec.structs.replace(campaign, samples=tuple(free), mixed=(step,))
    assert not held_rows(steered, model, _LADDER)  # there the clock was read all through


@pytest.mark.slow
def test_what_the_cap_makes_of_one_lock_it_makes_of_all_higher_ones(campaign: SampleSet) -> None:
    rows = rows_of(campaign)
    log_s, log_w, repeats = held_means(campaign, rows, _LADDER)
    estimated = estimate(campaign)
    for k, (name, kernel) in enumerate(_KERNELS.items()):
        held = [s for s in campaign.samples if s.kernel == name and s.throttle_reasons == _CAP]
        # Auto by itself is held too, and tells of no lock.
        lowest = min((s.asked.core_mhz for s in held if s.asked.core_mhz), default=math.inf)
        place = [(clocks.core_mhz or 0) >= lowest for clocks in _LADDER]
        assert np.isfinite(log_s[k]).tolist() == place
        if not any(place):
            continue
        assert repeats[k, -1] == len(held)
        assert math.exp(log_w[k, -1]) == pytest.approx(_LIMIT_W)
        at_cap_s = float(duration_s(_GPU, kernel, _held_mhz(kernel, _BOOST_MHZ), _MEM))
        assert estimated.table.time_s[k, np.flatnonzero(place)] == pytest.approx(at_cap_s, rel=1e-3)


def test_under_a_limit_a_kernel_runs_at_the_clock_at_which_it_draws_that(
    model: FittedModel,
) -> None:
    core = np.array([float(c.core_mhz or 0) for c in _LADDER])
    free = posterior_of(model, _LADDER, temperature_c=60.0, limit_w=math.inf)
    limit_w = float(np.exp(np.median(free.log_w)))
    held = capped(free, core, np.full(len(core), float(_MEM)), limit_w)
    above = free.log_w > math.log(limit_w)
    never = free.log_w[:, 0] > math.log(limit_w)

    assert np.exp(held.log_w[above & ~never[:, None]]) == pytest.approx(limit_w)
    assert (held.log_s[above] >= free.log_s[above] - 1e-12).all()
    assert (held.log_s[~above] == free.log_s[~above]).all()
    # The limit tells the power, so what is unsure of it is unsure of time.
    at = above & ~never[:, None]
    assert (held.variance(0.0, 1.0)[at] <= 0.003**2 + 1e-12).all()
    # What draws more at the slowest clock already is left as it is.
    least_w = float(np.exp(free.log_w.min()))
    all_held = capped(free, core, np.full(len(core), float(_MEM)), 0.9 * least_w)
    assert (all_held.log_w == free.log_w).all()


def test_a_kernel_alone_is_predicted_as_warm_as_it_makes_the_gpu() -> None:
    def own_c(power_w: float) -> float:
        return 30.0 + 0.2 * power_w

    known = _campaign(1, locks=10, own_c=own_c)
    warmth = Warmth.own(known)
    estimated = estimate(known)
    ratios = []
    for k, kernel in enumerate(_KERNELS.values()):
        for c, clocks in enumerate(_LADDER):
            core = float(clocks.core_mhz or 0)
            if core > _held_mhz(kernel, core) + 1.0:
                continue
            power_w = busy_w(_GPU, kernel, core, float(_MEM), 60.0)
            power_w = busy_w(_GPU, kernel, core, float(_MEM), own_c(float(power_w)))
            ratios.append(float(np.exp(estimated.posterior.log_w[k, c])) / float(power_w))

    assert warmth.c_per_w == pytest.approx(0.2, rel=0.05)
    assert float(warmth.at(np.array([0]), 150.0)[0, 0]) == pytest.approx(60.0, abs=1.0)
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.002)
    assert np.std(ratios) < 0.006


def test_a_temperature_that_was_not_read_is_the_others_or_a_usual_one(campaign: SampleSet) -> None:
    def without(*names: str) -> Warmth:
        samples = [
            msgspec.structs.replace(s, temperature_c=None) if s.kernel in names else s
            for s in campaign.samples
        ]
        return Warmth.own(msgspec.structs.replace(campaign, samples=tuple(samples)))

    assert without("k0").at_rest_c[0] == pytest.approx(60.0)
    assert (without(*_KERNELS).at_rest_c == STEADY_C).all()
    one = msgspec.structs.replace(campaign, samples=campaign.samples[:1])
    assert Warmth.own(one).c_per_w == 0.0  # one power tells no slope


@pytest.mark.slow
def test_a_file_without_held_samples_is_fitted_once(campaign: SampleSet) -> None:
    free = tuple(s for s in campaign.samples if s.throttle_reasons != _CAP)
    known = msgspec.structs.replace(campaign, samples=free)

    assert not held_rows(known, _without(known), _LADDER)
    assert len(rows_of(known).kernel) == len(fit_rows(known, _LADDER)[0].kernel)
    assert dataclasses.replace(rows_of(known)).counted.sum() == len(rows_of(known).kernel)
