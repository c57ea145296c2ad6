"""Calibration against sweeps made from known constants, and its own parts."""

import dataclasses
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from gpu_specs import SPECS
from underclock.core.calibration.gpu import (
    Calibrated,
    MeanErrors,
    calibrate,
    check,
    design,
    errors_of,
    held_out,
    pooled,
)
from underclock.core.calibration.sweep import (
    FixedTimePrior,
    Sweep,
    SweepFit,
    kernel_of,
    sweep_of,
    vector_of,
)
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


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    return sweep_of(_profile(), auto_mem_mhz=9501.0, limit_w=1000.0)


@pytest.fixture(scope="module")
def calibrated(sweep: Sweep) -> Calibrated:
    return calibrate(sweep, _SPEC.constants)


def test_a_sweep_without_noise_is_explained(calibrated: Calibrated, sweep: Sweep) -> None:
    fit = errors_of(calibrated, sweep, np.arange(len(sweep.kernel)))

    assert fit.time < 0.01
    assert fit.power < 0.01
    assert calibrated.limit_w == 1000.0


def test_kernels_that_overlap_nothing_are_recognised(calibrated: Calibrated) -> None:
    assert calibrated.kernels["k3"].serial
    assert not calibrated.kernels["k2"].serial


def test_a_few_rows_predict_the_rest(calibrated: Calibrated, sweep: Sweep) -> None:
    told: list[float] = []
    results = check(calibrated, sweep, 4, progress=told.append)
    total = pooled([errors for _, errors in results])

    assert [name for name, _ in results] == list(_KERNELS)
    assert total.rows == len(sweep.kernel) - 4 * len(_KERNELS)
    assert total.time < 0.03
    assert total.power < 0.03
    assert told == [k / len(_KERNELS) for k in range(len(_KERNELS))]


def test_kernels_left_out_are_predicted_too(sweep: Sweep) -> None:
    errors = held_out(sweep, _SPEC.constants, 4)

    assert errors.rows == len(sweep.kernel) - 4 * len(_KERNELS)
    assert errors.time < 0.06
    assert errors.power < 0.06


def test_progress_is_told_fold_by_fold(sweep: Sweep) -> None:
    two = dataclasses.replace(
        sweep.only(np.flatnonzero(sweep.kernel < 2)), kernels=sweep.kernels[:2]
    )
    told: list[float] = []
    held_out(two, _SPEC.constants, 4, progress=told.append)

    assert told == [0.5, 1.0]


def test_all_rows_as_points_leave_nothing_to_predict(calibrated: Calibrated, sweep: Sweep) -> None:
    assert check(calibrated, sweep, 15) == []


def test_the_chosen_rows_are_distinct_and_apart(calibrated: Calibrated, sweep: Sweep) -> None:
    rows = np.flatnonzero(sweep.kernel == 2)
    picked = design(calibrated, sweep.only(rows), 4)
    clocks = sweep.core_mhz[rows[picked]]

    assert len(set(picked.tolist())) == 4
    assert len(set(clocks.tolist())) == 4


def test_rows_at_the_cap_are_predicted_with_it() -> None:
    hungry = {"hungry": dataclasses.replace(_KERNELS["k0"], work_j_per_v2=2.0)}
    sample_set = _profile(_KERNELS | hungry, auto=True)
    sweep = sweep_of(sample_set, auto_mem_mhz=9501.0, limit_w=300.0)
    calibrated = calibrate(sweep, _SPEC.constants)
    capped = np.flatnonzero(sweep.power_w >= 300.0)

    assert len(capped)
    assert calibrated.limit_w >= 0.93 * 300.0
    assert errors_of(calibrated, sweep, capped).rows == len(capped)


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
        sweep_of(having(whole, samples=few), auto_mem_mhz=9501.0)


def test_clocks_in_hertz_are_refused() -> None:
    whole = _profile()
    hertz = tuple(
        msgspec.structs.replace(s, asked=Clocks(core_mhz=1_000_000 * (s.asked.core_mhz or 1)))
        for s in whole.samples
    )
    with pytest.raises(DataError, match="a core clock of 1890000000 MHz, which no GPU has"):
        sweep_of(having(whole, samples=hertz), auto_mem_mhz=9501.0)


@pytest.mark.parametrize("serial", [False, True])
def test_derivatives_are_those_of_finite_differences(sweep: Sweep, *, serial: bool) -> None:
    rows = sweep.one(np.flatnonzero(sweep.kernel == 2))
    fit = SweepFit(base=_TRUE, sweep=rows, serial=np.array([serial]), per_mcycle_j=_PER_MCYCLE_J)
    vector = vector_of(_KERNELS["k2"])
    by = fit.derivatives(kernel_of(vector, _PER_MCYCLE_J, serial=serial))

    for p in range(len(vector)):
        ends = []
        for sign in (1.0, -1.0):
            moved = kernel_of(
                vector + sign * 1e-5 * np.eye(len(vector))[p], _PER_MCYCLE_J, serial=serial
            )
            time_s = duration_s(_TRUE, moved, rows.core_mhz, rows.mem_mhz)
            warm_c = _TRUE.ambient_c + _TRUE.c_per_w * rows.power_w
            power_w = busy_w(_TRUE, moved, rows.core_mhz, rows.mem_mhz, warm_c)
            ends.append(np.log(np.stack([time_s, power_w])))
        assert by[:, :, p] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-6)


def test_pooling_weighs_by_rows() -> None:
    total = pooled(
        [MeanErrors(time=0.1, power=0.2, rows=1), MeanErrors(time=0.0, power=0.0, rows=3)]
    )

    assert (total.time, total.power, total.rows) == pytest.approx((0.025, 0.05, 4))


def test_the_prior_of_fixed_time_says_how_odd_a_kernel_is() -> None:
    fixed_time = FixedTimePrior.of(_TRUE, list(_KERNELS.values()))
    odd = dataclasses.replace(_KERNELS["k1"], fixed_s=1.0)

    assert abs(fixed_time.surprise(_KERNELS["k1"])) < abs(fixed_time.surprise(odd))
