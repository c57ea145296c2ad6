"""Ranks in lockstep: the same launches, as often, at the same clocks, whoever is faster."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from underclock.errors import DeviceError, MeasurementError, NoRoomError
from underclock.hw.cuda.feed import Feed, feeding
from underclock.hw.lease import ClockLeases
from underclock.hw.lockstep import (
    AgreedNumber,
    BeginLoop,
    Done,
    EndLoop,
    FollowingRank,
    HoldClocks,
    LaunchOnce,
    LeadersLeases,
    LeadingRank,
    Pace,
    StepKernels,
    Word,
)
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.records import AUTO, Clocks, Kernel, Mix
from underclock.testing import simulated_driver

_STEP = (Kernel(name="mm"), Kernel(name="allreduce"))
_LOW = Clocks(core_mhz=1200)


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

    def synchronize(self) -> None: ...

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

    pace: Pace
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

        with feeding(_TORCH, launch, rounds, self.pace) as feed:
            yield feed
        self.launched.append((names, mix, count))


def _wait_for(feed: Feed, launches: int) -> None:
    while feed.progress().launches < launches:
        threading.Event().wait(1e-4)


@pytest.fixture
def gpu() -> Iterator[NvmlGpu]:
    with simulated_driver("a100"), nvml_session():
        yield NvmlGpu()


def _following(rank: Rank, ear: Ear, gpu: NvmlGpu) -> Callable[[], None]:
    follower = FollowingRank(ear)
    rank.pace = follower

    def follow() -> None:
        with ClockLeases(gpu) as leases:
            follower.follow(rank, _STEP, leases)

    return follow


def test_followers_launch_what_the_leader_launches_as_often(gpu: NvmlGpu) -> None:
    line = Said()
    leader = LeadingRank(line)
    leading = Rank(leader, takes_s=0.1)
    ranks = [Rank(Pace(), takes_s=takes_s) for takes_s in (0.02, 0.5)]  # others would launch 50, 2
    threads = [threading.Thread(target=_following(rank, line.ear(), gpu)) for rank in ranks]
    for thread in threads:
        thread.start()

    mix = Mix(launches=2, hot=1)
    with leader.leading(_STEP):
        with leading.loop(_STEP[:1]) as loop:
            _wait_for(loop, 30)
        with leading.loop(_STEP, mix) as loop:
            _wait_for(loop, 70)
    for thread in threads:
        thread.join(10)

    assert [names for names, *_ in leading.launched] == [("mm",), ("mm", "allreduce")]
    assert [given for _, given, _ in leading.launched] == [None, mix]
    assert all(rank.launched == leading.launched for rank in ranks)


def test_followers_hold_the_clocks_that_the_leader_holds(gpu: NvmlGpu) -> None:
    line = Said()
    leader = LeadingRank(line)
    with leader.leading(_STEP), LeadersLeases(gpu, leader) as leases:
        with leases.hold(_LOW):
            pass
        with leases.hold(AUTO):
            pass
    assert line.decoded() == [
        StepKernels(("mm", "allreduce")),
        HoldClocks(_LOW),
        HoldClocks(AUTO),
        HoldClocks(AUTO),
        HoldClocks(AUTO),
        Done(),
    ]

    held: list[Clocks] = []

    class NotingGpu(NvmlGpu):
        def lock(self, clocks: Clocks) -> None:
            held.append(clocks)

        def unlock(self) -> None:
            held.append(AUTO)

    _following(Rank(Pace(), 1.0), line.ear(), NotingGpu())()
    assert held == [_LOW, AUTO]


def test_a_leader_that_fails_lets_the_others_go() -> None:
    line = Said()
    with pytest.raises(MeasurementError), LeadingRank(line).leading(_STEP):
        raise MeasurementError("the counter went back")
    assert line.decoded()[-1] == Done()


def test_a_follower_without_room_waits_for_what_the_leader_does_instead(gpu: NvmlGpu) -> None:
    line = Said(BeginLoop(("mm",), Mix(hot=9)), Done())
    _following(Rank(Pace(), 1.0, no_room=True), line.ear(), gpu)()


def test_a_launch_that_fails_ends_the_follower(gpu: NvmlGpu) -> None:
    line = Said(BeginLoop(("mm",), None), AgreedNumber(0.1), LaunchOnce(), EndLoop(), Done())
    rank = Rank(Pace(), 1.0, fails=RuntimeError("NCCL"))
    with pytest.raises(DeviceError, match="a launch failed: NCCL"):
        _following(rank, line.ear(), gpu)()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            [StepKernels(("mm", "allgather"))],
            "the first has 'allgather' where this has 'allreduce'",
        ),
        ([StepKernels(("mm",))], "the first has 1 kernels, this 2"),
        ([LaunchOnce()], "this one waited for a loop, the leader said LaunchOnce"),
        (
            [BeginLoop(("mm",), None), LaunchOnce()],
            "this one found a number out, the leader said LaunchOnce",
        ),
        (
            [BeginLoop(("mm",), None), AgreedNumber(0.1), Done()],
            "this one launched, the leader said Done",
        ),
    ],
)
def test_ranks_that_do_not_do_the_same_are_told_apart(
    words: list[Word], sentence: str, gpu: NvmlGpu
) -> None:
    rank = Rank(Pace(), 1.0)
    with pytest.raises((MeasurementError, DeviceError), match=sentence):
        _following(rank, Said(*words).ear(), gpu)()
