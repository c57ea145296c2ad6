"""What decides over a machine: the plan alone, a guard, or arms that take turns."""

import dataclasses
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from small_training import line_of, plan
from underclock.errors import UsageError
from underclock.records import (
    AUTO,
    Arm,
    Clocks,
    Cost,
    Plan,
    Status,
    Strategy,
    Verdict,
)
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.timetable import PassedStep, State, timetable_of
from underclock.runtime.policy.arms import (
    ArmName,
    Arms,
    ExpectedRun,
    parse_arms,
)
from underclock.runtime.policy.guard import Finding, Guard, Stage, slowdown
from underclock.runtime.policy.policy import (
    Policy,
    policy_of,
)
from underclock.runtime.trainer.sites import marked, scheduled

PLAN = msgspec.structs.replace(plan(), fixed=Clocks(core_mhz=1200))
MARKS = tuple(site.launch for site in marked(PLAN)[0])


def _machine() -> Machine:
    return Machine(timetable_of(scheduled(PLAN), MARKS))


def _step(number: int, time_s: float = 0.11, stalled_s: float = 0.0) -> PassedStep:
    return PassedStep(
        number=number,
        began_s=number * 0.11,
        time_s=time_s,
        state=State.FOLLOWING,
        planned=2,
        asked=2,
        stalled_s=stalled_s,
    )


def _run(policy: Policy, count: int, time_s: float = 0.11) -> list[str]:
    words = []
    for number in range(count):
        step = _step(number, time_s * (1.0 + 1e-3 * (number % 3)))
        words += [policy.passed(step), policy.known(step, line_of(step, 20.0))]
    return [each for each in words if each]


def _holds(machine: Machine) -> Clocks | None:
    return machine._held  # noqa: SLF001 - what it was told to hold is seen in no other way


def test_a_guard_learns_at_auto_lets_the_plan_be_and_takes_a_slow_one_back() -> None:
    machine = _machine()
    policy = policy_of(machine, PLAN, arms="", window=5)
    assert (policy.label, _holds(machine)) == ("learning", AUTO)

    _run(policy, 7)
    assert (policy.label, _holds(machine)) == ("plan", None)

    _run(policy, 7, 0.2)
    assert (policy.label, _holds(machine)) == ("checking", AUTO)
    _run(policy, 7)
    assert (policy.label, _holds(machine)) == ("reduced", None)
    _run(policy, 7, 0.2)
    assert (policy.label, _holds(machine)) == ("fixed", PLAN.fixed)
    words = _run(policy, 7, 0.2)
    assert (policy.label, _holds(machine)) == ("off", AUTO)
    assert "until asked" in words[-1]


def test_arms_take_turns_and_are_compared() -> None:
    machine = _machine()
    policy = policy_of(machine, PLAN, arms="auto,plan,best-fixed", window=20)
    held = {}
    for number in range(700):
        held[policy.label] = _holds(machine)
        slower = 1.01 if policy.label == "plan" else 1.0
        energy_j = {"plan": 18.0, "best-fixed": 19.0}.get(policy.label, 20.0)
        policy.known(step := _step(number, 0.11 * slower), line_of(step, energy_j))

    assert held == {"warm-up": AUTO, "auto": AUTO, "plan": None, "best-fixed": PLAN.fixed}
    by_arm = {str(each.arm): each for each in policy.differences()}
    assert by_arm["plan"].energy_change == pytest.approx(-0.1)
    assert by_arm["plan"].time_change == pytest.approx(0.01)
    assert by_arm["plan"].verdict == "kept"
    assert policy.ends() == ""


@pytest.mark.parametrize(
    ("takes_s", "block", "steps", "said"),
    [
        (
            0.0011,
            4550,
            None,
            "a step takes 1.1 ms: a verdict takes 31850 steps, about 35 s, and a run",
        ),
        (
            0.7,
            20,
            None,
            "a step takes 700 ms: a verdict takes 140 steps, about 1.63 min, and a run",
        ),
        (0.11, 50, 400, "350 steps, about 38.5 s, and a run of fewer has none; this one has 400"),
        (0.11, 50, 300, "350 steps, about 38.5 s, and a run of fewer has none; this one has 300"),
    ],
)
def test_blocks_are_sized_by_steps_as_seen_and_the_run_says_how_long_a_verdict_takes(
    takes_s: float, block: int, steps: int | None, said: str
) -> None:
    paces: list[float] = []
    two = [
        policy_of(
            _machine(), _planned(takes_s), arms="auto,plan", window=0, paces=paces, steps=steps
        )
        for _ in range(2)
    ]
    words, warming = [], 0
    while "warm-up" in {policy.label for policy in two}:
        for at, policy in enumerate(two):
            step = dataclasses.replace(_step(warming), time_s=takes_s * (1.0 + 0.01 * at))
            words.append(policy.passed(step))
            policy.known(step, line_of(step, 1.0))
        warming += 1
        if warming == 20:
            (only,) = {*filter(None, words)}  # what the first has seen goes for both
            assert said in only
    assert warming == block


def test_of_another_step_there_will_be_no_verdict_and_the_run_says_so_at_once() -> None:
    policy = policy_of(_machine(), _planned(5.9e-4), arms="auto,plan", window=0)
    words = [policy.passed(dataclasses.replace(_step(at), time_s=0.697)) for at in range(20)]

    assert "".join(words).startswith("a step takes 697 ms and the plan's 590 µs: it is another")


def _planned(auto_s: float) -> Plan:
    """Return a plan whose step takes as long at auto."""
    cost = Cost(time_s=auto_s, energy_j=1.0, time_change=0.0, energy_change=0.0)
    arms = (
        Arm(Strategy.AUTO, cost, Status.BASELINE),
        Arm(Strategy.ACHIEVABLE, cost, Status.OPTIMAL),
    )
    return msgspec.structs.replace(PLAN, arms=arms)


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
    order = run(Arms(names=ALL, block=2, settling=1), 30)
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


@pytest.mark.untraced
@given(seen=st.lists(st.integers(1, 5), min_size=60, max_size=120), seed=st.integers(0, 99))
def test_a_block_tells_the_same_however_many_steps_are_seen_at_once(
    seen: list[int], seed: int
) -> None:
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
        ("auto,planned", "no way 'planned'"),
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


WINDOW = 8


def told(guard: Guard, mean_s: float, *, windows: int = 1, seed: int = 0) -> list[str]:
    """Tell some windows of steps, and two in front that do not count; return what was decided."""
    random = np.random.default_rng(seed)
    for _ in range(windows * WINDOW + 2):
        words = guard.stepped(mean_s * (1.0 + 1e-3 * float(random.standard_normal())))
        if words:
            return [words]
    return []


def begun(*, has_fixed: bool = True) -> Guard:
    guard = Guard(max_slowdown=0.01, has_fixed=has_fixed, window=WINDOW)
    assert guard.stage.at_auto
    assert len(told(guard, 1.0)) == 1
    assert guard.stage is Stage.PLAN
    return guard


def test_a_slow_plan_is_taken_back_in_steps() -> None:
    guard = begun(has_fixed=False)
    stages = []
    for mean_s in (1.05, 1.0, 1.04):
        assert told(guard, mean_s)
        stages.append(guard.stage)

    assert stages == [Stage.CHECKING, Stage.REDUCED, Stage.OFF]
    assert guard.finding is Finding.SLOWER
    assert told(guard, 2.0, windows=3) == []


def test_switching_that_slows_the_job_is_told_from_clocks_that_do() -> None:
    guard = begun()
    for mean_s in (1.05, 1.0, 1.05):
        told(guard, mean_s)
    assert guard.stage is Stage.FIXED
    (words,) = told(guard, 1.005)

    assert (guard.stage, guard.finding) == (Stage.FIXED, Finding.SWITCHING)
    assert "switching itself slows the job" in words
    assert told(guard, 1.005, windows=2) == []

    other = begun()
    for mean_s in (1.05, 1.0, 1.05):
        told(other, mean_s)
    assert told(other, 1.05)
    assert (other.stage, other.finding) == (Stage.OFF, Finding.CLOCKS)


@pytest.mark.untraced
def test_of_steps_that_are_not_slower_one_in_forty_is_thought_so() -> None:
    random = np.random.default_rng(0)
    wrong = 0
    for _ in range(2000):
        auto, steps = (1.0 + 1e-2 * random.standard_normal(5) for _ in range(2))
        wrong += slowdown(auto.tolist(), steps.tolist())[1] > 0.0

    assert 0.01 <= wrong / 2000 <= 0.035
