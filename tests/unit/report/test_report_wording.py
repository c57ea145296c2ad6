"""Numbers as text: rounding may not turn a number into a nicer one."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.records import (
    AUTO,
    Aggregate,
    Arm,
    Choice,
    Cost,
    Evidence,
    GpuInfo,
    Granularity,
    Objective,
    Plan,
    Status,
    Strategy,
)
from underclock.report.expected import expected_energy_change
from underclock.report.wording import auto_plan_sentence, change_text, energy_text, gap_text


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
    plan = Plan(
        evidence=Evidence.SIMULATED,
        gpu=GpuInfo(name="GPU"),
        workload="step",
        objective=Objective.WASTE,
        max_slowdown=0.0,
        granularity=Granularity.KERNEL,
        aggregate=Aggregate.GLOBAL,
        baseline=AUTO,
        chosen=Strategy.AUTO,
        arms=(auto,),
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


def cost(time_change: float, energy_change: float) -> Cost:
    return Cost(
        time_s=1.0 + time_change,
        energy_j=100.0 * (1.0 + energy_change),
        time_change=time_change,
        energy_change=energy_change,
    )


def test_a_plan_that_sets_nothing_says_so_and_what_time_would_give() -> None:
    assert auto_plan_sentence(auto_plan()) == (
        "the plan is auto: no other clocks surely save energy at ≤ 0 % slower; at 0.5, 1 and 2 % "
        "slower about -5.0, -10.0 and -12.0 % energy is expected, not promised"
    )


def test_a_plan_that_sets_one_clock_is_not_auto() -> None:
    lower = choice(1200, -1e-6)
    plan = auto_plan()

    assert auto_plan_sentence(auto_plan(kernels=plan.kernels | {"softmax": lower})) is None


def test_clocks_called_auto_count_as_auto() -> None:
    held = choice(1740, 0.0)
    plan = auto_plan(kernels={"gemm": held}, baseline=held.clocks)

    assert auto_plan_sentence(plan) is not None


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({"frontier": ()}, "at ≤ 0 % slower"),
        ({"frontier": (cost(0.0, 0.0),)}, "at ≤ 0 % slower"),
        (
            {"frontier": (cost(-0.01, 0.02), cost(0.0, 0.0))},
            "at 0.5, 1 and 2 % slower none are expected to either",
        ),
        ({"max_slowdown": 0.01}, "at 2 % slower about -12.0 % energy is expected, not promised"),
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


@pytest.mark.parametrize(
    ("time_change", "expected"),
    [(-0.02, None), (-0.01, 0.02), (-0.005, 0.01), (0.0, 0.0), (0.005, -0.05), (0.5, -0.12)],
)
def test_between_two_points_of_a_frontier_a_mixture_is_expected(
    time_change: float, expected: float | None
) -> None:
    found = expected_energy_change(auto_plan().frontier, time_change)

    assert found == (None if expected is None else pytest.approx(expected))


def test_without_a_frontier_nothing_is_expected() -> None:
    assert expected_energy_change((), 0.0) is None
