"""Controllers of one job on two machines: orders travel, and who loses the other goes to auto."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from followed import CLOCK
from made_jobs import job, job_plan
from underclock.errors import DataError, UsageError
from underclock.hw.wire import framed
from underclock.runtime.controller.nodes import AHEAD, SILENT_S, DecidingRanks, ToldRanks
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.steps import PassedStep, State
from underclock.runtime.policy.job import JobPolicy
from underclock.runtime.policy.parts import parts_of
from underclock.runtime.policy.ranks import JobRanks, RankPolicy

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
        self.told: ToldRanks = _with_peers(
            ToldRanks(JobPolicy(_PLAN, window=0), self.address, digest), told
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


def test_an_order_that_the_plan_has_not_is_not_followed(nodes: Nodes) -> None:
    nodes.decides.close()
    with socket.create_server(nodes.address) as server:
        nodes.now_s += 1.0
        nodes.tend(nodes.told)
        connection, _ = server.accept()
        with connection:
            order = {"generation": 1, "points": [0, 0, 99, 0], "words": "so"}
            connection.sendall(framed({"order": order, "from_iteration": None, "label": "plan"}))
            nodes.tend(nodes.told)
    assert "it ordered what the plan has not" in nodes.words[-1]
    assert not any(nodes.follow)


def test_addresses_that_are_none_are_errors(nodes: Nodes) -> None:
    policy = JobPolicy(_PLAN)
    with pytest.raises(UsageError, match="cannot listen at 127"):
        DecidingRanks(policy, nodes.address, _DIGEST)
    with pytest.raises(DataError, match="there is no host"):
        ToldRanks(policy, ("no host of this name.invalid", 1), _DIGEST)
