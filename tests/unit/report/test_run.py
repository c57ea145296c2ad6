"""A page of a run, and the table of it."""

import msgspec
import pytest

from invented import page_data
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
from underclock.report.run import closing_line, run_page, run_table
from underclock.runtime.controller.log import last_run, summary_of

RUN = RunLine(
    evidence=Evidence.SIMULATED,
    gpus=("RTX 3080 Ti",),
    workload="small <b>",
    marks=6,
    dry=False,
    began_s=100.0,
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


ARM = ArmLine(
    gpu=0,
    arm="plan",
    rounds=2,
    steps=4,
    time_change=0.003,
    time_interval=(0.001, 0.005),
    energy_change=-0.1,
    energy_interval=None,
    verdict="kept",
)
WHY = EventLine(gpu=0, at_s=101.0, text="arms were not compared")

LINES: tuple[Line, ...] = (
    RUN,
    *(step(at, "plan") for at in range(4)),
    step(4, "best-fixed", 21.0),
    *(step(at, "auto", 22.0) for at in range(5, 7)),
    AskLine(gpu=0, at_s=100.3, domain="core", to_mhz=1110, call_s=0.005),
    EventLine(gpu=0, at_s=101.0, text="a lock was overruled & noted"),
    ARM,
    EndLine(cpu_s=0.01, wall_s=2.0, looks=400, enqueued=9, energy_j=360.0),
)


def test_a_page_shows_steps_arms_and_events_and_lets_nothing_through() -> None:
    page = run_page(LINES, summary_of(LINES))

    assert "4 steps under the plan; 7 of 9 steps seen; 0.0001 kWh drawn" in page
    saved = (
        "Saved 10.0 % of energy for 0.30 % more time than auto on this job, simulated: promise kept"
    )
    assert page.index("<h1") < page.rindex(saved) < page.index("4 steps under the plan")
    assert "small &lt;b&gt;" in page
    assert "a lock was overruled &amp; noted" in page
    assert "\N{MINUS SIGN}10.00 %" in page
    assert page.count("<figure") == 4
    (track,) = page_data(page)["bands"][0]["tracks"]
    assert track["states"][2] == [1500] * len(track["states"][2])
    assert track["groups"][0][2] == [4, 1, 2]  # four of the plan, one best-fixed, two at auto
    assert 0 in track["states"][3]  # the driver's
    order = [page.rindex(f"<td>{arm}</td>") for arm in ("auto", "plan", "best-fixed")]
    assert order == sorted(order)
    assert run_page(LINES, summary_of(LINES)) == page


def test_a_dry_run_says_first_that_no_clock_was_held() -> None:
    lines = (msgspec.structs.replace(RUN, dry=True), *LINES[1:9])
    page = run_page(lines, summary_of(lines))

    assert "<h1>No clock was held, and nothing was saved" in page
    assert "steps would have followed the plan" in page
    assert "; no clock was held, and nothing was saved; " in closing_line(summary_of(lines))
    assert "on RTX 3080 Ti, no clock was held" in str(run_table(summary_of(lines)).title)


def test_a_summary_is_of_the_last_run_and_of_steps_that_followed_the_plan() -> None:
    summary = summary_of(last_run((*LINES, *LINES[:2], *LINES[5:8])))
    assert (summary.steps, summary.followed, summary.conductor) == (4, 1, None)

    summary = summary_of(LINES)
    assert (summary.marks, summary.steps, summary.followed) == (6, 7, 4)
    assert summary.step_j == 20.0
    assert summary.hits == 0.5
    assert summary.error_p50_s == 0.0004
    assert summary.conductor == 0.005
    assert summary.asks == pytest.approx(1 / 7)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            LINES,
            "10.0 % of energy for 0.30 % more time than auto on this job, simulated: promise kept",
        ),
        (
            tuple(line for line in LINES if not isinstance(line, ArmLine)),
            "promised -12.0 % energy, what it saved was not measured: --compare auto,plan",
        ),
        (
            (msgspec.structs.replace(RUN, arms="auto,plan"), step(1, "auto"), WHY),
            "promised -12.0 % energy, saved nothing: arms were not compared",
        ),
        (
            (
                msgspec.structs.replace(RUN, is_job=True),
                *(
                    msgspec.structs.replace(step(at, "learning", 40.0 if at < 7 else 20.0), gpu=g)
                    for at in range(14)  # the first half of which is warm-up
                    for g in (0, 1)
                ),
                *(
                    msgspec.structs.replace(step(at, "plan", 18.0 + 0.1 * (at % 2)), gpu=g)
                    for at in range(14, 28)
                    for g in (0, 1)
                ),
            ),
            "promised -12.0 % energy, saved 9.7 % of energy (± 0.2) for no more time than its",
        ),
        ((), "0 steps; nothing was seen of it; what it drew is not known; clocks were given back"),
    ],
)
def test_a_run_ends_with_one_line(lines: tuple[Line, ...], words: str) -> None:
    line = closing_line(summary_of(lines), clocks="clocks were given back")

    assert words in line
    assert line.endswith("; clocks were given back")
    assert "\n" not in line
