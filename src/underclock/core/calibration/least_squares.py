"""Damped least squares within bounds, robust where asked: scipy's, with the options we share.

The fit of campaigns has its own (`core.model.damped_steps`), for its equations are an arrow: dense
ones of a thousand kernels would not fit in memory.

Shape letters: N residuals, V parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from underclock.arrays import Floats

_ROBUST = 0.03  # residuals beyond a few per cent pull less: a soft L1 loss


@dataclass(frozen=True, slots=True)
class Minimum:
    """Where the sum of squares is least.

    Attributes:
        vector: Shape (V,).
        cost: Half the sum there, of the robust loss where one was asked for.
    """

    vector: Floats
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """What is to be small.

    Attributes:
        at: Residuals at a vector. Shape (N,).
        jacobian: Their derivatives, (N, V); or the relative step of finite differences.
    """

    at: Callable[[Floats], Floats]
    jacobian: Callable[[Floats], Floats] | float


def minimise(
    residuals: Residuals,
    start: Floats,
    bounds: tuple[Floats, Floats],
    *,
    robust: bool,
    most_evaluations: int,
) -> Minimum:
    """Return the least sum of squares near a start.

    Args:
        residuals: What is to be small.
        start: Shape (V,).
        bounds: Least and greatest value of each parameter. Shapes (V,).
        robust: Whether outliers are to pull less.
        most_evaluations: After which the best so far is returned.
    """
    given = callable(residuals.jacobian)
    fit = least_squares(
        residuals.at,
        start,
        jac=residuals.jacobian if given else "2-point",
        diff_step=None if given else residuals.jacobian,
        bounds=bounds,
        loss="soft_l1" if robust else "linear",
        f_scale=_ROBUST,
        x_scale="jac" if given else 1.0,
        max_nfev=most_evaluations,
    )
    return Minimum(np.asarray(fit.x, dtype=np.float64), float(fit.cost))
