"""What a plan answers first, in the terminal and on the page."""

import math
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from invented import (
    ARMS,
    LATENCY_PLAN,
    MINUS,
    Seen,
    choices,
    cost,
    page_data,
    page_table,
    printed,
    step_of,
    with_plan,
)
from underclock.records import (
    AUTO,
    Arm,
    Choice,
    Clocks,
    Cost,
    Evidence,
    GpuInfo,
    Kernel,
    Launch,
    Pass,
    Plan,
    Segment,
    Status,
    Step,
    Strategy,
)
from underclock.report import page, plan_details, plan_parts
from underclock.report.answer import (
    auto_clock_sentence,
    energy_parts,
    fixed_is_enough,
    fixed_sentence,
    next_sentence,
)
from underclock.report.wording import (
    change_text,
    energy_text,
    gap_text,
)


def test_page_terminal_and_notebook_give_the_same_answer_first() -> None:
    for plan in (LATENCY_PLAN, with_plan(), nothing_plan(), unsure_plan()):
        said = shown(plan)

        assert said.startswith(" ".join(plan.answer))
        assert said[len(" ".join(plan.answer)) :].startswith(" Next: ")
        for line in plan.answer:
            assert line in plan._repr_html_()
        for line in (*plan.answer, next_sentence(plan, "plan.json")):
            assert line.replace("-", MINUS) in Seen(page(plan, None)).text.replace("-", MINUS)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_answer_is_whole_on_a_narrow_terminal(width: int) -> None:
    parts = plan_parts(LATENCY_PLAN, "plan.json")
    lines = "".join(printed(part, width) for part in parts).splitlines()

    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()).startswith(" ".join(LATENCY_PLAN.answer))
    assert len(parts) == 4


def measured(**changes: object) -> Plan:
    return msgspec.structs.replace(LATENCY_PLAN, evidence=Evidence.MEASURED, **changes)


def shown(plan: Plan) -> str:
    parts = plan_parts(plan, "plan.json", details=True)
    return " ".join("".join(printed(part) for part in parts).split())


def test_clocks_of_a_simulated_gpu_are_not_for_the_reader_s_own() -> None:
    assert "sudo" in shown(measured())
    assert "sudo" not in shown(LATENCY_PLAN) + page(LATENCY_PLAN, None)


def unsure(arm: Arm) -> Arm:
    return msgspec.structs.replace(arm, time_interval=(-0.5, 0.5), energy_interval=(-0.25, 0.13))


def unsure_plan() -> Plan:
    arms = [arm if arm.name is Strategy.AUTO else unsure(arm) for arm in measured().arms]
    return measured(arms=tuple(arms))


def test_what_may_save_nothing_is_no_saving_and_is_not_to_be_held() -> None:
    plan = unsure_plan()

    first = "No saving is promised: energy changes by -25.0 to +13.0 % (95 % interval)."
    assert plan.answer[0] == first
    assert "underclock measure into the same file, with a longer" in next_sentence(plan, "p.json")
    assert "the same command, with a longer" in next_sentence(plan, "p.json", "python train.py")
    assert "sudo" not in shown(plan) + page(plan, None)
    assert "which may be nothing: -25.00 to +13.00 %" in shown(plan)


def nothing_plan(**changes: object) -> Plan:
    """Return a plan that sets nothing, and in which nothing changes anything."""
    same = msgspec.structs.replace(choices(2)["kernel0"], energy_change=0.0, time_change=0.0)
    arms = tuple(Arm(arm.name, cost(0.0, 0.0), arm.status, arm.gap) for arm in ARMS)
    line = (cost(0.0, 0.0), cost(0.01, -0.1), cost(0.4, -0.27))
    usual: dict[str, object] = {"kernels": {"a": same}, "arms": arms, "frontier": line}
    return with_plan(fixed=AUTO, **usual | changes)


def test_nothing_is_never_a_page_of_zeros() -> None:
    for plan in (nothing_plan(), nothing_plan(arms=(*nothing_plan().arms, *ZERO_ACHIEVABLE))):
        seen = Seen(page(plan, None)).text
        said = shown(plan)

        assert said.startswith("No saving was found: clocks stay as they are.")
        assert "Next: with --max-slowdown 2% about 10.4 % is expected, if clocks" in said
        assert "No way of choosing clocks changes time or energy" in seen
        assert "at 0.5, 1 and 2 % slower about" in seen
        tiles = (("0.50", "5.00"), ("1.00", "10.00"), ("2.00", "10.44"))
        for slowdown, change in tiles:
            assert f"+{slowdown} % -{change} %" in said
        assert "+0.00 % 12.3 s +0.00 %" not in seen  # no row of zeros
        assert "clocks chosen" not in said


ZERO_ACHIEVABLE = (Arm(Strategy.ACHIEVABLE, cost(0.0, 0.0), Status.OPTIMAL, 0.0),)


def test_a_fixed_clock_that_saves_as_much_is_recommended() -> None:
    fixed = Arm(Strategy.BEST_FIXED, cost(-0.001, -0.0505), Status.OPTIMAL, 0.0)
    plan = measured(arms=(ARMS[0], fixed, *LATENCY_PLAN.arms[2:]))
    sentence = "-5.05 % energy at -0.10 % time, as good as -5.12 % within 0.1 points: use that"

    html = page(plan, None)

    assert sentence.replace("-", MINUS) in Seen(html).text
    assert (
        "<pre>sudo nvidia-smi -i 0 -lgc 1680,1680\nsudo nvidia-smi -i 0 -lmc 9251,9251</pre>"
        in html
    )
    assert sentence in shown(plan)
    assert "use that" not in page(LATENCY_PLAN, None)


@pytest.mark.parametrize(
    ("fixed", "wanted", "unwanted"),
    [
        (Clocks(core_mhz=1680), "-rgc", "-lmc"),
        (Clocks(mem_mhz=5001), "-rmc", "-lgc"),
    ],
)
def test_a_clock_left_to_the_driver_is_not_set(fixed: Clocks, wanted: str, unwanted: str) -> None:
    text = page(with_plan(fixed=fixed, evidence=Evidence.MEASURED), None)

    assert f"To undo: <code>sudo nvidia-smi -i 0 {wanted}</code>" in text
    assert unwanted not in text


def test_a_page_shows_the_clocks_over_a_step_and_which_kernels_run_at_them() -> None:
    runs = (Kernel(name="product", count=6), Kernel(name="copy", count=3), Kernel(name="sum"))
    held = (("product", -71.0 / 80.0), ("copy", 0.0), ("sum", 0.0))
    kernels = {
        name: msgspec.structs.replace(each, energy_change=change)
        for (name, change), each in zip(held, choices(3).values(), strict=True)
    }
    segments = (
        Segment(launches=4, clocks=Clocks(core_mhz=1680)),
        Segment(launches=4, clocks=Clocks(core_mhz=900)),
        Segment(launches=2, clocks=AUTO),
    )
    assert LATENCY_PLAN.schedule is not None
    schedule = msgspec.structs.replace(
        LATENCY_PLAN.schedule,
        segments=segments,
        switches=3,
        launch_s=(0.02, *[0.01] * 9),
        launch_j=(4.0, *[1.0] * 9),
    )
    plan = msgspec.structs.replace(
        LATENCY_PLAN,
        step=Step(name="gpt3-xl", kernels=runs, order=(0, 0, 0, 0, 0, 1, 1, 2, 1, 0)),
        kernels=kernels,
        schedule=schedule,
    )
    text = page(plan, None)

    first, second, third = page_table(text, "segments")
    assert (first["core_mhz"], second["core_mhz"], third["core_mhz"]) == (1680, 900, None)
    assert (first["time_s"], first["energy_j"]) == (0.05, 7.0)
    assert second["kernels"] == [("copy", 2), ("product", 1), ("sum", 1)]  # most time first
    by_name = {row["kernel"]: row for row in page_table(text, "kernels")}
    # What the schedule takes of it, not what free switching would.
    assert by_name["product"]["saved_j"] == pytest.approx(80.0 - 4.0 - 5.0)
    assert by_name["copy"]["core_mhz"] is None  # auto for one of its runs
    assert by_name["sum"]["core_mhz"] == 900
    planned, auto = page_data(text)["bands"]
    assert planned["title"].startswith("Under the plan: ")
    assert auto["title"] == "At auto: 12.3 s, 4.21 kJ"
    assert planned["tracks"][0]["states"][3].count(0) == 2
    assert set(auto["tracks"][0]["states"][3]) == {0}
    assert [label for label, *_ in auto["tracks"][0]["groups"]] == ["pass"]


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


def auto_plan(**changes: Any) -> Plan:
    """Return a plan that sets nothing, with a frontier that time buys energy on."""
    same = choice(None, 0.0)
    auto = Arm(Strategy.AUTO, cost(0.0, 0.0), Status.BASELINE)
    fixed = Arm(Strategy.BEST_FIXED, cost(0.0, 0.0), Status.OPTIMAL)
    plan = with_plan(
        gpu=GpuInfo(name="GPU"),
        bound=None,
        chosen=Strategy.AUTO,
        arms=(auto, fixed),
        kernels={"gemm": same, "softmax": same},
        fixed=AUTO,
        frontier=(cost(-0.01, 0.02), cost(0.0, 0.0), cost(0.01, -0.1), cost(0.015, -0.12)),
    )
    if "kernels" in changes:
        changes.setdefault("step", step_of(changes["kernels"]))
    return msgspec.structs.replace(plan, **changes)


def choice(core_mhz: int | None, energy_change: float) -> Choice:
    return Choice(
        clocks=Clocks(core_mhz=core_mhz),
        time_change=0.0,
        energy_change=energy_change,
        auto_time_s=0.5,
        auto_energy_j=50.0,
    )


def planned(arm: Arm, **changes: object) -> Plan:
    return auto_plan(
        kernels={"gemm": choice(1200, -0.1)},
        schedule=LATENCY_PLAN.schedule,
        bound=Strategy.KERNEL_GLOBAL,
        chosen=Strategy.ACHIEVABLE,
        arms=(
            *auto_plan().arms,
            Arm(Strategy.KERNEL_GLOBAL, cost(0, -0.2), Status.OPTIMAL),
            arm,
        ),
        **changes,
    )


def achievable(low: float | None, high: float = 0.0, *, energy_change: float = -0.05) -> Arm:
    arm = Arm(Strategy.ACHIEVABLE, cost(0.001, energy_change), Status.OPTIMAL)
    if low is None:
        return arm
    return msgspec.structs.replace(arm, energy_interval=(low, high), time_interval=(-0.01, 0.01))


@pytest.mark.parametrize(
    ("arm", "saves", "takes"),
    [
        (
            achievable(-0.07, -0.03),
            "Saves 5.0 % of energy (± 2.0):",
            "Takes 0.10 % more time (± 1.00;",
        ),
        (achievable(-0.0504, -0.0496), "Saves 5.00 % of energy (± 0.04):", "Takes 0.10 % more"),
        (achievable(None), "Saves 5.0 % of energy:", "Takes 0.10 % more time (0 % allowed)"),
        (
            achievable(-0.12, 0.02),
            "No saving is promised: energy changes by -12.0 to +2.0 %",
            "Takes",
        ),
        (
            Arm(Strategy.ACHIEVABLE, cost(0.0, 0.0), Status.OPTIMAL),
            "No saving was found: clocks stay as they are.",
            "Takes no more time; 0 % more was allowed.",
        ),
        (achievable(None, energy_change=0.02), "Takes 2.0 % more energy.", "Takes 0.10 % more"),
    ],
)
def test_the_answer_is_of_the_clocks_that_are_held(arm: Arm, saves: str, takes: str) -> None:
    said = planned(arm).answer

    assert said[0].startswith(saves)
    assert said[1].startswith(takes)


def test_a_gpu_year_is_the_mean_power_of_the_step_for_a_year() -> None:
    kwh = 0.05 * 4212.0 / 12.31 * 365.25 * 24.0 / 1000.0

    said = re.search(r": (\d+) kWh or (\d+) EUR a GPU-year", planned(achievable(None)).answer[0])

    assert said is not None
    assert [float(each) for each in said.groups()] == pytest.approx([kwh, kwh / 4.0], rel=0.05)


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
    plan = planned(Arm(Strategy.ACHIEVABLE, best, Status.OPTIMAL), max_slowdown=0.01)
    arms = (
        plan.arms[0],
        Arm(Strategy.BEST_FIXED, fixed, Status.OPTIMAL),
        *plan.arms[2:],
    )
    plan = msgspec.structs.replace(plan, arms=arms, fixed=Clocks(core_mhz=1680))

    assert fixed_is_enough(plan) == enough
    assert ("use that" in (fixed_sentence(plan) or "")) == enough


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
    plan = auto_plan(kernels=kernels, step=Step(name="w", kernels=runs))

    assert energy_parts(plan) == (
        ("forward", 7, 0.75, 0.8),
        ("backward", 2, 0.25, 0.2),
        ("linear", 4, 0.5, 0.6),
        ("norm", 5, 0.5, 0.4),
    )
    assert auto_clock_sentence(plan) == "at auto the step runs at 1700 MHz in the mean"
    details = " ".join("".join(map(printed, plan_details(plan))).split())
    assert "forward 7 75.0% 80.0%" in details
    assert "linear 4 50.0% 60.0%" in details
    assert "in the mean" in details
    assert "at 1700 MHz in the mean." in page(plan, None)
    assert energy_parts(auto_plan(kernels={"gemm": choice(None, 0.0)})) == ()
