"""Terminal tables of plans and validations."""

import msgspec
import pytest

from invented import (
    ARMS,
    LATENCY_PLAN,
    MINUS,
    PLAN,
    Seen,
    choices,
    printed,
    with_plan,
    with_validation,
)
from underclock.records import (
    Arm,
    Clocks,
    Evidence,
    OtherArm,
    Spread,
    Status,
    Strategy,
    Verdict,
)
from underclock.report import (
    arms_table,
    page,
    plan_parts,
    savings_table,
    validation_table,
    verdict_text,
)
from underclock.report.terminal import filled, numbers, words
from underclock.report.wording import DASH


@pytest.mark.parametrize("evidence", Evidence)
def test_every_terminal_table_says_how_its_numbers_are_known(evidence: Evidence) -> None:
    plan = with_plan(evidence=evidence)

    tables = (
        arms_table(plan),
        savings_table(plan),
        validation_table(with_validation(evidence=evidence)),
    )

    assert all(str(evidence) in printed(table) for table in tables)


def test_an_infeasible_arm_shows_dashes_and_no_numbers() -> None:
    arms = (ARMS[0], Arm(Strategy.BEST_FIXED, None, Status.INFEASIBLE), *ARMS[2:])
    plan = with_plan(arms=arms, fixed=None)

    (line,) = (t for t in printed(arms_table(plan)).splitlines() if "best fixed" in t)
    html = Seen(page(plan, None)).text

    assert line.split() == ["best", "fixed", "clock", *(DASH,) * 4, "infeasible"]
    assert f"{DASH} {DASH} {DASH} {DASH} infeasible" in html


@pytest.mark.parametrize("width", [40, 50, 60, 80])
def test_a_narrow_terminal_cuts_no_word_and_no_number(width: int) -> None:
    found = with_validation(**JUDGED, verdict=Verdict.NOT_KEPT, others=(FIXED,))

    for part in (*plan_parts(LATENCY_PLAN, "p", details=True), validation_table(found)):
        narrow, wide = printed(part, width), printed(part, 200)
        assert max(map(len, narrow.splitlines())) <= width
        assert {
            word
            for word in narrow.partition("left out for")[0].split()
            if "\N{BOX DRAWINGS LIGHT HORIZONTAL}" not in word
        } <= set(wide.split())


def test_a_kernel_name_that_looks_like_rich_markup_is_printed_as_it_is() -> None:
    plan = with_plan(kernels={"[red]gemm[/]": choices(2)["kernel1"]})

    assert "[red]gemm[/]" in printed(savings_table(plan))


def test_savings_are_ranked_by_joules_of_the_step_and_the_rest_is_summed() -> None:
    small = msgspec.structs.replace(choices(2)["kernel1"], energy_change=-0.9, auto_energy_j=0.01)
    plan = with_plan(kernels={"tiny": small, **choices(48)})

    rows = [line.split() for line in printed(savings_table(plan)).splitlines()]

    named = [row for row in rows if row and row[0][:6] == "kernel" and row[0][6:].isdigit()]
    assert [row[0] for row in named] == [f"kernel{n}" for n in range(47, 39, -1)]
    saved = [float(row[4]) for row in named]
    rest = next(row for row in rows if row[1:2] == ["others"])
    assert rest[0] == "41"
    total = sum(choice.saved_j for choice in plan.kernels.values())
    assert sum(saved) + float(rest[2]) == pytest.approx(total, abs=0.1)


JUDGED = {
    "time_interval": (-0.0012, 0.0124),
    "energy_interval": (-0.1491, -0.1415),
    "max_slowdown": 0.0,
    "tolerance": 0.001,
}
KEPT = {
    "time_interval": (-0.0012, 0.0004),
    "energy_interval": (-0.1691, -0.1615),
    "verdict": Verdict.KEPT,
}
FIXED = OtherArm(
    name=Strategy.BEST_FIXED,
    clocks=Clocks(core_mhz=1680),
    time_s=(12.1, 12.2, 12.3),
    energy_j=(4100.0, 4110.0, 4120.0),
    time_change=Spread(mean=-0.0089, best=-0.0179, worst=0.0),
    energy_change=Spread(mean=-0.0242, best=-0.0271, worst=-0.0214),
    time_interval=(-0.02, 0.02),
    energy_interval=(-0.0301, -0.0199),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "start"),
    [
        (KEPT, "kept: energy -14.53 % (-16.91 to -16.15 %) against -15.64 %"),
        ({"verdict": Verdict.NOT_KEPT}, "not kept: energy -14.53 % (-14.91 to -14.15 %)"),
    ],
)
def test_a_verdict_says_what_it_rests_on(changes: dict[str, object], start: str) -> None:
    found = with_validation(**(JUDGED | changes))
    text = verdict_text(found)

    assert text.startswith(start)
    assert text.endswith("against a budget of +0.00 %; tolerance 0.1 points")
    assert text[1:].replace("-", MINUS) in Seen(page(PLAN, found)).text


def test_intervals_and_other_arms_stand_in_table_and_page() -> None:
    found = with_validation(**JUDGED, verdict=Verdict.NOT_KEPT, others=(FIXED,))
    text, html = printed(validation_table(found)), page(PLAN, found)

    assert "-14.91 to -14.15 %" in text
    assert text.count("best fixed clock,") == 2
    assert max(map(len, text.splitlines())) <= 80
    assert f"{MINUS}3.01 to {MINUS}1.99 %" in Seen(html).text
    assert "<title>best fixed clock: " in html


@pytest.mark.parametrize("width", [40, 50, 60, 80])
def test_a_narrow_terminal_keeps_what_answers_and_names_what_it_leaves_out(width: int) -> None:
    columns = (*words("kernel"), *numbers("core / mem\nMHz", "time", "energy", "time\nper step"))
    cells = ("a kernel of some length", "1500 / 5001", "+1.00 %", "-9.00 %", "123.456 ms")

    shown = printed(filled("t", (*columns, *words("status")), [(*cells, "optimal")], "c"), width)

    said = " ".join(shown.partition("left out for the width:")[2].split()).split(", ")
    for place, name in enumerate(("core / mem MHz", "time", "energy", "time per step"), 1):
        assert (cells[place] in shown) != (name in said)
    assert "-9.00 %" in shown
    assert "+1.00 %" in shown
    assert ("left out" in shown) == (width < 80)
