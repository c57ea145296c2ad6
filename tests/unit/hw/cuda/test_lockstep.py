"""Ranks in lockstep: the same launches, as often, at the same clocks; the line between them."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from underclock.errors import DeviceError, MeasurementError, NoRoomError, NotSupportedError
from underclock.hw.base import SystemClock
from underclock.hw.cuda.feed import Feed
from underclock.hw.lease import ClockLeases
from underclock.hw.lockstep import (
    Act,
    FollowingRank,
    LeadingRank,
    RankPace,
    StoreLine,
    Word,
    meet,
)
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.records import Kernel, Mix
from underclock.testing import simulated_driver

_STEP = (Kernel(name="mm"), Kernel(name="allreduce"))


class Said:
    """A line between threads; each of its ears hears everything."""

    def __init__(self, *words: Word) -> None:
        self.words: list[bytes] = [msgspec.json.encode(word) for word in words]
        self.more = threading.Condition()

    def say(self, words: bytes) -> None:
        with self.more:
            self.words.append(words)
            self.more.notify_all()

    def decoded(self) -> list[Word]:
        return [msgspec.json.decode(words, type=Word) for words in self.words]

    def ear(self) -> "Ear":
        return Ear(self)


@dataclass
class Ear:
    line: Said
    place: int = 0

    def hear(self) -> bytes:
        with self.line.more:
            assert self.line.more.wait_for(lambda: len(self.line.words) > self.place, timeout=10)
            self.place += 1
            return self.line.words[self.place - 1]


class FakeMoment:
    def __init__(self, *, enable_timing: bool = False) -> None: ...

    def record(self, _stream: object) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, _other: object) -> float:
        return 1.0


_TORCH = SimpleNamespace(
    cuda=SimpleNamespace(
        current_device=lambda: 0,
        set_device=lambda _device: None,
        Stream=FakeMoment,
        Event=FakeMoment,
    )
)


@dataclass
class Rank:
    """A launcher that notes what it launched; ``takes_s`` is what its own GPU would tell it."""

    pace: RankPace
    takes_s: float
    launched: list[tuple[tuple[str, ...], Mix | None, int]] = field(default_factory=list)
    fails: Exception | None = None
    no_room: bool = False

    @contextmanager
    def loop(self, kernels: Sequence[Kernel], mix: Mix | None = None) -> Iterator[Feed]:
        names = tuple(kernel.name for kernel in kernels)
        self.pace.begin(names, mix)
        if self.no_room:
            raise NoRoomError("no room")
        rounds = round(1.0 / self.pace.agreed(self.takes_s))
        count = 0

        def launch(_stream: Any) -> None:
            nonlocal count
            if self.fails is not None:
                raise self.fails
            count += rounds

        with Feed(_TORCH, launch, rounds, self.pace) as feed:
            yield feed
        self.launched.append((names, mix, count))


@pytest.fixture
def gpu() -> Iterator[NvmlGpu]:
    with simulated_driver("a100"), nvml_session():
        yield NvmlGpu()


def _following(rank: Rank, ear: Ear, gpu: NvmlGpu) -> Callable[[], None]:
    follower = FollowingRank(ear.hear)
    rank.pace = follower

    def follow() -> None:
        with ClockLeases(gpu) as leases:
            follower.follow(rank.loop, _STEP, leases)

    return follow


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            [Word(Act.COMPARE, ("mm", "allgather"))],
            "the first has 'allgather' where this has 'allreduce'",
        ),
        ([Word(Act.COMPARE, ("mm",))], "the first has 1 kernels, this 2"),
        ([Word(Act.LAUNCH)], "this one waited for a loop, and the leader launches once more"),
        (
            [Word(Act.BEGIN, ("mm",)), Word(Act.LAUNCH)],
            "this one found a number out, and the leader launches once more",
        ),
        (
            [Word(Act.BEGIN, ("mm",)), Word(Act.AGREE, value=0.1), Word(Act.DONE)],
            "this one launched, and the leader is done: nothing more follows",
        ),
    ],
)
def test_ranks_that_do_not_do_the_same_are_told_apart(
    words: list[Word], sentence: str, gpu: NvmlGpu
) -> None:
    rank = Rank(RankPace(), 1.0)
    with pytest.raises((MeasurementError, DeviceError), match=sentence):
        _following(rank, Said(*words).ear(), gpu)()


torch: Any = pytest.importorskip("torch")


@pytest.fixture
def job() -> Iterator[None]:
    """Make this process a job of one rank."""
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


class Late:
    """A clock; while time passes, something is said, or nothing for minutes."""

    def __init__(self, line: StoreLine | None = None) -> None:
        self.line = line
        self.time_s = 0.0

    def now_s(self) -> float:
        return self.time_s

    def sleep_s(self, _duration_s: float) -> None:
        self.time_s += 100.0
        if self.line is not None:
            self.line.say(b"late")


@pytest.mark.usefixtures("job")
def test_a_leader_that_says_nothing_is_waited_for_300_s() -> None:
    with pytest.raises(MeasurementError, match="first rank said nothing for 300 s") as late:
        StoreLine(1, clock=Late()).hear()
    assert "end all ranks" in late.value.hint


def test_ranks_that_did_not_meet_are_told_how() -> None:
    with pytest.raises(NotSupportedError, match="its ranks did not meet") as refused:
        StoreLine(1).say(b"one")
    assert "as in training" in refused.value.hint


@dataclass
class Meeting:
    """A job of some ranks; as time passes, others come."""

    ranks: int
    comes: bool = True
    here: dict[str, int] = field(default_factory=dict)
    time_s: float = 0.0

    @property
    def torch(self) -> Any:
        return SimpleNamespace(
            distributed=SimpleNamespace(
                is_available=lambda: True,
                is_initialized=lambda: self.ranks > 0,
                get_world_size=lambda: self.ranks,
                distributed_c10d=SimpleNamespace(_get_default_store=lambda: self),
            )
        )

    def add(self, key: str, number: int) -> int:
        self.here[key] = self.here.get(key, 0) + number
        return self.here[key]

    def now_s(self) -> float:
        return self.time_s

    def sleep_s(self, duration_s: float) -> None:
        self.time_s += duration_s
        for key in self.here if self.comes else ():
            self.here[key] += 1


def test_ranks_wait_for_the_last_of_them() -> None:
    four = Meeting(ranks=4)
    assert meet(four.torch, four)
    assert four.time_s == pytest.approx(3e-3)
    assert meet(four.torch, four)
    assert len(four.here) == 2


_TIMED_STEP = {"norm": 1e-4, "mm": 3e-3, "allreduce": 4e-4}
_KERNELS = tuple(Kernel(name=name) for name in _TIMED_STEP)
_WITH_COLOAD = Mix(launches=2, hot=2)


class Line:
    def __init__(self) -> None:
        self.words: list[Word] = []
        self.heard = 0

    def say(self, words: bytes) -> None:
        self.words.append(msgspec.json.decode(words, type=Word))

    def hear(self) -> bytes:
        self.heard += 1
        return msgspec.json.encode(self.words[self.heard - 1])


def _launchers(machine: Any) -> Iterator[Any]:
    def step() -> None:
        for name, takes_s in _TIMED_STEP.items():
            machine.launch_kernel(name, takes_s)

    yield machine.launcher(**_TIMED_STEP)
    yield machine.eager(step, *_TIMED_STEP)


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("mix", [None, _WITH_COLOAD], ids=["alone", "with co-load"])
def test_a_follower_launches_what_the_leader_did(
    machine: Any, *, eager: bool, mix: Mix | None
) -> None:
    launcher = list(_launchers(machine))[eager]
    line = Line()
    launcher.pace = LeadingRank(line.say)
    with launcher.loop(_KERNELS, mix) as loop:
        while not loop.progress().launches:
            SystemClock().sleep_s(1e-3)
    led = machine.now_s

    assert line.words[0] == Word(Act.BEGIN, tuple(_TIMED_STEP), mix)
    assert line.words[1].act is Act.AGREE
    assert set(line.words[2:-1]) == {Word(Act.LAUNCH)}
    assert line.words[-1] == Word(Act.END_LOOP)

    # A GPU of which the leader has four a step.
    line.words[1] = Word(Act.AGREE, value=line.words[1].value / 4)
    line.words.append(Word(Act.DONE))
    launcher.pace = follower = FollowingRank(line.hear)
    with ExitStack() as stack:
        leases = stack.enter_context(ClockLeases(SimpleNamespace()))
        follower.follow(launcher.loop, _KERNELS, leases)
    assert line.heard == len(line.words)
    assert machine.now_s > led
