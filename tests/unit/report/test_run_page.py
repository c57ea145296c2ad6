"""A page of a run, and the table of it."""

import pytest

from invented import printed
from underclock.errors import DataError
from underclock.records import Evidence
from underclock.records.runs import (
    ArmLine,
    AskLine,
    EndLine,
    EventLine,
    Line,
    RunLine,
    StepLine,
)
from underclock.report.run import run_table
from underclock.report.run_page import charts, run_page
from underclock.runtime.conductor.summary import last_run, summary_of

RUN = RunLine(
    evidence=Evidence.SIMULATED,
    gpus=("RTX 3080 Ti",),
    workload="small <b>",
    marks=6,
    dry=False,
    began_s=100.0,
    planned_s=0.1,
    energy_change=-0.12,
    time_change=0.004,
)


def step(number: int, arm: str, energy_j: float | None = 20.0) -> StepLine:
    return StepLine(
        gpu=0,
        step=number,
        began_s=100.0 + 0.1 * number,
        time_s=0.1,
        state="clocks follow the plan" if arm == "plan" else "clocks are held, whatever the launch",
        arm=arm,
        planned=2,
        asked=2,
        hits=1,
        late_s=(0.0005, -0.002),
        error_s=(0.0001, -0.0004),
        energy_j=energy_j,
        core_mhz=1500.0,
    )


LINES: tuple[Line, ...] = (
    RUN,
    *(step(at, "auto", 22.0) for at in range(3)),
    *(step(at, "plan") for at in range(3, 7)),
    AskLine(gpu=0, at_s=100.3, domain="core", to_mhz=1110, call_s=0.005),
    EventLine(gpu=0, at_s=101.0, text="a lock was overruled & noted"),
    ArmLine(
        gpu=0,
        arm="plan",
        rounds=2,
        steps=4,
        time_change=0.003,
        time_interval=(0.001, 0.005),
        energy_change=-0.1,
        energy_interval=None,
        verdict="kept",
    ),
    EndLine(cpu_s=0.01, wall_s=2.0, looks=400),
)


def test_a_page_shows_steps_arms_and_events_and_lets_nothing_through() -> None:
    page = run_page(LINES)

    assert "7 steps under a plan" in page
    assert "small &lt;b&gt;" in page
    assert "a lock was overruled &amp; noted" in page
    assert "\N{MINUS SIGN}10.00 %" in page
    assert page.count("<figure") == 3
    assert run_page(LINES) == page


def test_a_dry_run_says_that_nothing_was_set() -> None:
    import msgspec

    page = run_page((msgspec.structs.replace(RUN, dry=True), *LINES[1:]))

    assert "nothing set" in page


def test_arms_are_drawn_apart_and_few_points_stand_for_many() -> None:
    many = [step(at, "plan") for at in range(10_000)]

    time, energy, misses = charts(RUN, [*many, step(10_000, "auto", None)])

    assert {series.name for series in time.series} <= {"plan", "auto"}
    assert sum(len(series.points) for series in time.series) <= 2000
    assert energy.y_title == "J"
    assert misses.signed


def test_a_log_without_a_beginning_has_no_page() -> None:
    with pytest.raises(DataError, match="begins no run"):
        run_page(LINES[1:])


def test_a_summary_is_of_the_last_run_and_of_steps_that_followed_the_plan() -> None:
    summary = summary_of(last_run((*LINES, *LINES[:5])))
    assert (summary.steps, summary.followed, summary.conductor) == (4, 1, None)

    summary = summary_of(LINES)
    assert (summary.marks, summary.steps, summary.followed) == (6, 7, 4)
    assert summary.step_j == 20.0
    assert summary.hits == 0.5
    assert summary.error_p50_s == 0.0004
    assert summary.conductor == 0.005
    assert summary.asks == pytest.approx(1 / 7)


def test_nothing_seen_is_a_dash_and_never_zero() -> None:
    summary = summary_of((RUN,))

    assert (summary.step_s, summary.hits, summary.conductor) == (None, None, None)
    assert "-" in printed(run_table(summary))


def test_a_table_has_the_arms() -> None:
    text = printed(run_table(summary_of(LINES)))
    assert "run: simulated" in text

    assert "plan against auto, 2 rounds: energy" in text
    assert "-10.00 %" in text
    assert "+0.30 % (+0.10 % to +0.50 %)" in text
    assert "kept" in text
