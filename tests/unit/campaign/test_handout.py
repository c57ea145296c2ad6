"""Windows handed out to workers and taken back: none is lost, none is done by two."""

import random
from collections import Counter

import pytest

from underclock.campaign.handout import Handout
from underclock.core.design.wanted import Wanted
from underclock.records import Clocks


def wanted(number: int, clocks: int = 900) -> Wanted:
    return Wanted(f"k{number}", asked=Clocks(core_mhz=clocks), timed=False)


def second(_one: Wanted) -> float:
    return 1.0


def test_what_waits_is_with_one_worker_only() -> None:
    handout = Handout(second, virtual=False)
    for worker in "ab":
        handout.join(worker, 0.0)
    handout.want(wanted(n) for n in range(3))

    given = handout.hand_out()

    assert given == [("a", [wanted(0)]), ("b", [wanted(1)])]
    assert handout.hand_out() == []
    assert handout.busy
    assert handout.waiting == 1
    assert Counter(handout.pending) == Counter(wanted(n) for n in range(3))
    handout.done("a", 5.0)
    assert handout.hand_out() == [("a", [wanted(2)])]
    assert handout.workers == 2


def test_many_go_out_together_at_the_same_clocks() -> None:
    handout = Handout(second, virtual=False)
    handout.join("a", 0.0)
    handout.want([wanted(0), wanted(1), wanted(2, 1050), *(wanted(n, 1050) for n in range(3, 20))])

    assert handout.hand_out() == [("a", [wanted(0), wanted(1)])]
    handout.done("a", 1.0)
    assert [len(some) for _, some in handout.hand_out()] == [4]


def test_what_a_lost_worker_had_goes_first_to_another() -> None:
    handout = Handout(second, virtual=False)
    handout.join("a", 0.0)
    handout.want([wanted(0), wanted(1), wanted(2)])
    handout.hand_out()

    handout.lost("a")
    handout.lost("a")

    assert handout.workers == 0
    handout.join("b", 0.0, [wanted(9)])
    assert handout.hand_out() == [("b", [wanted(9)])]
    handout.done("b", 1.0)
    assert handout.hand_out() == [("b", [wanted(0)])]


def test_in_virtual_time_nobody_is_given_what_another_would_come_to_earlier() -> None:
    handout = Handout(second, virtual=True)
    handout.join("early", 10.0)
    handout.join("late", 11.5)
    handout.want([wanted(n) for n in range(4)])

    assert [worker for worker, _ in handout.hand_out()] == ["early"]
    handout.done("early", 11.0)
    assert [worker for worker, _ in handout.hand_out()] == ["early", "late"]


def test_a_campaign_that_ends_forgets_what_nobody_is_at() -> None:
    handout = Handout(second, virtual=False)
    handout.join("a", 0.0)
    handout.join("b", 0.0, [wanted(8)])
    handout.want([wanted(0), wanted(1)])
    handout.forget()

    assert handout.hand_out() == []
    assert handout.pending == ()


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_lost_all_is_done_once(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - which worker is lost is no secret
    handout = Handout(second, virtual=bool(seed % 2))
    at: dict[str, list[Wanted]] = {}
    done = Counter[Wanted]()
    handout.want(wanted(n, 900 + n % 3) for n in range(60))
    for worker in "abcd":
        handout.join(worker, 0.0)
    spent = Counter[str]()
    while handout.pending:
        at |= dict(handout.hand_out())
        worker = chance.choice(sorted(at))
        some = at.pop(worker)
        if chance.random() < 0.2:
            handout.lost(worker)
            handout.join(worker, spent[worker])
        else:
            done.update(some)
            spent[worker] += len(some)
            handout.done(worker, spent[worker])

    assert done == Counter(wanted(n, 900 + n % 3) for n in range(60))
