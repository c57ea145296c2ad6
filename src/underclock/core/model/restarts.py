"""Where the parameters of kernels begin: what bounds a kernel hides the rest of it.

From a wrong start no small step leads out, so each kernel tries several.

Shape letters: K kernels, P parameters of a kernel.
"""

from typing import NamedTuple

import numpy as np

from underclock.arrays import Floats
from underclock.core.model.kernel_steps import converge_starts
from underclock.core.model.parameters import CORE, DRAM, FIXED
from underclock.core.model.state import FitProblem, FitState, kernel_costs


class Shares(NamedTuple):
    """Parts of a kernel's time, relative to all of it."""

    core: float
    dram: float
    fixed: float


_STARTS = (
    Shares(core=0.97, dram=0.3, fixed=0.02),
    Shares(core=0.4, dram=0.97, fixed=0.02),
    Shares(core=0.8, dram=0.8, fixed=0.02),
    Shares(core=0.5, dram=0.5, fixed=0.4),
)  # kernels bound by the core, by DRAM, by both, and by neither


def _started(state: FitState, shares: Shares) -> Floats:
    """Return parameters of every kernel at some shares of its time. Shape (K, P)."""
    kernels = state.prior.mean.copy()
    parts = [CORE, DRAM, FIXED]
    kernels[:, parts] = state.prior.unit[:, parts] + np.log(shares)
    return kernels


def restart(problem: FitProblem, state: FitState) -> FitState:
    """Let each kernel try every start, and keep what explains its rows best."""
    best, least = state.parameters.kernels, kernel_costs(problem, state)
    ends = converge_starts(problem, state, [_started(state, shares) for shares in _STARTS])
    for kernels, costs in zip(ends.kernels, ends.costs, strict=True):
        best = np.where((costs < least)[:, None], kernels, best)
        least = np.minimum(costs, least)
    return state.moved(kernels=best)
