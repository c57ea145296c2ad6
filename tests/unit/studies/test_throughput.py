"""Rates and energies of operations, fitted to published changes."""

import dataclasses
import math

import numpy as np
import pytest

from gpu_specs import SPECS
from throughput import PublishedChange, PublishedGpu, fit_throughput, residuals_of, shortfall
from underclock.records import Clocks, Kernel, Kind

_SPEC = SPECS["rtx3080ti"]


@pytest.mark.untraced
def test_published_changes_are_fitted_by_rates_and_energies() -> None:
    throughput = _SPEC.throughput
    assert throughput is not None
    board = PublishedGpu(
        constants=_SPEC.constants,
        core_mhz=np.array(_SPEC.core_mhz, dtype=np.float64),
        limit_w=345.0,
        auto_mem_mhz=9501.0,
    )
    kernels = (
        Kernel(name="product", kind=Kind.GEMM, flops=1e12, bytes_moved=7e8),
        Kernel(name="copy", kind=Kind.MEMORY, flops=1e9, bytes_moved=1e9),
    )
    target = dataclasses.replace(throughput, dram_byte_j=1.4 * throughput.dram_byte_j)
    asked = [Clocks(mem_mhz=5001), Clocks(core_mhz=1050)]
    bare = [
        PublishedChange(kernel=k, clocks=c, time_change=0.0, energy_change=0.0)
        for k, c in zip(kernels, asked, strict=True)
    ]
    truth = np.exp(residuals_of(board, target, bare)) - 1.0
    changes = [
        dataclasses.replace(change, time_change=float(t), energy_change=float(e))
        for change, (t, e) in zip(bare, truth, strict=True)
    ]
    before = np.abs(residuals_of(board, throughput, changes)).sum()
    fitted, boost_mhz = fit_throughput(board, throughput, changes)

    assert np.abs(residuals_of(board, fitted, changes)).sum() <= before
    assert boost_mhz == pytest.approx(_SPEC.constants.boost_mhz, rel=0.11)
    assert shortfall(board, fitted, changes).shape == (1,)
    assert math.isfinite(fitted.tensor_flop)
