"""What a plan comes to in words; rounding may not turn a number into a nicer one."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from invented import LATENCY_PLAN, cost, printed, with_plan
from underclock.records import (
    AUTO,
    Arm,
    Choice,
    Clocks,
    Cost,
    GpuInfo,
    Kernel,
    Launch,
    Objective,
    Pass,
    Plan,
    Status,
    Strategy,
)
from underclock.report import page, plan_tables
from underclock.report.answer import (
    auto_clock_sentence,
    auto_plan_sentence,
    doubt_sentence,
    energy_parts,
    expected_energy_change,
    fixed_is_enough,
    fixed_sentence,
)
from underclock.report.wording import (
    change_text,
    energy_text,
    gap_text,
    promise_text,
)


@given(st.floats(-0.9, 9.0))
def test_a_change_never_reads_as_minus_zero(fraction: float) -> None:
    assert change_text(fraction) != "-0.00 %"


@given(st.floats(0.0, 1.0))
def test_a_gap_is_never_understated(gap: float) -> None:
    assert float(gap_text(gap).split()[0]) / 100.0 >= gap - 1e-12


@given(st.floats(1e-6, 1e10))
def test_an_energy_keeps_three_digits(energy_j: float) -> None:
    number, unit = energy_text(energy_j).split()
    size = {"MJ": 1e6, "kJ": 1e3, "J": 1.0, "mJ": 1e-3, "µJ": 1e-6}[unit]

    assert math.isclose(float(number) * size, energy_j, rel_tol=0.006)


def auto_plan(**changes: object) -> Plan:
    """Return a plan that sets nothing, with a frontier that time buys energy on."""
    same = choice(None, 0.0)
    auto = Arm.of(Strategy.AUTO, cost(0.0, 0.0), Status.BASELINE)
    fixed = Arm.of(Strategy.BEST_FIXED, cost(0.0, 0.0), Status.OPTIMAL)
    plan = with_plan(
        gpu=GpuInfo(name="GPU"),
        bound=None,
        chosen=Strategy.AUTO,
        arms=(auto, fixed),
        kernels={"gemm": same, "softmax": same},
        fixed=AUTO,
        frontier=(cost(-0.01, 0.02), cost(0.0, 0.0), cost(0.01, -0.1), cost(0.015, -0.12)),
    )
    return msgspec.structs.replace(plan, **changes)


def choice(core_mhz: int | None, energy_change: float) -> Choice:
    return Choice(
        core_mhz=core_mhz,
        mem_mhz=None,
        time_change=0.0,
        energy_change=energy_change,
        auto_time_s=0.5,
        auto_energy_j=50.0,
    )


def test_a_plan_that_sets_nothing_says_so_and_what_time_would_give() -> None:
    assert auto_plan_sentence(auto_plan()) == (
        "the plan is auto: no other clocks surely save energy at ≤ 0 % slower; at 0.5, 1 and 2 % "
        "slower about -5.0, -10.0 and -12.0 % energy is expected, with free switching: a bound, "
        "not promised"
    )


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({"frontier": ()}, "at ≤ 0 % slower"),
        ({"frontier": (cost(0.0, 0.0),)}, "at ≤ 0 % slower"),
        (
            {"frontier": (cost(-0.01, 0.02), cost(0.0, 0.0))},
            "at 0.5, 1 and 2 % slower none are expected to either",
        ),
        (
            {"max_slowdown": 0.01},
            "expected, with free switching: a bound, not promised",
        ),
        (
            {"max_slowdown": 0.01, "chosen": Strategy.BEST_FIXED},
            "at 2 % slower about -12.0 % energy is expected, not promised",
        ),
        ({"max_slowdown": 0.05}, "surely save energy at ≤ 5 % slower"),
        ({"max_slowdown": None, "objective": Objective.EDP, "frontier": ()}, "better for edp"),
    ],
)
def test_an_auto_plan_names_only_slowdowns_that_were_not_asked_for(
    changes: dict[str, object], end: str
) -> None:
    text = auto_plan_sentence(auto_plan(**changes))

    assert text is not None
    assert text.endswith(end)


def planned(arm: Arm, **changes: object) -> Plan:
    return auto_plan(
        kernels={"gemm": choice(1200, -0.1)},
        schedule=LATENCY_PLAN.schedule,
        bound=Strategy.KERNEL_GLOBAL,
        chosen=Strategy.ACHIEVABLE,
        arms=(
            *auto_plan().arms,
            Arm.of(Strategy.KERNEL_GLOBAL, cost(0, -0.2), Status.OPTIMAL),
            arm,
        ),
        **changes,
    )


def achievable(low: float | None, high: float = 0.0, *, energy_change: float = -0.05) -> Arm:
    arm = Arm.of(Strategy.ACHIEVABLE, cost(0.001, energy_change), Status.OPTIMAL)
    if low is None:
        return arm
    return msgspec.structs.replace(arm, energy_interval=(low, high), time_interval=(-0.01, 0.01))


@pytest.mark.parametrize(
    ("arm", "text"),
    [
        (
            achievable(-0.07, -0.03),
            ("promises -5.00 % ± 2.00 % energy at +0.10 % ± 1.00 % time (95 %); budget: 0 %"),
        ),
        (
            achievable(None),
            "promises -5.00 % energy, each setting's own samples taken for the truth",
        ),
        (Arm.of(Strategy.ACHIEVABLE, cost(0.0, 0.0), Status.OPTIMAL), None),
    ],
)
def test_the_promise_is_that_of_the_arm_that_counts(arm: Arm, text: str | None) -> None:
    assert promise_text(planned(arm)) == text


@pytest.mark.parametrize(
    ("arm", "doubtful"),
    [
        (achievable(-0.12, 0.02), True),
        (achievable(-0.12, 0.0), True),
        (achievable(-0.12, -0.001), False),
        (achievable(0.01, 0.02, energy_change=0.015), False),
        (achievable(None), False),
    ],
)
def test_a_plan_that_may_save_nothing_carries_a_doubt(arm: Arm, *, doubtful: bool) -> None:
    sentence = doubt_sentence(planned(arm))

    assert (sentence is not None) == doubtful
    if sentence is not None:
        assert sentence.startswith("the plan may save nothing: with 95 % confidence")
        assert "-12.00 to" in sentence


@pytest.mark.parametrize(
    ("fixed", "best", "enough"),
    [
        (cost(0.0, -0.0495), cost(0.0, -0.05), True),
        (cost(0.0, -0.0485), cost(0.0, -0.05), False),
        (cost(0.005, -0.0495), cost(0.0, -0.05), False),  # as much, but at more time
        (cost(0.005, -0.06), cost(0.0, -0.05), True),  # more, within the budget
        (cost(0.0, -0.0005), cost(0.0, 0.0), False),  # nothing worth the trouble
        (cost(0.0, -0.01), cost(0.0, 0.0), True),
        (None, cost(0.0, -0.05), False),
    ],
)
def test_the_best_fixed_clock_is_enough_where_it_saves_as_much_at_no_more_time(
    fixed: Cost | None, best: Cost, *, enough: bool
) -> None:
    plan = planned(Arm.of(Strategy.ACHIEVABLE, best, Status.OPTIMAL), max_slowdown=0.01)
    arms = (
        plan.arms[0],
        Arm.of(Strategy.BEST_FIXED, fixed, Status.OPTIMAL),
        *plan.arms[2:],
    )
    plan = msgspec.structs.replace(plan, arms=arms, fixed=Clocks(core_mhz=1680))

    assert fixed_is_enough(plan) == enough
    assert ("use that" in (fixed_sentence(plan) or "")) == enough


@pytest.mark.parametrize(
    ("time_change", "expected"),
    [(-0.02, None), (-0.01, 0.02), (-0.005, 0.01), (0.0, 0.0), (0.005, -0.05), (0.5, -0.12)],
)
def test_between_two_points_of_a_frontier_a_mixture_is_expected(
    time_change: float, expected: float | None
) -> None:
    found = expected_energy_change(auto_plan().frontier, time_change)

    assert found == (None if expected is None else pytest.approx(expected))


def said_of(plan: Plan) -> str:
    return " ".join("".join(printed(each) for each in plan_tables(plan)).split())


def test_where_energy_goes_is_told_by_pass_and_operator() -> None:
    costs = {"norm": (1.0, 20.0), "norm grad": (1.0, 20.0), "gemm": (2.0, 60.0)}
    kernels = {
        name: msgspec.structs.replace(
            choice(None, 0.0), auto_time_s=time_s, auto_energy_j=energy_j, auto_core_mhz=1700
        )
        for name, (time_s, energy_j) in costs.items()
    }
    linear = Launch(function="f", identity="i", operator="linear")
    runs = (
        Kernel(name="norm", count=3, pass_=Pass.FORWARD),
        Kernel(name="norm grad", count=2, pass_=Pass.BACKWARD),
        Kernel(name="gemm", count=4, pass_=Pass.FORWARD, launch=linear),
    )
    plan = auto_plan(kernels=kernels, runs=runs)

    assert energy_parts(plan) == (
        ("forward", 7, 0.75, 0.8),
        ("backward", 2, 0.25, 0.2),
        ("linear", 4, 0.5, 0.6),
        ("norm", 5, 0.5, 0.4),
    )
    assert auto_clock_sentence(plan) == "at auto the step runs at 1700 MHz in the mean"
    shown = said_of(plan)
    assert "forward 7 75.0% 80.0%" in shown
    assert "linear 4 50.0% 60.0%" in shown
    assert "in the mean" in shown
    assert "at 1700 MHz in the mean." in page(plan, None)
    assert energy_parts(auto_plan(runs=())) == ()
