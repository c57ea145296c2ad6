"""Windows handed out to workers and taken back: none is lost, none is done by two."""

import random
from collections import Counter

import pytest

from underclock.campaign.handout import Handout
from underclock.core.design.wanted import Wanted
from underclock.records import Clocks


def wanted(number: int, clocks: int = 900) -> Wanted:
    return Wanted(f"k{number}", asked=Clocks(core_mhz=clocks), timed=False)


def test_what_waits_is_with_one_worker_only() -> None:
    handout = Handout()
    for worker in "ab":
        handout.join(worker)
    handout.want(wanted(n) for n in range(3))

    given = handout.hand_out()

    assert given == [("a", [wanted(0)]), ("b", [wanted(1)])]
    assert handout.hand_out() == []
    assert handout.busy
    assert Counter(handout.pending) == Counter(wanted(n) for n in range(3))
    handout.done("a")
    assert handout.hand_out() == [("a", [wanted(2)])]
    assert handout.workers == 2


def test_many_go_out_together_at_the_same_clocks() -> None:
    handout = Handout()
    handout.join("a")
    handout.want([wanted(0), wanted(1), wanted(2, 1050), *(wanted(n, 1050) for n in range(3, 20))])

    assert handout.hand_out() == [("a", [wanted(0), wanted(1)])]
    handout.done("a")
    assert [len(some) for _, some in handout.hand_out()] == [4]


def test_what_a_lost_worker_had_goes_first_to_another() -> None:
    handout = Handout()
    handout.join("a")
    handout.want([wanted(0), wanted(1), wanted(2)])
    handout.hand_out()

    handout.lost("a")
    handout.lost("a")

    assert handout.workers == 0
    handout.join("b", [wanted(9)])
    assert handout.hand_out() == [("b", [wanted(9)])]
    handout.done("b")
    assert handout.hand_out() == [("b", [wanted(0)])]


def test_a_look_at_the_step_goes_out_by_itself() -> None:
    handout, step = Handout(), Wanted(timed=False)
    handout.join("a")
    auto = [Wanted(f"k{n}", timed=False) for n in range(9)]
    handout.want([step, step, *auto[:1], step, *auto[1:]])

    given = []
    for _ in range(3):
        given += [some for _, some in handout.hand_out()]
        handout.done("a")
    assert given == [[step], [step], auto[:1]]


def test_a_campaign_that_ends_forgets_what_nobody_is_at() -> None:
    handout = Handout()
    handout.join("a")
    handout.join("b", [wanted(8)])
    handout.want([wanted(0), wanted(1)])
    handout.forget()

    assert handout.hand_out() == []
    assert handout.pending == ()


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_lost_all_is_done_once(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - which worker is lost is no secret
    handout = Handout()
    at: dict[str, list[Wanted]] = {}
    done = Counter[Wanted]()
    handout.want(wanted(n, 900 + n % 3) for n in range(60))
    for worker in "abcd":
        handout.join(worker)
    while handout.pending:
        at |= dict(handout.hand_out())
        worker = chance.choice(sorted(at))
        some = at.pop(worker)
        if chance.random() < 0.2:
            handout.lost(worker)
            handout.join(worker)
        else:
            done.update(some)
            handout.done(worker)

    assert done == Counter(wanted(n, 900 + n % 3) for n in range(60))
