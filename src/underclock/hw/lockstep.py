"""Ranks that launch the same work as often as each other, because a collective waits for all.

One rank leads: it measures, and says beforehand what it is about to do. The rest follow: they
launch what it launches, as often, and hold the clocks it holds. What a rank finds out by itself,
such as how long a launch takes, is agreed upon: the leader's number counts. What the leader says
goes through the store of PyTorch by which the ranks found one another.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from enum import StrEnum
from importlib import import_module
from typing import Any, Protocol

import msgspec

from underclock.errors import MeasurementError, NoRoomError, NotSupportedError
from underclock.hw.base import Clock, Gpu, SystemClock
from underclock.hw.lease import ClockLeases
from underclock.records import AUTO, Clocks, Kernel, Mix

_LOOK_S = 1e-3  # a signal can end such a wait, which it could not inside of the store's own
_LONGEST_S = 10.0
_PARTING_S = 5.0
SILENT_S = 300.0
"""Longest from one word of the leader's to its next, in s: it fits and plans between two loops."""
_AGREEMENT = "underclock/agreement"
_FAILED = f"{_AGREEMENT}/failed"
_MEETINGS = itertools.count()
_LINES = itertools.count()  # of this process; every rank's process makes as many


class Act(StrEnum):
    """What the leader does."""

    COMPARE = "names its step's kernels, to be held against one's own"
    BEGIN = "begins a loop: its launches follow"
    AGREE = "found a number out, which counts for all"
    HOLD = "holds clocks from now on; auto gives them back"
    LAUNCH = "launches once more"
    END_LOOP = "ends its loop"
    DONE = "is done: nothing more follows"


class Word(msgspec.Struct, frozen=True):
    """What the leader says."""

    act: Act
    kernels: tuple[str, ...] = ()
    mix: Mix | None = None
    value: float = 0.0
    clocks: Clocks = AUTO


class PacedLoop(Protocol):
    """A loop that ends when its pace says so."""

    def run_out(self) -> None:
        """Wait until it did."""


class RankPace:
    """When a launcher may launch what, and how often: by itself, in a process that is alone."""

    def begin(self, kernels: tuple[str, ...], mix: Mix | None) -> None:
        """Take note that a loop begins."""

    def agreed(self, value: float) -> float:
        """Return the number that counts for every rank."""
        return value

    def go(self) -> bool:
        """Ask before a launch whether there is to be one."""
        return True

    def end(self) -> None:
        """Take note that no more launches of the loop come."""


class LeadingRank(RankPace):
    """The pace of the rank that measures."""

    def __init__(self, tell: Callable[[bytes], None]) -> None:
        self._tell = tell

    @contextmanager
    def leading(self, kernels: Sequence[Kernel]) -> Iterator[None]:
        """Have the ranks, whose step must be of the same kernels, follow from entry to exit."""
        self.say(Act.COMPARE, kernels=tuple(kernel.name for kernel in kernels))
        try:
            yield
        finally:
            self.say(Act.DONE)

    def begin(self, kernels: tuple[str, ...], mix: Mix | None) -> None:
        """Have the following ranks make the same loop."""
        self.say(Act.BEGIN, kernels=kernels, mix=mix)

    def agreed(self, value: float) -> float:
        """Return the value, which counts for the following ranks too."""
        self.say(Act.AGREE, value=value)
        return value

    def go(self) -> bool:
        """Have the following ranks launch once more."""
        self.say(Act.LAUNCH)
        return True

    def end(self) -> None:
        """Have the following ranks end their loop."""
        self.say(Act.END_LOOP)

    def say(self, act: Act, **of: Any) -> None:
        """Have the following ranks do the same."""
        self._tell(msgspec.json.encode(Word(act, **of)))


class LeadersLeases(ClockLeases):
    """Leases of the leader's clocks, with which the following ranks hold the same."""

    def __init__(self, gpu: Gpu, leader: LeadingRank) -> None:
        super().__init__(gpu)
        self._leader = leader

    @contextmanager
    def hold(self, clocks: Clocks) -> Iterator[None]:
        """Hold clocks on every rank's GPU; as of one GPU otherwise."""
        self._leader.say(Act.HOLD, clocks=clocks)
        try:
            with super().hold(clocks):
                yield
        finally:
            self._leader.say(Act.HOLD)


class FollowingRank(RankPace):
    """The pace of a rank that does as the leader does."""

    def __init__(self, listen: Callable[[], bytes]) -> None:
        self._listen = listen

    def agreed(self, value: float) -> float:
        """Return the leader's value in place of one's own."""
        del value
        word = self._hear()
        if word.act is not Act.AGREE:
            raise _out_of_step("found a number out", word)
        return word.value

    def go(self) -> bool:
        """Wait until the leader launches once more, or ends the loop."""
        word = self._hear()
        if word.act not in {Act.LAUNCH, Act.END_LOOP}:
            raise _out_of_step("launched", word)
        return word.act is Act.LAUNCH

    def follow(
        self,
        loops: Callable[[Sequence[Kernel], Mix | None], AbstractContextManager[PacedLoop]],
        kernels: tuple[Kernel, ...],
        leases: ClockLeases,
    ) -> None:
        """Do as the leader does, until it is done."""
        mine = {kernel.name: kernel for kernel in kernels}
        with ExitStack() as held:
            while (word := self._hear()).act is not Act.DONE:
                if word.act is Act.COMPARE:
                    _check_same(word.kernels, tuple(mine))
                elif word.act is Act.HOLD:
                    held.close()
                    held.enter_context(leases.hold(word.clocks))
                elif word.act is Act.BEGIN:
                    sequence = [mine[name] for name in word.kernels]
                    # What has no room here has none on the leader, who then does something else.
                    with suppress(NoRoomError), loops(sequence, word.mix) as loop:
                        loop.run_out()
                else:
                    raise _out_of_step("waited for a loop", word)

    def _hear(self) -> Word:
        return msgspec.json.decode(self._listen(), type=Word)


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
        f"ranks fell out of step: this one {did}, and the leader {word.act}",
        hint="what failed on the first rank is said there; run the same command again",
    )


def is_distributed(torch: Any) -> bool:
    """Whether this process trains in a group of ranks."""
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def meet(torch: Any, clock: Clock) -> bool:
    """Wait without the GPUs until every rank is here, or for too long; return whether all came.

    For what one rank does first shows as waiting on the rest.
    """
    if not is_distributed(torch):
        return True
    store, ranks = _store(torch), int(torch.distributed.get_world_size())
    key = f"underclock/meeting{next(_MEETINGS)}"
    store.add(key, 1)
    return _came(clock, lambda: int(store.add(key, 0)) >= ranks, _LONGEST_S)


def _came(clock: Clock, is_so: Callable[[], bool], longest_s: float) -> bool:
    """Wait until something is so, or for too long; return whether it is."""
    begun_s = clock.now_s()
    while not (found := is_so()) and clock.now_s() - begun_s <= longest_s:
        clock.sleep_s(_LOOK_S)
    return found


def _store(torch: Any) -> Any:
    return torch.distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - nothing else has it


class RankAgreement:
    """The ranks of one job, which agree on what each of them does next.

    Each rank says a word and hears the words of all, in the order of the ranks; a rank that cannot
    go on says why, and every rank that asks then or later raises that. A process that trains alone
    is rank 0 of 1 and agrees with itself.
    """

    def __init__(self, torch: Any, clock: Clock, *, longest_s: float) -> None:
        self._clock = clock
        self._longest_s = longest_s  # that it waits for the word of another rank
        self._words = 0
        self.number, self.world = 0, 1  # which rank this is, and of how many
        self._store: Any = None
        if is_distributed(torch) and torch.distributed.get_world_size() > 1:
            self.number = int(torch.distributed.get_rank())
            self.world = int(torch.distributed.get_world_size())
            self._store = _store(torch).clone()  # a connection that the job does not wait on

    def agree(self, word: str) -> tuple[str, ...]:
        """Say a word and return the words of all ranks."""
        self._words += 1
        if self._store is None:
            return (word,)
        keys = [f"{_AGREEMENT}/{self._words}/{rank}" for rank in range(self.world)]
        self._store.set(keys[self.number], word)
        if not _came(
            self._clock,
            lambda: bool(self._store.check(keys) or self._store.check([_FAILED])),
            self._longest_s,
        ):
            missing = [str(rank) for rank, key in enumerate(keys) if not self._store.check([key])]
            raise MeasurementError(
                f"rank {', '.join(missing)} of {self.world} did not come to the end "
                f"of the same step within {self._longest_s:.0f} s",
                hint="every rank must take the same steps: run the command by itself first",
            )
        if not self._store.check(keys):
            rank, _, why = bytes(self._store.get(_FAILED)).decode().partition(" ")
            raise MeasurementError(
                f"rank {rank} of {self.world} cannot go on: {why}",
                hint="what failed there is printed by that rank; all ranks end here",
            )
        return tuple(bytes(self._store.get(key)).decode() for key in keys)

    def fail(self, why: str) -> None:
        """Have every other rank learn that this one cannot go on, and why."""
        if self._store is not None:
            self._store.compare_set(_FAILED, "", f"{self.number} {why}")

    def part(self) -> None:
        """Leave last where this rank may keep the store by which the ranks hear one another."""
        if self._store is None:
            return
        store, key = self._store, f"{_AGREEMENT}/parted"
        store.add(key, 1)
        if self.number == 0:
            _came(self._clock, lambda: int(store.add(key, 0)) >= self.world, _PARTING_S)


class StoreLine:
    """A line over PyTorch's store; the step's own code makes the job's ranks meet there.

    Lines have numbers, the same on each rank; by default they are counted.
    """

    def __init__(self, number: int | None = None, clock: Clock | None = None) -> None:
        self._prefix = f"underclock/line{next(_LINES) if number is None else number}"
        self._clock = clock or SystemClock()
        self._place = 0
        self._store: Any = None

    def say(self, words: bytes) -> None:
        """Say something to every rank."""
        self._met().set(self._next(), words)

    def hear(self) -> bytes:
        """Wait for what is said next."""
        store, key = self._met(), self._next()
        if not _came(self._clock, lambda: bool(store.check([key])), SILENT_S):
            raise MeasurementError(
                f"the first rank said nothing for {SILENT_S:g} s, and this one waits for what "
                "to launch next",
                hint="see what the first rank waits for with py-spy; end all ranks, and "
                "measure again",
            )
        return bytes(store.get(key))

    def _next(self) -> str:
        self._place += 1
        return f"{self._prefix}/{self._place}"

    def _met(self) -> Any:
        """Return our own connection, which the job does not wait on."""
        if self._store is None:
            torch: Any = import_module("torch")  # CUDA plays no part here
            if not is_distributed(torch):
                raise NotSupportedError(
                    "the step has collectives, but its ranks did not meet in "
                    "torch.distributed.init_process_group",
                    hint="let the step's file or its first run call it, as in training",
                )
            self._store = _store(torch).clone()
        return self._store
