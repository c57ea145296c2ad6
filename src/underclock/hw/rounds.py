"""What a round of a mix is made of, and what its launches took.

A round is the sequence of kernels, over and over, then its company: launches of a hot companion,
then one piece of idling. Its launches are told apart by their place: the kernels of the sequence
in turn, then the companion, then idling.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from underclock.hw.base import Durations
from underclock.records import Mix


@dataclass(frozen=True, slots=True)
class Turn:
    """Launches of one place in a row.

    Attributes:
        place: Which.
        times: How many.
    """

    place: int
    times: int


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a mix.

    Attributes:
        kernels: Length of the sequence; 0 where nothing runs but company.
        mix: What it runs with.
    """

    kernels: int
    mix: Mix

    @classmethod
    def of(cls, kernels: int, mix: Mix | None) -> Self:
        """Describe a round.

        Args:
            kernels: Length of the sequence.
            mix: What it runs with; by default nothing.

        Raises:
            ValueError: Nothing would run in it.
        """
        mix = mix or Mix()
        made = cls(kernels if mix.launches else 0, mix)
        if not (made.kernels or mix.hot or mix.idle_s):
            raise ValueError("there is no kernel to launch, and no company")
        return made

    @property
    def hot(self) -> int:
        """Place of the hot companion."""
        return self.kernels

    @property
    def idle(self) -> int:
        """Place of idling."""
        return self.kernels + 1

    def turns(self) -> tuple[Turn, ...]:
        """Return what runs, in order."""
        mix = self.mix
        if self.kernels == 1:
            turns = [Turn(0, mix.launches)]
        else:
            turns = [Turn(place, 1) for place in range(self.kernels)] * mix.launches
        if mix.hot:
            turns.append(Turn(self.hot, mix.hot))
        if mix.idle_s:
            turns.append(Turn(self.idle, 1))
        return tuple(turns)

    def launches(self) -> dict[int, int]:
        """Return how many launches of each place are in a round."""
        counted: Counter[int] = Counter()
        for turn in self.turns():
            counted[turn.place] += turn.times
        return dict(counted)

    def durations(self, mean_s: Mapping[int, float]) -> Durations:
        """Return what launches took.

        Args:
            mean_s: Mean duration of a launch by its place; of every place of the round.
        """
        return Durations(
            kernel_s=tuple(mean_s[place] for place in range(self.kernels)),
            hot_s=mean_s[self.hot] if self.mix.hot else None,
            idle_s=mean_s[self.idle] if self.mix.idle_s else None,
        )
