"""A posterior under a limit of power: what would draw more runs where it draws that.

There the limit tells the power, and what the fit misses of it is made good by time.

Shape letters: K kernels, C settings.
"""

import dataclasses
import math

import numpy as np

from underclock.arrays import Floats
from underclock.core.model.posterior import Posterior

_SETTLES = 0.003  # by so much kernels differ in the power at which a loop settles
_STEEPEST = 2.0  # exponent of time with power: half of the power at least follows the speed


def capped(posterior: Posterior, core_mhz: Floats, mem_mhz: Floats, limit_w: float) -> Posterior:
    """Return what kernels cost under a limit, each by itself.

    Between two settings logarithms are taken to be linear in the logarithm of power.

    Args:
        posterior: Without the limit.
        core_mhz: Core clock of each setting. Shape (C,).
        mem_mhz: Memory clock of each setting. Shape (C,).
        limit_w: The limit.
    """
    limit = math.log(limit_w)
    log_s, log_w = posterior.log_s.copy(), posterior.log_w.copy()
    by_shared, by_kernel = posterior.by_shared.copy(), posterior.by_kernel.copy()
    discrepancy = posterior.discrepancy.copy()
    for memory in np.unique(mem_mhz):
        ladder = np.flatnonzero(mem_mhz == memory)
        ladder = ladder[np.argsort(core_mhz[ladder], kind="stable")]
        above = posterior.log_w[:, ladder] > limit
        # What draws more at the slowest clock already is left as it is.
        for k in np.flatnonzero(above.any(axis=1) & ~above[:, 0]).tolist():
            first = int(above[k].argmax())
            low, high = ladder[first - 1 : first + 1].tolist()
            held = ladder[first:]
            rise = posterior.log_w[k, high] - posterior.log_w[k, low]
            share = (limit - posterior.log_w[k, low]) / rise
            faster = posterior.log_s[k, high] - posterior.log_s[k, low]
            per_power = float(np.clip(faster / rise, -_STEEPEST, 0.0))

            def between(values: Floats, k: int = k, share: float = share) -> Floats:
                ends = values[:, k, [low, high]]  # noqa: B023 - called within this round only
                mixed: Floats = ends[:, 0] + share * (ends[:, 1] - ends[:, 0])
                return mixed

            log_s[k, held] = posterior.log_s[k, low] + share * faster
            log_w[k, held] = limit
            for moves, of in ((by_shared, posterior.by_shared), (by_kernel, posterior.by_kernel)):
                time, power = between(of)
                moves[0, k, held], moves[1, k, held] = time - per_power * power, 0.0
            time2, power2 = between(posterior.discrepancy)
            discrepancy[0, k, held] = time2 + per_power**2 * (power2 + _SETTLES**2)
            discrepancy[1, k, held] = _SETTLES**2
    return dataclasses.replace(
        posterior,
        log_s=log_s,
        log_w=log_w,
        by_shared=by_shared,
        by_kernel=by_kernel,
        discrepancy=discrepancy,
    )
