"""What a campaign may measure: a window of a kernel, of the step, or of co-load by itself."""

from dataclasses import dataclass

from underclock.records import ALONE, AUTO, Clocks, Mix


@dataclass(frozen=True, slots=True)
class Wanted:
    """A window to take.

    Attributes:
        kernel: Of which launches run; empty for the whole step, or for co-load by itself.
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
        """Whether the whole step runs, by itself or with co-load."""
        return not self.kernel and self.mix.launches > 0
