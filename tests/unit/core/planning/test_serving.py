"""Clocks for the steps of a server, on costs that were thought out."""

import pytest

from underclock.core.planning.serving import ServedStep, ServingBudget, frontier, served
from underclock.records import AUTO, Clocks, Pass
from underclock.records.serving import Basis, ServingBucket, ServingCost

SLOW, MIDDLE = Clocks(core_mhz=1200), Clocks(core_mhz=1600)


def cost(clocks: Clocks, time_s: float, energy_j: float, error: float = 0.01) -> ServingCost:
    return ServingCost(
        clocks=clocks,
        time_s=time_s,
        time_interval_s=((1 - error) * time_s, (1 + error) * time_s),
        energy_j=energy_j,
        energy_interval_j=(energy_j, energy_j),
        basis=Basis.MEASURED,
    )


def step(phase: Pass, batch: int, *locked: ServingCost, auto_s: float = 0.010) -> ServedStep:
    costs = (cost(AUTO, auto_s, 5.0, 0.0), *locked)
    return ServedStep(phase=phase, batch=batch, context=1024, tokens=batch, costs=costs)


DECODE = step(Pass.DECODE, 8, cost(SLOW, 0.0110, 3.0), cost(MIDDLE, 0.0102, 4.0))
PREFILL = step(Pass.PREFILL, 1, cost(SLOW, 0.160, 2.0), cost(MIDDLE, 0.120, 4.0), auto_s=0.1)


def chosen(budget: ServingBudget) -> list[Clocks]:
    return [bucket.chosen.clocks for bucket in served([PREFILL, DECODE], budget)[0]]


def of(step: ServedStep, budget: ServingBudget) -> ServingBucket:
    return served([step], budget)[0][0]


def test_each_step_has_the_least_energy_within_the_budget() -> None:
    assert chosen(ServingBudget(max_slowdown=0.0)) == [AUTO, AUTO]
    assert chosen(ServingBudget(max_slowdown=0.05)) == [MIDDLE, AUTO]
    assert chosen(ServingBudget(max_slowdown=0.25)) == [SLOW, MIDDLE]
    assert chosen(ServingBudget()) == [SLOW, SLOW]


def test_the_whole_interval_keeps_the_budget() -> None:
    assert of(DECODE, ServingBudget(tpot_s=0.0111)).chosen.clocks == MIDDLE
    assert of(DECODE, ServingBudget(tpot_s=0.0112)).chosen.clocks == SLOW


def test_limits_in_seconds_are_of_the_phase_that_they_are_named_for() -> None:
    assert chosen(ServingBudget(tpot_s=0.0105)) == [MIDDLE, SLOW]
    assert chosen(ServingBudget(ttft_s=0.13)) == [SLOW, MIDDLE]
    mixed = step(Pass.MIXED, 8, cost(SLOW, 0.0110, 3.0))
    assert of(mixed, ServingBudget(tpot_s=0.0105)).chosen.clocks == AUTO


def test_one_step_in_a_hundred_may_be_what_is_limited() -> None:
    assert of(DECODE, ServingBudget(tpot_s=0.0112)).chosen.clocks == SLOW
    assert of(DECODE, ServingBudget(tpot_s=0.0112, tail=0.05)).chosen.clocks == MIDDLE


def test_a_budget_that_no_clocks_keep_says_which_they_would() -> None:
    bucket = of(DECODE, ServingBudget(tpot_s=0.009, tail=0.1))
    assert bucket.chosen.clocks == AUTO
    assert bucket.obstacle == "no clocks keep tpot 9 ms: 11 ms at auto is the least"
    assert not of(DECODE, ServingBudget(tpot_s=0.0111, tail=0.1)).obstacle


def test_a_budget_may_ask_for_less_time_than_auto_takes() -> None:
    held = step(Pass.DECODE, 8, cost(MIDDLE, 0.009, 4.0), auto_s=0.010)
    assert of(held, ServingBudget(max_slowdown=-0.05)).chosen.clocks == MIDDLE
    assert of(DECODE, ServingBudget(max_slowdown=-0.05)).obstacle == (
        "no clocks change time by -5.00 % or less: +0.00 % at auto is the least"
    )


def test_the_best_fixed_clock_keeps_the_budget_of_every_step() -> None:
    buckets, fixed = served([PREFILL, DECODE], ServingBudget(max_slowdown=0.25))
    assert fixed == MIDDLE
    assert [bucket.fixed and bucket.fixed.energy_j for bucket in buckets] == [4.0, 4.0]
    assert served([PREFILL, DECODE], ServingBudget())[1] == SLOW
    buckets, fixed = served([PREFILL, DECODE], ServingBudget(max_slowdown=0.05))
    assert fixed is None
    assert all(bucket.fixed is None for bucket in buckets)


def test_a_frontier_leaves_out_what_another_beats() -> None:
    costs = frontier([*DECODE.costs, cost(Clocks(core_mhz=1400), 0.0115, 3.5)])
    assert [each.clocks for each in costs] == [AUTO, MIDDLE, SLOW]


@pytest.mark.parametrize("limit", ["max_slowdown", "tpot_s", "ttft_s", "tail"])
def test_a_limit_below_nothing_is_no_budget(limit: str) -> None:
    with pytest.raises(ValueError, match=limit):
        ServingBudget(**{limit: -1.5})
