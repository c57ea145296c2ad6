"""Rows at other clocks: draws follow them, and what nobody measured follows what was."""

import dataclasses

import msgspec
import numpy as np
import pytest

from gpu_specs import SPECS
from underclock.core.prediction.draws import CostDraws, draw_costs
from underclock.core.prediction.prior import (
    PUBLISHED,
    BaselineRun,
    Prior,
    ReferenceKernel,
    TimeShares,
)
from underclock.core.prediction.rows import given_rows
from underclock.core.prediction.savings import pooled
from underclock.records import AUTO, Clocks, Evidence, GpuInfo, Kernel, Pass, SampleSet, Window
from windows import having

_PRIOR = Prior(
    gpu=SPECS["a100"].constants,
    deviations=PUBLISHED,
    references=tuple(
        ReferenceKernel(shares=TimeShares(core=core, dram=0.95 - core, fixed=0.05), power_share=0.7)
        for core in (0.1, 0.5, 0.9)
    ),
    dram_j_per_mcycle=0.01,
    limit_w=400.0,
)
_RUN = BaselineRun(time_s=1e-3, power_w=280.0, core_mhz=1410.0, mem_mhz=1215.0, temperature_c=60.0)
_SETTINGS = (*(Clocks(core_mhz=mhz) for mhz in (705, 900, 1110, 1305)), AUTO)
_KERNELS = 6


def _costs(clocks: Clocks, core: float) -> tuple[float, float]:
    """Return time and energy of a kernel of which a part follows the core."""
    ratio = 1410.0 / (clocks.core_mhz or 1410)
    time_s = 1e-3 * (1.0 - core + core * ratio)
    return time_s, time_s * (80.0 + 200.0 / ratio**2)


def _sample_set(measured: int, *, core: float = 0.6) -> SampleSet:
    """Return samples of six kernels, some of them at all settings."""
    names = [f"k{k}" for k in range(_KERNELS)]
    samples = []
    for k, name in enumerate(names):
        for clocks in _SETTINGS if k < measured else (AUTO,):
            time_s, energy_j = _costs(clocks, core)
            samples.append(Window(kernel=name, asked=clocks, time_s=time_s, energy_j=energy_j))
    return SampleSet(
        evidence=Evidence.MEASURED,
        gpu=GpuInfo(name="A100"),
        workload="step",
        kernels=tuple(Kernel(name=name) for name in names),
        windows=tuple(samples),
    )


@pytest.fixture(scope="module")
def drawn() -> CostDraws:
    """Draw six kernels of a GPU that is hardly known."""
    return draw_costs(_PRIOR, [_RUN] * _KERNELS, _SETTINGS, draws=100, seed=0)


def _given(drawn: CostDraws, sample_set: SampleSet) -> CostDraws:
    return given_rows(drawn, sample_set, _SETTINGS, 4, gpu=_PRIOR.gpu, seed=0)


def test_without_rows_elsewhere_draws_stay_as_they_are(drawn: CostDraws) -> None:
    assert _given(drawn, _sample_set(0)) is drawn


def test_draws_of_kernels_with_rows_are_near_them(drawn: CostDraws) -> None:
    given = _given(drawn, _sample_set(_KERNELS))
    time, energy = np.array([_costs(clocks, 0.6) for clocks in _SETTINGS]).T

    assert np.allclose(np.median(given.time, axis=0), time / 1e-3, rtol=0.03)
    assert np.allclose(np.median(given.energy, axis=0), energy / 0.28, rtol=0.05)
    assert (given.time.std(axis=0)[:, 0] < 0.3 * drawn.time.std(axis=0)[:, 0]).all()


def test_rows_of_others_tell_what_is_shared(drawn: CostDraws) -> None:
    given = _given(drawn, _sample_set(5, core=0.6))
    power = given.energy[:, 5, 0] / given.time[:, 5, 0]
    before = drawn.energy[:, 5, 0] / drawn.time[:, 5, 0]
    told = 1.0 / 3.5 + 2.5 / 3.5 / 4.0  # 80 of 280 W stay, the rest falls by four

    assert abs(np.median(power) - told) < 0.5 * abs(np.median(before) - told) + 0.02


def test_no_slower_clock_is_faster_in_any_draw(drawn: CostDraws) -> None:
    noisy = _sample_set(_KERNELS)
    samples = tuple(
        msgspec.structs.replace(sample, time_s=sample.time_s * (1.0 + 0.05 * (i % 2)))
        for i, sample in enumerate(noisy.samples)
    )
    given = _given(drawn, having(noisy, samples=samples))

    assert (np.diff(given.time, axis=2) <= 1e-12).all()


def test_memory_clocks_apart_are_judged_apart(drawn: CostDraws) -> None:
    settings = (Clocks(core_mhz=900, mem_mhz=600), Clocks(core_mhz=1305, mem_mhz=600), AUTO)
    few = dataclasses.replace(drawn, time=drawn.time[:, :, 2:], energy=drawn.energy[:, :, 2:])
    sample_set = _sample_set(0)
    rows = tuple(
        Window(kernel=f"k{k}", asked=settings[0], time_s=2e-3, energy_j=0.3) for k in range(4)
    )
    more = having(sample_set, samples=(*sample_set.samples, *rows))

    given = given_rows(few, more, settings, 2, gpu=_PRIOR.gpu, seed=0)

    assert np.median(given.time[:, 0, 0]) == pytest.approx(2.0, rel=0.1)
    assert (given.time[:, :, 1] <= given.time[:, :, 0] + 1e-12).all()


def test_a_step_of_few_kernels_is_left_alone() -> None:
    sample_set = _sample_set(2)

    assert pooled(sample_set, AUTO) is sample_set


def test_small_kernels_of_many_stand_together_and_cost_what_they_did() -> None:
    low = Clocks(core_mhz=900)
    kernels = tuple(
        Kernel(
            name=f"k{k}",
            count=1 + k % 3,
            pass_=Pass.FORWARD if k % 2 else Pass.BACKWARD,
            waited_for=0.5 if k == 7 else 1.0,
        )
        for k in range(1000)
    )
    samples = tuple(
        Window(kernel=kernel.name, asked=clocks, repeat=n, time_s=1e-3 * (1 + k), energy_j=0.2)
        for k, kernel in enumerate(kernels)
        for clocks in ((AUTO, low) if k % 5 else (AUTO,))
        for n in (0, 1)
    )
    many = having(_sample_set(0), kernels=kernels, samples=samples)
    counts = {kernel.name: kernel.count for kernel in kernels}

    fewer = pooled(many, AUTO)

    assert len(fewer.kernels) <= 220
    assert any(kernel.waited_for == 0.5 for kernel in fewer.kernels)
    kept = {kernel.name: kernel.count for kernel in fewer.kernels}
    for clocks in (AUTO, low):
        before = [s for s in samples if s.asked == clocks]
        after = [s for s in fewer.samples if s.asked == clocks]
        for what in ("time_s", "energy_j"):
            total = sum(counts[s.kernel] * getattr(s, what) / 2 for s in before)
            repeats = {s.kernel: sum(o.kernel == s.kernel for o in after) for s in after}
            still = sum(kept[s.kernel] * getattr(s, what) / repeats[s.kernel] for s in after)
            assert still == pytest.approx(total)
    for pass_ in (Pass.FORWARD, Pass.BACKWARD):
        assert any(kernel.pass_ is pass_ for kernel in fewer.kernels)
