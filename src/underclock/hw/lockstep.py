"""Ranks that launch the same work as often as each other, because a collective waits for all.

One rank leads: it measures, and says beforehand what it is about to do. The others follow: they
launch what it launches, as often, and hold the clocks it holds. What a rank finds out by itself,
such as how long a launch takes, is agreed upon: the leader's number counts.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Protocol

import msgspec

from underclock.errors import MeasurementError, NoRoomError
from underclock.hw.base import Gpu
from underclock.hw.lease import ClockLeases
from underclock.records import AUTO, Clocks, Kernel, Mix


class StepKernels(msgspec.Struct, frozen=True, tag=True):
    """What the leader's step is made of, to be held against one's own."""

    names: tuple[str, ...]


class BeginLoop(msgspec.Struct, frozen=True, tag=True):
    """Launches of a loop follow."""

    kernels: tuple[str, ...]
    mix: Mix | None


class AgreedNumber(msgspec.Struct, frozen=True, tag=True):
    """What the leader found out, which counts for all."""

    value: float


class LaunchOnce(msgspec.Struct, frozen=True, tag=True):
    """One more launch of the loop."""


class EndLoop(msgspec.Struct, frozen=True, tag=True):
    """No more launches of the loop."""


class HoldClocks(msgspec.Struct, frozen=True, tag=True):
    """Clocks to hold from now on; auto gives them back."""

    clocks: Clocks


class Done(msgspec.Struct, frozen=True, tag=True):
    """Nothing more follows."""


Word = StepKernels | BeginLoop | AgreedNumber | LaunchOnce | EndLoop | HoldClocks | Done


class Speaker(Protocol):
    """The leader's end of a line to every follower."""

    def say(self, words: bytes) -> None:
        """Say something to all."""
        ...


class Listener(Protocol):
    """A follower's end, where everything arrives in order."""

    def hear(self) -> bytes:
        """Wait for what is said next; however long that takes."""
        ...


class Pace(Protocol):
    """When a launcher may launch what, and how often."""

    def begin(self, kernels: tuple[str, ...], mix: Mix | None) -> None:
        """Take note that a loop begins."""
        ...

    def agreed(self, value: float) -> float:
        """Return the number that counts for every rank."""
        ...

    def go(self) -> bool:
        """Ask before a launch whether there is to be one."""
        ...

    def end(self) -> None:
        """Take note that no more launches of the loop come."""
        ...


class PacedLoop(Protocol):
    """A loop that ends when its pace says so."""

    def run_out(self) -> None:
        """Wait until it did."""
        ...


class PacedLauncher(Protocol):
    """Runs kernels at a pace."""

    def loop(
        self, kernels: Sequence[Kernel], mix: Mix | None = None
    ) -> AbstractContextManager[PacedLoop]:
        """Keep launching a sequence, as `hw.base.Launcher` does."""
        ...


class Alone:
    """The pace of a process that waits for no other."""

    def begin(self, kernels: tuple[str, ...], mix: Mix | None) -> None:
        """Nobody is to know."""

    def agreed(self, value: float) -> float:
        """Return the value."""
        return value

    def go(self) -> bool:
        """Yes."""
        return True

    def end(self) -> None:
        """Nobody is to know."""


class LeadingRank:
    """The pace of the rank that measures."""

    def __init__(self, line: Speaker) -> None:
        self._line = line

    @contextmanager
    def leading(self, kernels: Sequence[Kernel]) -> Iterator[None]:
        """Have the others follow from entry to exit.

        Args:
            kernels: Of the step; theirs must be the same.
        """
        self._say(StepKernels(tuple(kernel.name for kernel in kernels)))
        try:
            yield
        finally:
            self._say(Done())

    def begin(self, kernels: tuple[str, ...], mix: Mix | None) -> None:
        """Have the others make the same loop."""
        self._say(BeginLoop(kernels, mix))

    def agreed(self, value: float) -> float:
        """Return the value, which counts for the others too."""
        self._say(AgreedNumber(value))
        return value

    def go(self) -> bool:
        """Have the others launch once more."""
        self._say(LaunchOnce())
        return True

    def end(self) -> None:
        """Have the others end their loop."""
        self._say(EndLoop())

    @contextmanager
    def hold(self, clocks: Clocks) -> Iterator[None]:
        """Have the others hold clocks from entry to exit."""
        self._say(HoldClocks(clocks))
        try:
            yield
        finally:
            self._say(HoldClocks(AUTO))

    def _say(self, word: Word) -> None:
        self._line.say(msgspec.json.encode(word))


class LeadersLeases(ClockLeases):
    """Leases of the leader's clocks, with which the others hold the same.

    Args:
        gpu: The leader's.
        leader: Tells the others.
    """

    def __init__(self, gpu: Gpu, leader: LeadingRank) -> None:
        super().__init__(gpu)
        self._leader = leader

    @contextmanager
    def hold(self, clocks: Clocks) -> Iterator[None]:
        """Hold clocks on every rank's GPU; as of one GPU otherwise."""
        with self._leader.hold(clocks), super().hold(clocks):
            yield


class FollowingRank:
    """The pace of a rank that does as the leader does."""

    def __init__(self, line: Listener) -> None:
        self._line = line

    def begin(self, kernels: tuple[str, ...], mix: Mix | None) -> None:
        """Begin as told; it was the leader who said so."""

    def agreed(self, value: float) -> float:
        """Return the leader's value in place of one's own."""
        del value
        word = self._hear()
        if not isinstance(word, AgreedNumber):
            raise _out_of_step("found a number out", word)
        return word.value

    def go(self) -> bool:
        """Wait until the leader launches once more, or ends the loop."""
        word = self._hear()
        if not isinstance(word, LaunchOnce | EndLoop):
            raise _out_of_step("launched", word)
        return isinstance(word, LaunchOnce)

    def end(self) -> None:
        """End as told."""

    def follow(
        self, launcher: PacedLauncher, kernels: tuple[Kernel, ...], leases: ClockLeases
    ) -> None:
        """Do as the leader does, until it is done.

        Args:
            launcher: Of this rank's step; its pace is this.
            kernels: Of this rank's step.
            leases: Of this rank's GPU, entered.

        Raises:
            MeasurementError: The leader's step is of other kernels, or does something else than
                this rank.
            DeviceError: A launch failed, or clocks cannot be held.
        """
        mine = {kernel.name: kernel for kernel in kernels}
        with ExitStack() as held:
            while not isinstance(word := self._hear(), Done):
                if isinstance(word, StepKernels):
                    _check_same(word.names, tuple(mine))
                elif isinstance(word, HoldClocks):
                    held.close()
                    held.enter_context(leases.hold(word.clocks))
                elif isinstance(word, BeginLoop):
                    sequence = [mine[name] for name in word.kernels]
                    # What has no room here has none on the leader, who then does something else.
                    with suppress(NoRoomError), launcher.loop(sequence, word.mix) as loop:
                        loop.run_out()
                else:
                    raise _out_of_step("waited for a loop", word)

    def _hear(self) -> Word:
        word: Word = msgspec.json.decode(self._line.hear(), type=Word)
        return word


def _check_same(leaders: tuple[str, ...], mine: tuple[str, ...]) -> None:
    for theirs, ours in zip(leaders, mine, strict=False):
        if theirs != ours:
            raise MeasurementError(
                f"ranks do not run the same step: the first has {theirs!r} where this has {ours!r}",
                hint="keep libraries from choosing other algorithms on each rank "
                "(torch.backends.cudnn.benchmark = False), and trace again",
            )
    if len(leaders) != len(mine):
        raise MeasurementError(
            f"ranks do not run the same step: the first has {len(leaders)} kernels, this "
            f"{len(mine)}",
            hint="a step of several ranks is measured where all of them do the same",
        )


def _out_of_step(did: str, word: Word) -> MeasurementError:
    return MeasurementError(
        f"ranks fell out of step: this one {did}, the leader said {type(word).__name__}",
        hint="what failed on the first rank is said there; run the same command again",
    )
