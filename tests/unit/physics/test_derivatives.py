"""Many kernels at once cost what each does alone, and the derivatives are those of differences."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.arrays import Floats
from underclock.gpus.models import gpu_model
from underclock.physics.constants import GpuConstants, KernelArrays, KernelConstants
from underclock.physics.costs import BY_GPU, BY_KERNEL, AtClocks, LogCosts, busy_w, duration_s

_GPU = gpu_model("rtx3080ti").constants
_STEP = 1e-5
_ROWS = 12


def _log_costs(
    gpu: GpuConstants, kernels: KernelArrays, core: Floats, mem: Floats, warm_c: Floats
) -> LogCosts:
    return AtClocks.of(gpu, core, mem, warm_c).costs(kernels)


def _drawn(seed: int) -> tuple[GpuConstants, KernelArrays, Floats, Floats, Floats]:
    """Draw kernels and clocks, none of them at a corner of the formulas."""
    random = np.random.default_rng(seed)
    gpu = dataclasses.replace(
        _GPU,
        exponent=float(random.uniform(1.5, 6.0)),
        xbar_floor_mhz=float(random.uniform(400.0, 1200.0)),
        mem_points_efficiency=tuple(random.uniform(0.7, 1.2, len(_GPU.mem_points_mhz)).tolist()),
    )
    core_mhz = random.uniform(210.0, 2100.0, _ROWS)
    for corner in (gpu.knee_mhz, gpu.xbar_floor_mhz + gpu.xbar_lag_mhz):
        core_mhz += np.where(np.abs(core_mhz - corner) < 1.0, 5.0, 0.0)
    cycles = random.uniform(0.01, 10.0, (3, _ROWS))
    kernels = KernelArrays(
        core_mcycles=cycles[0],
        dram_mcycles=cycles[1],
        xbar_mcycles=cycles[2],
        fixed_s=random.uniform(0.0, 1e-3, _ROWS),
        work_j_per_v2=random.uniform(0.0, 2.0, _ROWS),
        dram_j=random.uniform(0.0, 1.0, _ROWS),
        serial=random.random(_ROWS) < 0.3,
    )
    mem_mhz = random.uniform(300.0, 9600.0, _ROWS)
    return gpu, kernels, core_mhz, mem_mhz, random.uniform(20.0, 90.0, _ROWS)


def _moved(costs: LogCosts, name: str, step: float) -> Floats:
    """Return logarithms with one constant, of the GPU or of every kernel, a little greater."""
    gpu, kernels = costs.at.gpu, costs.kernels
    if name in BY_KERNEL:
        kernels = dataclasses.replace(kernels, **{name: getattr(kernels, name) * np.exp(step)})
    else:
        gpu = dataclasses.replace(gpu, **{name: getattr(gpu, name) * np.exp(step)})
    return _log_costs(gpu, kernels, costs.at.core_mhz, costs.at.mem_mhz, costs.at.temperature_c).log


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_many_kernels_cost_what_each_does_alone(seed: int) -> None:
    gpu, kernels, core_mhz, mem_mhz, warm_c = _drawn(seed)
    time_s = duration_s(gpu, kernels, core_mhz, mem_mhz)
    power_w = busy_w(gpu, kernels, core_mhz, mem_mhz, warm_c)
    costs = _log_costs(gpu, kernels, core_mhz, mem_mhz, warm_c)

    for r in range(_ROWS):
        own = {name: float(getattr(kernels, name)[r]) for name in BY_KERNEL}
        one = KernelConstants(**own, serial=bool(kernels.serial[r]))
        alone_s = duration_s(gpu, one, float(core_mhz[r]), float(mem_mhz[r]))
        alone_w = busy_w(gpu, one, float(core_mhz[r]), float(mem_mhz[r]), float(warm_c[r]))
        assert (time_s[r], power_w[r]) == pytest.approx((alone_s, alone_w), rel=1e-12)
    assert np.exp(costs.log) == pytest.approx(np.stack([time_s, power_w]), rel=1e-12)


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_derivatives_by_the_constants_of_kernels(seed: int) -> None:
    costs = _log_costs(*_drawn(seed))
    by = costs.by_kernel()

    for column, name in enumerate(BY_KERNEL):
        ends = _moved(costs, name, _STEP), _moved(costs, name, -_STEP)
        assert by[:, :, column] == pytest.approx((ends[0] - ends[1]) / (2 * _STEP), abs=1e-6)


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_derivatives_by_the_constants_of_the_gpu(seed: int) -> None:
    costs = _log_costs(*_drawn(seed))
    by = costs.by_gpu()

    for column, name in enumerate(BY_GPU):
        ends = _moved(costs, name, _STEP), _moved(costs, name, -_STEP)
        assert by[:, :, column] == pytest.approx((ends[0] - ends[1]) / (2 * _STEP), abs=1e-6)


@pytest.mark.parametrize("name", ["mem_points_w", "mem_points_efficiency"])
@settings(max_examples=15)
@given(seed=st.integers(0, 10_000))
def test_derivatives_by_the_memory_points(name: str, seed: int) -> None:
    costs = _log_costs(*_drawn(seed))
    points = len(costs.at.gpu.mem_points_mhz)
    first = len(BY_GPU) + (points if name == "mem_points_efficiency" else 0)
    by = costs.by_gpu()[:, :, first : first + points]

    for m in range(points):
        ends = []
        for step in (_STEP, -_STEP):
            values = np.array(getattr(costs.at.gpu, name))
            values[m] *= np.exp(step)
            moved: dict[str, Any] = {name: tuple(values.tolist())}
            gpu = dataclasses.replace(costs.at.gpu, **moved)
            where = costs.at.core_mhz, costs.at.mem_mhz, costs.at.temperature_c
            ends.append(_log_costs(gpu, costs.kernels, *where).log)
        assert by[:, :, m] == pytest.approx((ends[0] - ends[1]) / (2 * _STEP), abs=1e-6)
