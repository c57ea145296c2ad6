"""How a plan for time, and one for a power limit, are told: time first, and at which limit."""

import io

import msgspec
import pytest
from rich.console import Console

from underclock.records import (
    AUTO,
    Aggregate,
    Arm,
    Choice,
    Clocks,
    Cost,
    Evidence,
    GpuInfo,
    Granularity,
    Objective,
    Plan,
    PowerPoint,
    Status,
    Strategy,
)
from underclock.report import page, plan_tables
from underclock.report.answer import (
    auto_plan_sentence,
    doubt_sentence,
    fixed_is_enough,
    fixed_sentence,
    headline,
    larger_budgets,
    limit_sentence,
)
from underclock.report.figures import power
from underclock.report.wording import promise_text


def cost(time_change: float, energy_change: float) -> Cost:
    return Cost(
        time_s=7.0 * (1.0 + time_change),
        energy_j=1700.0 * (1.0 + energy_change),
        time_change=time_change,
        energy_change=energy_change,
    )


def arm(name: Strategy, time: float, energy: float) -> Arm:
    return Arm.of(name, cost(time, energy), Status.OPTIMAL, 0.0)


def point(limit_w: float, auto_s: float, time_s: float) -> PowerPoint:
    return PowerPoint(
        limit_w=limit_w,
        auto_time_s=auto_s,
        time_s=time_s,
        time_change=time_s / auto_s - 1.0,
        energy_change=-0.05,
    )


PLAN = Plan(
    evidence=Evidence.SIMULATED,
    gpu=GpuInfo(name="G", power_limit_w=350.0),
    workload="w",
    objective=Objective.TIME,
    max_slowdown=None,
    granularity=Granularity.KERNEL,
    aggregate=Aggregate.GLOBAL,
    power_limit_w=245.0,
    baseline=AUTO,
    chosen=Strategy.KERNEL_GLOBAL,
    arms=(
        Arm.of(Strategy.AUTO, cost(0.0, 0.0), Status.BASELINE),
        arm(Strategy.BEST_FIXED, -0.002, -0.001),
        msgspec.structs.replace(
            arm(Strategy.KERNEL_GLOBAL, -0.037, -0.053),
            time_interval=(-0.038, -0.036),
            energy_interval=(-0.055, -0.051),
        ),
    ),
    kernels={
        "k": Choice(
            core_mhz=1700,
            mem_mhz=None,
            time_change=-0.037,
            energy_change=-0.053,
            auto_time_s=7.0,
            auto_energy_j=1700.0,
        )
    },
    fixed=Clocks(core_mhz=1650, mem_mhz=None),
    frontier=(cost(-0.037, -0.053), cost(0.1, -0.2)),
    power_curve=(point(245.0, 7.0, 6.74), point(350.0, 6.5, 6.45)),
)


def with_arm(plan: Plan, changed: Arm) -> Plan:
    arms = tuple(changed if each.name is changed.name else each for each in plan.arms)
    return msgspec.structs.replace(plan, arms=arms)


def printed(plan: Plan) -> str:
    out = io.StringIO()
    for each in plan_tables(plan):
        Console(file=out, width=80).print(each)
    return " ".join(out.getvalue().split())


def test_time_comes_first_and_its_limit_is_named() -> None:
    assert headline(PLAN).startswith("-3.70 % time at 245 W, -5.30 % energy, simulated on G")
    assert promise_text(PLAN) == "promises -3.70 % ± 0.10 % time, -5.30 % ± 0.20 % energy (95 %)"
    assert "-3.70 % time, -5.30 % energy, limit 245 W" in repr(PLAN)


def test_at_the_gpus_own_limit_none_is_named() -> None:
    own = msgspec.structs.replace(PLAN, power_limit_w=None)

    assert headline(own).startswith("-3.70 % time, -5.30 % energy")
    assert limit_sentence(own) is None
    assert limit_sentence(msgspec.structs.replace(PLAN, power_limit_w=350.0)) is None
    assert "limit" not in repr(own)


def test_least_energy_within_a_limit_names_it_too() -> None:
    made = msgspec.structs.replace(PLAN, objective=Objective.WASTE, max_slowdown=0.0)

    assert headline(made).startswith("-5.30 % energy at -3.70 % time, at 245 W, simulated")


def test_another_limit_comes_with_what_would_set_it() -> None:
    sentence = limit_sentence(PLAN)

    assert sentence is not None
    assert "limit of 245 W instead of 350 W" in sentence
    assert sentence.endswith("sudo nvidia-smi -i 0 -pl 245")
    unknown = msgspec.structs.replace(PLAN, gpu=GpuInfo(name="G"))
    assert "limit of 245 W; auto is" in str(limit_sentence(unknown))


def test_nothing_faster_is_said_in_words() -> None:
    nothing = with_arm(PLAN, arm(Strategy.KERNEL_GLOBAL, 0.0, 0.0))
    choice = msgspec.structs.replace(PLAN.kernels["k"], core_mhz=None)
    nothing = msgspec.structs.replace(nothing, kernels={"k": choice})

    assert headline(nothing).startswith("No faster step to promise")
    assert auto_plan_sentence(nothing) == (
        "the plan is auto: no other clocks surely make the step faster within 245 W"
    )
    assert larger_budgets(nothing) == ()
    silent = msgspec.structs.replace(nothing, power_limit_w=None, gpu=GpuInfo(name="G"))
    assert str(auto_plan_sentence(silent)).endswith("faster within the power limit")


def test_a_gain_that_is_unsure_is_doubted_by_its_time() -> None:
    unsure = with_arm(PLAN, msgspec.structs.replace(PLAN.arms[-1], time_interval=(-0.07, 0.002)))

    assert doubt_sentence(PLAN) is None
    assert "the plan may be no faster" in str(doubt_sentence(unsure))


def test_one_clock_that_is_as_fast_is_named_first() -> None:
    made = with_arm(PLAN, arm(Strategy.BEST_FIXED, -0.0368, -0.01))

    assert fixed_is_enough(made)
    assert str(fixed_sentence(made)).endswith(
        "-3.68 % time at 245 W, -1.00 % energy, as fast as -3.70 % within 0.1 points: use that"
    )


@pytest.mark.parametrize("time", [-0.002, 0.0])
def test_one_clock_that_is_slower_is_not_enough(time: float) -> None:
    made = with_arm(PLAN, arm(Strategy.BEST_FIXED, time, -0.1))

    assert not fixed_is_enough(made)
    assert str(fixed_sentence(made)).endswith("time at 245 W, -10.00 % energy")


def test_other_limits_are_a_table_a_figure_and_a_section() -> None:
    said, html = printed(PLAN), page(PLAN, None)

    assert "the fastest step at other power limits: simulated" in said
    assert "245 W 7 s 6.74 s -3.71 % -5.00 %" in said
    assert "time and energy against auto at 245 W" in said
    assert "If the power limit were another" in html
    assert "Time of a step against the power limit" in html
    assert "245 W, measured at 350 W" in html
    assert html.index("Time, promised") < html.index("Energy, promised")
    assert "none: time is what is minimised" in html


def test_one_limit_is_a_point_and_none_is_nothing() -> None:
    one = msgspec.structs.replace(PLAN, power_curve=PLAN.power_curve[:1])
    none = msgspec.structs.replace(PLAN, power_curve=())

    drawings = [power(each) for each in (one, PLAN)]
    assert ["<polyline" in drawing for drawing in drawings] == [False, True]
    assert ["<circle" in drawing for drawing in drawings] == [True, False]
    assert "at other power limits" not in printed(none)
    assert "If the power limit were another" not in page(none, None)
