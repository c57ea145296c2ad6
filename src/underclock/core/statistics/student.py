"""Student's t without SciPy: a process that holds clocks must not load it then."""

import math

_INTERVALS = 200
_WITHIN, _EXACT = 0.95, 1e-9  # the next step would be its square


def student_quantile(freedom: float) -> float:
    """Return Student's t that is exceeded by 2.5 %.

    With t = √f tan θ its density goes as cos θ to the power f - 1, whose integral is concave:
    Newton's steps from 0 never pass the angle that is looked for.
    """
    power = freedom - 1.0
    halves = math.lgamma(0.5 * freedom) - math.lgamma(0.5 * freedom + 0.5)
    target = _WITHIN * 0.5 * math.sqrt(math.pi) * math.exp(halves)
    angle, step = 0.0, math.inf
    while step > _EXACT:
        # The integral from 0 to the angle, by Simpson's rule.
        width = angle / _INTERVALS
        values: list[float] = [math.cos(at * width) ** power for at in range(_INTERVALS + 1)]
        inner = 4.0 * math.fsum(values[1:-1:2]) + 2.0 * math.fsum(values[2:-1:2])
        step = (target - (values[0] + inner + values[-1]) * width / 3.0) / values[-1]
        angle += step
    return math.sqrt(freedom) * math.tan(angle)
