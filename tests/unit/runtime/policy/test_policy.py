"""What decides over a machine: the plan alone, a guard, or arms that take turns."""

import dataclasses

import msgspec
import pytest

from small_training import plan
from underclock.records import (
    AUTO,
    Arm,
    Clocks,
    ClockSchedule,
    Cost,
    Plan,
    Segment,
    Status,
    Strategy,
)
from underclock.records.latencies import LatencyTable
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.steps import PassedStep, State
from underclock.runtime.machine.timetable import timetable_of
from underclock.runtime.policy.policy import (
    Policy,
    policy_of,
    without_least_paying,
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
        words += [policy.passed(step), policy.known(step, 20.0)]
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
        policy.known(_step(number, 0.11 * slower), energy_j)

    assert held == {"warm-up": AUTO, "auto": AUTO, "plan": None, "best-fixed": PLAN.fixed}
    by_arm = {str(each.arm): each for each in policy.differences()}
    assert by_arm["plan"].energy_change == pytest.approx(-0.1)
    assert by_arm["plan"].time_change == pytest.approx(0.01)
    assert by_arm["plan"].verdict == "kept"
    assert policy.ends() == ""


def test_who_ends_too_soon_is_told_how_many_steps_would_do() -> None:
    arms = policy_of(_machine(), PLAN, arms="auto,plan", window=0)
    guarded = policy_of(_machine(), PLAN, arms="", window=5)
    for policy in (arms, guarded):
        _run(policy, 6)

    assert arms.ends() == (
        "arms were not compared: warming up and one round take 150 steps, a verdict 350, and 6 "
        "were seen"
    )
    assert "ended before 7 steps" in guarded.ends()
    _run(guarded, 1)
    assert guarded.ends() == ""


@pytest.mark.parametrize("many", [(3, 1), (1, 3), (2, 2)])
def test_a_guard_is_not_deceived_by_steps_that_are_seen_together(many: tuple[int, int]) -> None:
    machine = _machine()
    policy = policy_of(machine, PLAN, arms="", window=5)
    for number in range(60):
        steps = many[0] if policy.label == "learning" else many[1]
        step = _step(number, 0.11 * (1.0 + 1e-3 * (number % 3)))
        policy.passed(dataclasses.replace(step, steps=steps))

    assert (policy.label, _holds(machine)) == ("plan", None)


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
            policy.known(step, 1.0)
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
        Arm.of(Strategy.AUTO, cost, Status.BASELINE),
        Arm.of(Strategy.ACHIEVABLE, cost, Status.OPTIMAL),
    )
    return msgspec.structs.replace(PLAN, arms=arms)


def test_a_lock_that_the_cap_overrules_is_left_away() -> None:
    machine = _machine()
    policy = policy_of(machine, PLAN, arms="", window=0)
    (first, *_) = (at for at, pair in enumerate(machine.timetable.clocks) if pair.core_mhz)

    said = [policy.capped(frozenset(some)) for some in ([], [first], [first])]

    assert said[0] == said[2] == ""
    assert f"from launches {first} on" in said[1]
    assert all(pair.core_mhz is None for pair in machine.timetable.clocks)


def schedule(*segments: tuple[int, int | None, float | None]) -> ClockSchedule:
    made = tuple(
        Segment(launches=count, core_mhz=mhz, mem_mhz=None, pays_j=pays_j)
        for count, mhz, pays_j in segments
    )
    return ClockSchedule(
        segments=made,
        switches=len(made) if len(made) > 1 else 0,
        latency="6ms",
        latencies=LatencyTable.constant(6e-3),
        launch_s=(0.01,) * sum(count for count, _, _ in segments),
    )


def cores(some: ClockSchedule) -> list[tuple[int, int | None]]:
    return [(each.launches, each.core_mhz) for each in some.segments]


def test_half_of_the_stretches_go_and_no_two_beside_each_other() -> None:
    plan = schedule((1, 900, 0.1), (1, 1500, 0.2), (1, 1200, 0.3), (1, 1400, 9.0))
    reduced = without_least_paying(plan)

    assert reduced is not None
    # The first takes the clocks of the last, round the end; the second is its neighbour.
    assert cores(reduced) == [(1, 1400), (2, 1500), (1, 1400)]
    assert reduced.switches == 2
    assert timetable_of(reduced, (0,)).planned == 2
