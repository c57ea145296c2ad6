"""Which settings tell most about kernels nobody has measured: D-optimal designs, chosen greedily.

Shape letters: N typical kernels, C settings, Q quantities measured at each, P parameters.
"""

import math

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.model.parameters import Parameters, Points, Shared, predicted_rows
from underclock.core.model.rows import PER_KERNEL
from underclock.physics.constants import GpuConstants

# Of the fastest core clock. Far below the knee voltage falls no more, so slower ones tell of little
# that plans do. Memory has no such floor: what hardly uses it saves most at its slowest clock, and
# that clock tells best how much a kernel uses it.
_LEAST_CORE = 0.4
_NOISE = 0.02  # of a measurement, as a fraction
_WARM_C = 55.0
_LAUNCH_S, _SWITCHING_W = 1.0, 150.0  # any length will do; half of a GPU of 300 W
# Of a kernel's time: core, DRAM, fixed; and of its power, switching. Bound by the core, by DRAM,
# and by both.
_TYPICAL = np.array([[0.95, 0.3, 0.02, 0.5], [0.5, 0.9, 0.05, 0.3], [0.8, 0.75, 0.05, 0.4]])


def greedy_d_optimal(
    derivatives: Floats,
    information: Floats,
    points: int,
    *,
    allowed: Bools | None = None,
) -> Ints:
    """Choose settings, each the one that adds most information to those before it.

    Args:
        derivatives: Of what is measured by the parameters, over its noise. Shape (Q, N, C, P).
        information: Of the prior. Shape (P, P).
        allowed: Settings that may be chosen; by default all. Shape (C,).

    Returns:
        Indices of settings, fewer than ``points`` where fewer are allowed.
    """
    allowed = np.ones(derivatives.shape[2], dtype=bool) if allowed is None else allowed
    added = np.einsum("qnci,qncj->ncij", derivatives, derivatives)
    known = np.tile(information, (derivatives.shape[1], 1, 1))
    handicap = np.where(allowed, 0.0, -math.inf)
    chosen: list[int] = []
    for _ in range(min(points, int(allowed.sum()))):
        gains = np.linalg.slogdet(known[:, None] + added)[1].sum(axis=0) + handicap
        gains[chosen] = -math.inf
        best = int(np.argmax(gains))
        chosen.append(best)
        known += added[:, best]
    return np.array(chosen, dtype=np.int64)


def initial_design(base: GpuConstants, core_mhz: Floats, mem_mhz: Floats, points: int) -> Ints:
    """Choose the settings at which a campaign measures every kernel first. Shape (points,).

    Every memory clock may be among them. What is left out waits for what these tell.

    Args:
        core_mhz: Of every setting. Shape (C,).
        mem_mhz: Of every setting. Shape (C,).
    """
    family = Shared(base)
    top_mhz, fastest_mhz = float(core_mhz.max()), float(mem_mhz.max())
    count, settings = len(_TYPICAL), len(core_mhz)
    # Parameters are cycles, seconds and joules: shares of what the fastest clocks do in a launch.
    scale = np.log([top_mhz, fastest_mhz, _LAUNCH_S, _SWITCHING_W])
    parameters = Parameters(
        family=family,
        shared=family.start(),
        kernels=np.log(_TYPICAL) + scale,
    )
    at = Points(
        kernel=np.repeat(np.arange(count), settings),
        core_mhz=np.tile(core_mhz, count),
        mem_mhz=np.tile(mem_mhz, count),
        temperature_c=np.full(count * settings, _WARM_C),
    )
    prediction = predicted_rows(parameters, at)
    by = np.concatenate([prediction.by_kernel(), prediction.by_shared()], axis=-1)
    prior = np.concatenate([np.ones(PER_KERNEL), family.spread() ** -2.0])
    return greedy_d_optimal(
        (by / _NOISE).reshape(2, count, settings, -1),
        np.diag(prior),
        points,
        allowed=core_mhz >= _LEAST_CORE * top_mhz,
    )
