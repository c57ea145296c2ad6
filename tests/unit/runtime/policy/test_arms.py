"""Arms that take turns: what is compared with what, and how it is judged."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.errors import UsageError
from underclock.records import Verdict
from underclock.runtime.machine.steps import PassedStep, State
from underclock.runtime.policy.arms import (
    ArmName,
    Arms,
    ExpectedRun,
    parse_arms,
)

ALL = (ArmName.AUTO, ArmName.PLAN, ArmName.BEST_FIXED)
TWO = (ArmName.AUTO, ArmName.PLAN)
_PROMISED = ExpectedRun(promise=-0.08, budget=0.01)


def after(
    arms: Arms,
    *,
    time_s: float,
    energy_j: float | None,
    steps: int = 1,
    counted: bool = True,
    stalled: bool = False,
) -> ArmName | None:
    """Let a step pass, or some in a row."""
    step = PassedStep(
        number=arms.seen,
        began_s=0.0,
        time_s=time_s,
        state=State.HELD,
        planned=0,
        asked=0,
        stalled_s=1.0 if stalled else 0.0,
        steps=steps,
        counted=counted,
    )
    return arms.stepped(step, energy_j)


def run(
    arms: Arms, rounds: int, *, drift: float = 0.0, energy: bool = True, noise: float = 1e-3
) -> list[ArmName | None]:
    """Run rounds in which the plan takes 1 % more time and 8 % less energy."""
    random = np.random.default_rng(1)
    order: list[ArmName | None] = [arms.arm] if arms.arm else []
    for index in range(rounds * len(arms.names) * arms.block):
        settling = index % arms.block < arms.settling
        slow, saves = {"auto": (1.0, 1.0), "plan": (1.01, 0.92), "best-fixed": (1.01, 0.97)}[
            arms.arm or "auto"
        ]
        factor = (1.0 + drift * index) * (1.0 + noise * float(random.standard_normal()))
        began = after(
            arms,
            time_s=9.0 if settling else slow * factor,
            energy_j=300.0 * saves * factor if energy else None,
        )
        if began is not None:
            order.append(began)
    return order[:-1]


def test_every_arm_has_every_place_equally_often_and_orders_differ() -> None:
    arms = Arms(names=ALL, block=2, settling=1)
    order = run(arms, 30)
    rounds = [tuple(order[i : i + 3]) for i in range(0, len(order), 3)]

    assert len(rounds) == 30
    for place in range(3):
        assert Counter(one[place] for one in rounds) == dict.fromkeys(ALL, 10)
    assert len(set(rounds)) == 6
    assert any(a != b for a, b in pairwise(rounds))
    for first in range(28):  # and none comes first more often than its share
        if first % 3 == 0:
            assert len({one[0] for one in rounds[first : first + 3]}) == 3
    assert order == run(Arms(names=ALL, block=2, settling=1), 30)
    assert order != run(Arms(names=ALL, block=2, settling=1, seed=1), 30)


def test_drift_cancels_and_steps_that_settle_do_not_count() -> None:
    arms = Arms(names=ALL, block=6, settling=2)
    run(arms, 18, drift=1e-3)
    plan, fixed = arms.differences(_PROMISED)

    assert (plan.arm, plan.rounds, plan.steps) == (ArmName.PLAN, 18, 18 * 4)
    assert plan.energy_interval is not None
    low, high = plan.energy_interval
    assert low < -0.08 < high
    assert high - low < 0.02
    assert plan.time_change == pytest.approx(0.01, abs=2e-3)
    assert fixed.verdict == ""
    assert fixed.energy_change == pytest.approx(-0.03, abs=3e-3)


@pytest.mark.parametrize(
    ("promise", "budget", "verdict"),
    [
        (-0.079, 0.01, Verdict.KEPT),
        (-0.1, 0.01, Verdict.NOT_KEPT),
        (-0.079, 0.0, Verdict.NOT_KEPT),
        (-0.079, None, Verdict.KEPT),
    ],
)
def test_the_plan_is_held_against_its_promise(
    promise: float, budget: float | None, verdict: Verdict
) -> None:
    arms = Arms(names=TWO, block=10, settling=2)
    run(arms, 12, noise=1e-4)
    (plan,) = arms.differences(ExpectedRun(promise=promise, budget=budget))

    assert plan.verdict == verdict


def test_one_round_decides_nothing_and_a_round_that_runs_does_not_count() -> None:
    arms = Arms(names=TWO, block=4, settling=1)
    assert arms.differences(_PROMISED) == ()
    run(arms, 1)
    (plan,) = arms.differences(_PROMISED)
    assert plan.time_interval is None
    assert plan.verdict.startswith("cannot tell, because 1 rounds are too few: 3 take 24 steps")
    for _ in range(5):
        after(arms, time_s=100.0, energy_j=1.0)
    (then,) = arms.differences(_PROMISED)
    assert then.rounds == 1
    assert (then.time_change, then.energy_change) == (plan.time_change, plan.energy_change)


def test_a_job_warms_up_first() -> None:
    arms = Arms(names=TWO, block=4, settling=1, warming=10)
    begins = [
        at
        for at in range(10 + 16)
        if after(arms, time_s=9.0 if at < 10 else 1.0, energy_j=1.0) is not None
    ]

    assert begins == [9, 13, 17, 21, 25]
    assert (arms.needs(1), arms.needs(3)) == (18, 34)
    (plan,) = arms.differences()
    assert (plan.rounds, plan.time_change) == (2, 0.0)


@pytest.mark.untraced
@given(seen=st.lists(st.integers(1, 5), min_size=60, max_size=120), seed=st.integers(0, 99))
def test_a_block_tells_the_same_however_many_steps_are_seen_at_once(
    seen: list[int], seed: int
) -> None:
    """Where the plan's steps are seen one by one and auto's three at once, nothing is saved."""
    arms = Arms(names=TWO, block=8, settling=2, seed=seed)
    for many in seen:
        steps = many if arms.arm is ArmName.AUTO else 1
        after(arms, time_s=0.1, energy_j=30.0, steps=steps)

    assert arms.seen >= len(seen)
    for each in arms.differences():
        assert each.time_change == pytest.approx(0.0)
        assert each.energy_change == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("expected", "step", "reason"),
    [
        (ExpectedRun(auto_s=0.36), {}, "at auto takes 0.333 times what the plan says"),
        (ExpectedRun(auto_s=0.04), {}, "at auto takes 3 times what the plan says"),
        (ExpectedRun(limit_w=350.0), {"energy_j": 61.8}, "drew 515 W by what was seen"),
        (ExpectedRun(enqueued=300), {}, "80 steps were seen where 300 were taken"),
        (ExpectedRun(enqueued=40), {}, "80 steps were seen where 40 were taken"),
        (ExpectedRun(), {"counted": False}, "steps are not counted"),
    ],
)
def test_there_is_no_verdict_on_what_cannot_be(
    expected: ExpectedRun, step: dict[str, Any], reason: str
) -> None:
    arms = Arms(names=TWO, block=10, settling=2)
    for _ in range(80):
        after(arms, **{"time_s": 0.12, "energy_j": 30.0, **step})
    (plan,) = arms.differences(replace(expected, promise=0.0, budget=0.01))

    assert plan.verdict.startswith("cannot tell, because ")
    assert reason in plan.verdict
    fits = ExpectedRun(promise=0.0, budget=0.01, auto_s=0.11, limit_w=600.0, enqueued=85)
    if step != {"counted": False}:
        assert arms.differences(fits)[0].verdict == "kept"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("auto,planned", "no arm 'planned'"),
        ("auto,plan,auto", "named twice"),
        ("plan,plan", "named twice"),
        ("plan,best-fixed", "compares nothing with auto"),
        ("auto", "compares nothing with auto"),
        ("", "compares nothing with auto"),
        ("auto,best-fixed", "no best fixed clock"),
    ],
)
def test_arms_that_cannot_be_compared_are_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_arms(text, has_fixed=False)


def test_auto_can_be_compared_with_itself() -> None:
    assert parse_arms("auto,auto", has_fixed=False) == (ArmName.AUTO, ArmName.AGAIN)
