"""Ranks of a job under one controller, and under controllers of several machines."""

import functools
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from followed import CLOCK, Asked, Given, Virtual
from made_jobs import job, job_plan
from underclock.errors import DataError, UsageError
from underclock.hw.wire import framed
from underclock.records.job import Held
from underclock.records.runs import EventLine
from underclock.runtime.controller.follow import Follow, GpuController
from underclock.runtime.controller.log import Log, read_log
from underclock.runtime.controller.nodes import AHEAD, SILENT_S, DecidingRanks, OrderedRanks
from underclock.runtime.controller.process import WorkDone
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.timetable import PassedStep, State
from underclock.runtime.policy.job import JobPolicy, JobRanks, RankPolicy
from underclock.runtime.policy.parts import parts_of
from underclock.runtime.trainer import page as pages
from underclock.runtime.trainer.page import Page, word_of
from underclock.units import Domain

_JOB = job(transfer_s=(1e-3,))
_SLOW_MHZ, _FAST_MHZ = 1500, 1800


class Ranks:
    """The pages of all ranks, and who follows them."""

    def __init__(self, folder: Path) -> None:
        clocks = tuple(
            tuple(
                None if each.profile is None else Held(row=6 if "forward" in each.profile else 1)
                for each in rank.instructions
            )
            for rank in _JOB.ranks
        )
        plan = job_plan(_JOB, clocks=clocks)
        ranks = self.ranks = JobRanks(JobPolicy(plan, window=0))
        self.policy = ranks.job
        self.clock, self.log, self.steps = Virtual(), folder / "log.jsonl", 0
        self.parts = parts_of(plan)
        self.setters = [Asked() for _ in self.parts]
        self.pages: list[Page] = []
        self.shown: list[Given] = []
        followers = []
        for rank, part in enumerate(self.parts):
            page = Page.create(folder / f"{rank}.page", digest=bytes(32), marks=part.marks)
            page.tell(pages.MARKING)
            self.pages.append(page)
            self.shown.append(Given())
            machine = Machine(part.timetable(self.policy.chosen))
            policy = RankPolicy(machine, part, rank, ranks)
            followers.append(
                GpuController(
                    rank,
                    page,
                    machine,
                    policy,
                    setter=self.setters[rank],
                    gauges=self.shown[rank],
                    clock=self.clock,
                )
            )
        self.follow = Follow(tuple(followers), Log(self.log), self.clock, ranks)

    def iterate(self, count: int) -> None:
        """Let every rank reach all marks of some iterations, at the times planned."""
        for _ in range(count):
            self.steps += 1
            began_s = self.clock.now_s()
            for part, page in zip(self.parts, self.pages, strict=True):
                upto_s = part.timetable(self.policy.chosen).upto_s
                for mark, launch in enumerate(part.marks, start=1):
                    word = word_of(mark, self.steps)
                    self.clock.at(began_s + upto_s[launch], functools.partial(page.write, word))
            self.wait(upto_s[-1])

    def wait(self, for_s: float) -> None:
        until_s = self.clock.now_s() + for_s
        while (now_s := self.clock.now_s()) < until_s:
            self.clock.sleep_s(max(0.0, min(self.follow.next_s(), until_s) - now_s) + 1e-6)
            self.follow.wake(self.clock.now_s())

    def core_mhz(self) -> list[Any]:
        """Return what each rank's core was asked for last."""
        return [
            [value for setting, value in asked.values if setting is Domain.CORE][-1]
            for asked in self.setters
        ]

    def events(self) -> list[str]:
        return [line.text for line in read_log(self.log) if isinstance(line, EventLine)]


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    made = Ranks(tmp_path)
    yield made
    made.follow.close()
    for page in made.pages:
        page.close()


def test_each_rank_follows_its_part_once_all_have_armed(ranks: Ranks) -> None:
    ranks.iterate(2)
    assert not any(asked.values for asked in ranks.setters)
    ranks.iterate(6)
    ranks.wait(0.2)
    for asked in ranks.setters:
        assert {value for _, value in asked.values} == {_SLOW_MHZ, _FAST_MHZ}
    (told,) = ranks.events()
    assert told == "order 1: every rank has armed; from now on: the plan"


def test_a_trainer_that_ended_takes_all_to_auto_and_the_last_one_ends_the_run(
    ranks: Ranks,
) -> None:
    ranks.iterate(5)
    with subprocess.Popen(["/bin/true"]) as ended:
        pass
    ranks.pages[1]._write(128, ended.pid.to_bytes(4, "little"))  # noqa: SLF001 - as it was claimed
    ranks.wait(0.5)  # the other one waits for it, and marks nothing
    assert ranks.core_mhz() == [None, None]
    assert ranks.pages[0].pid == os.getpid()
    ranks.pages[0]._write(128, ended.pid.to_bytes(4, "little"))  # noqa: SLF001
    with pytest.raises(WorkDone, match="the training process ended"):
        ranks.wait(0.5)
    assert ranks.events()[1:] == [
        "order 2: rank 1: the training process ended; from now on: auto on all ranks"
    ]


_PLAN = job_plan(job(data=2, reduce_s=1e-3, transfer_s=(1e-3,)))
_PARTS = parts_of(_PLAN)
_DIGEST = "ab"


def _free_address() -> tuple[str, int]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return "127.0.0.1", bound.getsockname()[1]


def _with_peers(ranks: JobRanks, own: range) -> Any:
    for rank in own:
        RankPolicy(Machine(_PARTS[rank].timetable(ranks.job.chosen)), _PARTS[rank], rank, ranks)
    return ranks


class Nodes:
    """A machine that decides, of ranks 0 and 1, and one that is told, of 2 and 3."""

    def __init__(self, digest: str = _DIGEST, told: range = range(2, 4)) -> None:
        self.address, own = _free_address(), range(2)
        self.now_s, self.words = 0.0, list[str]()
        self.told: OrderedRanks = _with_peers(
            OrderedRanks(JobPolicy(_PLAN, window=0), self.address, digest), told
        )
        self.tend(self.told)  # the other one has not begun
        job_policy = JobPolicy(_PLAN, window=0, ahead=AHEAD)
        self.decides: DecidingRanks = _with_peers(
            DecidingRanks(job_policy, self.address, _DIGEST), own
        )
        self.iteration = 0

    def tend(self, *some: JobRanks) -> None:
        for _ in range(20):
            for each in some or (self.told, self.decides):
                self.words += [words for words in each.tend(self.now_s) if words]
            CLOCK.sleep_s(1e-3)

    def join(self) -> None:
        self.now_s += 1.0
        self.tend()
        assert "ranks 2, 3 joined from 127.0.0.1" in self.words

    def iterate(self, slow: int | None = None) -> None:
        """All ranks end an iteration."""
        number = self.iteration
        self.iteration += 1
        for each in (*self.decides.peers, *self.told.peers):
            busy_s = 0.09 if each.rank == slow else 0.08
            time_s = 0.1 if slow is None else 0.11
            step = PassedStep(number=number, state=State.FOLLOWING, time_s=time_s, busy_s=busy_s)
            if words := each.passed(step):
                self.words.append(words)
        self.tend()

    @property
    def follow(self) -> list[bool]:
        return [each.follows for each in (*self.decides.peers, *self.told.peers)]


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    made = Nodes()
    yield made
    made.told.close()
    made.decides.close()


def test_an_order_is_taken_up_by_all_machines_with_one_iteration(nodes: Nodes) -> None:
    nodes.iterate()
    assert nodes.follow == [False] * 4
    nodes.join()
    seen = []
    while not any(nodes.follow) and nodes.iteration < 9:
        seen.append(nodes.follow)
        nodes.iterate()
    orders = [words for words in nodes.words if words.startswith("order 1: every rank has armed")]
    assert len(orders) == 2
    assert {words.split("from now on: ")[1] for words in orders} == {
        f"the plan, from iteration {nodes.iteration} on"
    }
    assert nodes.follow == [True] * 4
    assert {each.label for each in nodes.told.peers} == {"plan"}


def _held(nodes: Nodes) -> None:
    nodes.join()
    while not any(nodes.follow) and nodes.iteration < 9:
        nodes.iterate()
    assert nodes.follow == [True] * 4


def test_a_rank_that_dies_on_either_machine_takes_all_to_auto_at_once(nodes: Nodes) -> None:
    _held(nodes)
    words = nodes.told.lost(3, "its trainer ended")
    assert words == "rank 3: its trainer ended; from now on: auto on all ranks of this machine"
    assert nodes.follow == [True, True, False, False]
    nodes.tend()
    assert nodes.follow == [False] * 4
    assert any(words.startswith("order 2: rank 3: its trainer ended") for words in nodes.words)
    assert not nodes.told.lost(2, "too")
    other = Nodes()
    _held(other)
    other.decides.lost(0, "its trainer ended")
    other.tend(other.told)
    assert other.follow == [False] * 4
    other.decides.close()
    other.tend(other.told)


def test_a_machine_whose_other_side_ends_goes_to_auto_for_good(nodes: Nodes) -> None:
    _held(nodes)
    nodes.decides.close()
    nodes.tend(nodes.told)
    assert nodes.follow == [True, True, False, False]
    assert "the machine that decides is lost: its controller has ended" in nodes.words[-1]
    step = PassedStep(number=99, state=State.FOLLOWING, time_s=0.1)
    assert not any(each.passed(step) for each in nodes.told.peers)
    assert nodes.follow[2:] == [False, False]
    assert nodes.told.next_s == float("inf")

    other = Nodes()
    _held(other)
    other.told.close()
    other.tend(other.decides)
    assert other.follow == [False, False, True, True]
    assert "order 2: rank 2: its machine is lost" in other.words[-1]
    other.decides.close()


def test_silence_counts_as_lost_on_both_sides(nodes: Nodes) -> None:
    _held(nodes)
    nodes.now_s += SILENT_S - 0.1
    nodes.tend()
    assert nodes.follow == [True] * 4
    nodes.now_s += SILENT_S + 0.1
    nodes.words += [*nodes.told.tend(nodes.now_s)]
    assert nodes.follow[2:] == [False, False]
    assert f"it said nothing for {SILENT_S:g} s" in nodes.words[-1]


@pytest.mark.parametrize(
    ("digest", "told", "reason"),
    [
        ("cd", range(2, 4), "it holds another plan"),
        (_DIGEST, range(1, 4), r"its ranks \[1, 2, 3\] are not among those that lack"),
    ],
)
def test_who_does_not_belong_to_the_job_is_refused(digest: str, told: range, reason: str) -> None:
    nodes = Nodes(digest, told)
    nodes.now_s += 1.0
    nodes.tend()
    (words,) = nodes.words
    assert f"the machine that decides is lost: {reason}".replace("\\", "") in words
    nodes.decides.close()


@pytest.mark.parametrize(
    "message",
    [{"plan": 1}, {"plan": _DIGEST, "ranks": []}, {"rank": 2}, {"plan": _DIGEST, "ranks": [9]}],
)
def test_what_is_no_message_ends_the_connection_alone(message: Any, nodes: Nodes) -> None:
    with socket.create_connection(nodes.address) as stranger:
        stranger.sendall(framed(message))
        nodes.tend(nodes.decides)
        stranger.settimeout(1.0)
        while stranger.recv(100):
            pass
    assert not nodes.words
    nodes.join()


def test_addresses_that_are_none_are_errors(nodes: Nodes) -> None:
    policy = JobPolicy(_PLAN)
    with pytest.raises(UsageError, match="cannot listen at 127"):
        DecidingRanks(policy, nodes.address, _DIGEST)
    with pytest.raises(DataError, match="there is no host"):
        OrderedRanks(policy, ("no host of this name.invalid", 1), _DIGEST)
