"""Which steps of a training script are looked at."""

from dataclasses import dataclass
from pathlib import Path

from underclock.errors import UsageError

_BEFORE = 2  # in the first the optimiser makes its state, in the second all is as in those after


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A training script and which of its steps to look at.

    Attributes:
        path: Its file.
        arguments: Of its command line.
        first: The first step to look at, counted from 0.
        last: The last one.
    """

    path: Path
    arguments: tuple[str, ...] = ()
    first: int
    last: int

    def __post_init__(self) -> None:
        """Refuse steps that cannot be looked at.

        Raises:
            UsageError: There are fewer than two, or they are the script's very first.
        """
        if self.last <= self.first:
            raise UsageError(
                f"cannot trace steps {self.first}:{self.last + 1} alone: one step is profiled, a "
                "later one captured",
                hint=f"give at least two: --steps {self.first}:{self.first + 2}",
            )
        if self.first < _BEFORE:
            raise UsageError(
                f"cannot trace step {self.first}: the first {_BEFORE} make the optimiser's state",
                hint="take later ones, such as --steps 20:22",
            )
