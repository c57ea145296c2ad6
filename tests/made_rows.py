"""Rows of a fit, made of parameters that the test knows."""

import math
from collections.abc import Sequence

import numpy as np

from underclock.arrays import Floats
from underclock.core.model.parameters import Points, Rows


def every_clock(kernels: int, core_mhz: Floats, mem_mhz: Sequence[float], warm_c: float) -> Points:
    """Return so many kernels at every pair of clocks, all as warm."""
    core, mem = (grid.ravel() for grid in np.meshgrid(core_mhz, mem_mhz))
    return Points(
        kernel=np.repeat(np.arange(kernels), len(core)),
        core_mhz=np.tile(core, kernels),
        mem_mhz=np.tile(mem, kernels),
        temperature_c=np.full(kernels * len(core), warm_c),
    )


def made_rows(at: Points, log: Floats, mem_mhz: Sequence[float]) -> Rows:
    """Return rows of kernels of one kind, of logarithms of time and power, shape (2, R)."""
    kernels = int(at.kernel.max()) + 1
    return Rows(
        names=tuple(f"k{k}" for k in range(kernels)),
        kinds=np.zeros(kernels, dtype=np.int64),
        kernel=at.kernel,
        core_mhz=at.core_mhz,
        mem_mhz=at.mem_mhz,
        log=log,
        temperature_c=at.temperature_c,
        windows=np.ones((2, len(at.kernel))),
        mem_points_mhz=np.array(mem_mhz),
        limit_w=math.inf,
        ceiling_mhz=math.inf,
        auto_mem_mhz=mem_mhz[-1],
    )
