"""Costs of kernels at a few settings, drawn for tests of planning."""

import math

import numpy as np
from hypothesis import strategies as st

from underclock.core.step.cost_table import CostTable
from underclock.records import AUTO, Clocks, Kernel, Pass


@st.composite
def cost_tables(draw: st.DrawFn, *, most_kernels: int = 6) -> CostTable:
    """Draw costs on a grid, with settings some kernels lack; the last setting is auto."""
    kernels, count = draw(st.integers(1, most_kernels)), draw(st.integers(1, 5))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    most = draw(st.sampled_from([4, 1000]))
    missing = random.random((kernels, count)) < draw(st.sampled_from([0.0, 0.3]))
    missing[:, -1] = False
    shape = (kernels, count)
    return CostTable(
        kernels=tuple(
            Kernel(name=f"k{k}", pass_=draw(st.sampled_from(Pass))) for k in range(kernels)
        ),
        settings=(*(Clocks(core_mhz=100 * (s + 1)) for s in range(count - 1)), AUTO),
        time_s=np.where(missing, math.inf, random.integers(1, most + 1, shape) * 1e-3),
        energy_j=np.where(missing, math.inf, random.integers(1, most + 1, shape) * 0.1),
        baseline=count - 1,
    )
