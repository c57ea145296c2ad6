"""A step that draws less runs cooler, and so draws less again: leakage follows temperature.

Shape letters: S settings.
"""

from dataclasses import dataclass

from underclock.arrays import Floats
from underclock.physics.constants import Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """How temperature follows the step's mean power, once it is steady, and power temperature.

    Attributes:
        c_per_w: Rise of temperature with mean power.
        w_per_c: Rise of power with temperature, at each setting. Shape (S,).
    """

    c_per_w: float
    w_per_c: Floats

    def extra_w(self, mean_w: Values, auto_w: float, w_per_c: Values) -> Values:
        """Return what a step draws more, for being at another temperature than at auto.

        Args:
            mean_w: Mean power of the step at the temperature it has at auto.
            auto_w: Mean power of the step at auto.
            w_per_c: Rise of its power with temperature.
        """
        loop = self.c_per_w * w_per_c
        extra: Values = loop * (mean_w - auto_w) / (1.0 - loop)
        return extra
