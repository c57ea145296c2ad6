"""What a campaign may measure: a kernel, the step or company by itself, and mixes with names."""

from dataclasses import dataclass

from underclock.core.steering.mixing import METER_S
from underclock.records import ALONE, AUTO, Clocks, Mix

METERED = Mix(idle_s=METER_S)
"""The same with a piece of idling that tells the clock."""
COMPANIONS = Mix(launches=0, hot=8)
"""The hot companion by itself."""
IDLING = Mix(launches=0, idle_s=0.02)
"""Nothing but idling."""
WHOLE_STEPS = 4
"""Windows of the whole step to begin with: everything is compared with them."""
_ALIKE = 0.02  # mixes that differ by less are the same


@dataclass(frozen=True, slots=True)
class Wanted:
    """A window to take.

    Attributes:
        kernel: Of which launches run; empty for the whole step, or for company by itself.
        timed: Whether launches are timed inside, and the core clock is read all through; the step
            by itself is where it can be.
        warm: Whether the GPU is brought to the step's own heat before.
    """

    kernel: str = ""
    mix: Mix = ALONE
    asked: Clocks = AUTO
    timed: bool = True
    warm: bool = False

    @property
    def is_step(self) -> bool:
        """Whether the whole step runs, by itself or in company."""
        return not self.kernel and self.mix.launches > 0


def are_alike(mix: Mix, other: Mix) -> bool:
    """Whether two mixes, of the same kernel or both of none, run at the same clock."""
    here, there = (
        [part / (one.launches or one.hot) for part in (one.hot, one.idle_s)] for one in (mix, other)
    )
    return all(abs(a - b) <= _ALIKE * max(a, b) for a, b in zip(here, there, strict=True))
