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
_LEAST_ROUNDS = 5  # of a step, which say enough: a window holds them whole
_ALIKE = 0.02  # mixes that differ by less are the same


@dataclass(frozen=True, slots=True)
class Wanted:
    """A window to take.

    Attributes:
        kernel: Of which launches run; empty for the whole step, or for company by itself.
        timed: Whether launches are timed inside, and the core clock is read all through; the step
            by itself is where it can be.
        warm: Whether the GPU is brought to the step's own heat before.
        rounds: Least launches in the window; ``None`` for as many as settings say.
    """

    kernel: str = ""
    mix: Mix = ALONE
    asked: Clocks = AUTO
    timed: bool = True
    warm: bool = False
    rounds: int | None = None

    @property
    def is_step(self) -> bool:
        """Whether the whole step runs, by itself or in company."""
        return not self.kernel and self.mix.launches > 0


def shared_steps(workers: int, launches: int) -> tuple[int, int | None]:
    """Return how many windows the first looks at the whole step are shared out in.

    Args:
        workers: GPUs that are one board.
        launches: Least in a window.

    Returns:
        Windows, and the rounds in each; as many of these in all as one GPU runs, or some more.
    """
    if workers == 1 or launches <= _LEAST_ROUNDS:
        return WHOLE_STEPS, None
    return -(-WHOLE_STEPS * launches // _LEAST_ROUNDS), _LEAST_ROUNDS


def are_alike(mix: Mix, other: Mix) -> bool:
    """Whether two mixes, of the same kernel or both of none, run at the same clock."""
    here, there = (
        [part / (one.launches or one.hot) for part in (one.hot, one.idle_s)] for one in (mix, other)
    )
    return all(abs(a - b) <= _ALIKE * max(a, b) for a, b in zip(here, there, strict=True))
