"""Launchers of ranks: what the leader says as it launches is what a follower needs to hear."""

from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from underclock.hw.clock import SystemClock
from underclock.hw.lease import ClockLeases
from underclock.hw.lockstep import (
    AgreedNumber,
    BeginLoop,
    Done,
    EndLoop,
    FollowingRank,
    LaunchOnce,
    LeadingRank,
    Word,
)
from underclock.records import Kernel, Mix

_STEP = {"norm": 1e-4, "mm": 3e-3, "allreduce": 4e-4}
_KERNELS = tuple(Kernel(name=name) for name in _STEP)
_IN_COMPANY = Mix(launches=2, hot=2)


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
        for name, takes_s in _STEP.items():
            machine.launch_kernel(name, takes_s)

    yield machine.launcher(**_STEP)
    yield machine.eager(step, *_STEP)


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("mix", [None, _IN_COMPANY], ids=["alone", "in company"])
def test_a_follower_launches_what_the_leader_did(
    machine: Any, *, eager: bool, mix: Mix | None
) -> None:
    launcher = list(_launchers(machine))[eager]
    line = Line()
    launcher.pace = LeadingRank(line)
    with launcher.loop(_KERNELS, mix) as loop:
        while not loop.progress().launches:
            SystemClock().sleep_s(1e-3)
    led = machine.now_s

    assert line.words[0] == BeginLoop(tuple(_STEP), mix)
    assert isinstance(line.words[1], AgreedNumber)
    assert {type(word) for word in line.words[2:-1]} == {LaunchOnce}
    assert line.words[-1] == EndLoop()

    line.words[1] = AgreedNumber(
        line.words[1].value / 4
    )  # a GPU of which the leader has four a step
    line.words.append(Done())
    launcher.pace = follower = FollowingRank(line)
    with ExitStack() as stack:
        leases = stack.enter_context(ClockLeases(SimpleNamespace()))
        follower.follow(launcher, _KERNELS, leases)
    assert line.heard == len(line.words)
    assert machine.now_s > led


def test_a_kernel_alone_is_repeated_as_often_by_all(machine: Any) -> None:
    launcher, line = machine.launcher(**_STEP), Line()
    launcher.pace = LeadingRank(line)
    with launcher.loop(_KERNELS[:1]) as loop:
        while not loop.progress().launches:
            SystemClock().sleep_s(1e-3)
    kernels = len(machine.launched[-1][1])
    line.words.append(Done())

    slower = machine.launcher(**{name: 3 * takes_s for name, takes_s in _STEP.items()})
    slower.pace = follower = FollowingRank(line)
    follower.follow(slower, _KERNELS, ClockLeases(SimpleNamespace()))
    assert len(machine.launched[-1][1]) == kernels
