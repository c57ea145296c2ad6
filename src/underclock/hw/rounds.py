"""What a round of a mix is made of, and what its launches took.

A round is the sequence of kernels, over and over, with its co-load between: pieces of some launches
of a heater and some idling, all alike, after launches that the mix names; in a short round
there is one, at its end. Its launches differ by their place: the kernels of the sequence in
turn, then the heater, then idling, each piece of it by itself.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from underclock.hw.base import Durations
from underclock.records import Mix


@dataclass(frozen=True, slots=True)
class Turn:
    """Launches of one place in a row."""

    place: int
    times: int


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a mix."""

    kernels: int  # length of the sequence; 0 where nothing runs but co-load
    mix: Mix

    @classmethod
    def of(cls, kernels: int, mix: Mix | None) -> Self:
        """Describe a round of a sequence of so many kernels; refuse one in which nothing runs."""
        mix = mix or Mix()
        made = cls(kernels if mix.launches else 0, mix)
        if not (made.kernels or mix.hot or mix.idle_s):
            raise ValueError("there is no kernel to launch, and no co-load")
        if mix.after and mix.after[-1] > made.length:
            raise ValueError(
                f"co-load would run after launch {mix.after[-1]} of a round of {made.length}"
            )
        return made

    @property
    def length(self) -> int:
        """Launches of its kernels."""
        return self.kernels * self.mix.launches

    @property
    def hot(self) -> int:
        """Place of the heater."""
        return self.kernels

    @property
    def idle(self) -> int:
        """Place of idling in the first piece of co-load; those of later pieces follow."""
        return self.kernels + 1

    def turns(self) -> tuple[Turn, ...]:
        """Return what runs, in order."""
        turns: list[Turn] = []
        begin = 0
        for piece, end in enumerate(self.mix.after or (self.length,)):
            turns += [*self._between(begin, end), *self.coload(piece)]
            begin = end
        return (*turns, *self._between(begin, self.length))

    def coload(self, piece: int) -> tuple[Turn, ...]:
        """Return what runs in a piece of its co-load, counted from 0."""
        mix = self.mix
        hot = (Turn(self.hot, mix.hot // mix.pieces),) if mix.hot else ()
        return (*hot, Turn(self.idle + piece, 1)) if mix.idle_s else hot

    def _between(self, begin: int, end: int) -> Sequence[Turn]:
        """Return launches of kernels from one to another, counted through the round."""
        if self.kernels == 1:
            return [Turn(0, end - begin)] if end > begin else []
        return [Turn(launch % self.kernels, 1) for launch in range(begin, end)]

    def launches(self) -> dict[int, int]:
        """Return how many launches of each place are in a round."""
        counted: Counter[int] = Counter()
        for turn in self.turns():
            counted[turn.place] += turn.times
        return dict(counted)

    def durations(self, mean_s: Mapping[int, float]) -> Durations:
        """Return what launches took, by the mean duration of a launch of each place."""
        pieces = range(self.mix.pieces if self.mix.idle_s else 0)
        idle_s = tuple(mean_s[self.idle + piece] for piece in pieces)
        return Durations(
            kernel_s=tuple(mean_s[place] for place in range(self.kernels)),
            hot_s=mean_s[self.hot] if self.mix.hot else None,
            idle_s=sum(idle_s) if idle_s else None,
            pieces_s=idle_s,
        )
