"""Calibration against sweeps made from known constants, and its own parts."""

import dataclasses
from collections.abc import Callable

import pytest

from calibration import (
    Calibrated,
    MeanErrors,
    calibrate,
    errors_by_kernel,
    errors_of,
)
from gpu_specs import SPECS
from underclock.errors import DataError
from underclock.physics.constants import KernelConstants
from underclock.physics.costs import busy_w, duration_s
from underclock.records import AUTO, Clocks, Evidence, GpuInfo, Kernel, SampleSet, Window
from windows import having

_SPEC = SPECS["rtx3080ti"]
_TRUE = dataclasses.replace(
    _SPEC.constants,
    exponent=4.0,
    knee_mhz=1350.0,
    leak_w_per_v3=30.0,
    clock_w_per_ghz_v2=11.0,
    mem_points_w=(13.0, 16.0, 42.0, 70.0, 73.0),
    mem_points_efficiency=(0.9, 0.8, 0.95, 1.0, 1.0),
)
_PER_MCYCLE_J = 0.006
_KERNELS = {
    f"k{i}": KernelConstants(
        core_mcycles=core,
        dram_mcycles=dram,
        fixed_s=2e-5,
        work_j_per_v2=core * 0.1,
        dram_j=_PER_MCYCLE_J * dram,
        serial=serial,
    )
    for i, (core, dram, serial) in enumerate(
        [
            (3.0, 1.0, False),
            (0.2, 4.0, False),
            (1.0, 5.0, False),
            (0.8, 2.0, True),
            (2.0, 9.0, False),
        ]
    )
}


def _profile(kernels: dict[str, KernelConstants] = _KERNELS, *, auto: bool = False) -> SampleSet:
    """Make a sweep without noise from known constants."""
    samples = []
    for name, kernel in kernels.items():
        for mem in (810, 5001, 9501):
            for core in (210, 630, 1050, 1470, 1890):
                warm_c = 60.0
                for _ in range(20):
                    watts = float(busy_w(_TRUE, kernel, float(core), float(mem), warm_c))
                    warm_c = _TRUE.ambient_c + _TRUE.c_per_w * watts
                time_s = float(duration_s(_TRUE, kernel, float(core), float(mem)))
                clocks = Clocks(core_mhz=core, mem_mhz=mem)
                samples.append(
                    Window(kernel=name, asked=clocks, time_s=time_s, energy_j=watts * time_s)
                )
        if auto:
            time_s = float(duration_s(_TRUE, kernel, 1900.0, 9501.0))
            samples.append(Window(kernel=name, asked=AUTO, time_s=time_s, energy_j=300 * time_s))
    return SampleSet(
        evidence=Evidence.REPLAYED,
        gpu=GpuInfo(name="made"),
        workload="made",
        kernels=tuple(Kernel(name=name) for name in kernels),
        windows=tuple(samples),
    )


_LIMIT_W = 1000.0


@pytest.fixture(scope="module")
def sweep() -> SampleSet:
    return _profile()


@pytest.fixture(scope="module")
def calibrated(sweep: SampleSet) -> Calibrated:
    return calibrate(sweep, _SPEC.constants, _LIMIT_W)


def test_a_sweep_without_noise_is_explained(calibrated: Calibrated, sweep: SampleSet) -> None:
    fit = errors_of(calibrated, sweep.samples)

    assert fit.time < 0.01
    assert fit.power < 0.01
    assert calibrated.limit_w == 1000.0


def test_a_few_rows_predict_the_rest(calibrated: Calibrated, sweep: SampleSet) -> None:
    results = errors_by_kernel(calibrated, sweep, _LIMIT_W, 4)
    total = MeanErrors.over(list(results.values()))

    assert list(results) == list(_KERNELS)
    assert total.rows == len(sweep.samples) - 4 * len(_KERNELS)
    assert total.time < 0.03
    assert total.power < 0.03


def test_rows_at_the_cap_are_predicted_with_it() -> None:
    hungry = {"hungry": dataclasses.replace(_KERNELS["k0"], work_j_per_v2=2.0)}
    sweep = _profile(_KERNELS | hungry, auto=True)
    calibrated = calibrate(sweep, _SPEC.constants, 300.0)
    capped = [s for s in sweep.samples if s.energy_j / s.time_s >= 300.0]

    assert capped
    assert calibrated.limit_w >= 0.93 * 300.0
    assert errors_of(calibrated, capped).rows == len(capped)


@pytest.mark.parametrize(
    ("keep", "sentence"),
    [
        (lambda c: c.core_mhz == 210 and c.mem_mhz == 810, "fewer than two rows"),
        (lambda c: c.core_mhz in {210, 630}, "fewer than four core clocks"),
    ],
)
def test_a_sweep_that_says_too_little_is_refused(
    keep: Callable[[Clocks], bool], sentence: str
) -> None:
    whole = _profile()
    few = tuple(s for s in whole.samples if keep(s.asked))
    with pytest.raises(DataError, match=sentence):
        calibrate(having(whole, samples=few), _SPEC.constants, _LIMIT_W)
