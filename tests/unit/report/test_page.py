"""The page of a plan: whole, small, safe, and honest about what is known."""

import json
import re
import subprocess
import sys
from itertools import accumulate
from typing import Any

import pytest
from rich.console import Console

from invented import (
    MINUS,
    NASTY,
    PLAN,
    VALIDATION,
    Seen,
    choices,
    cost,
    page_data,
    page_table,
    with_plan,
    with_validation,
)
from small_jobs import small_job
from underclock.app.report import render_report, timelines
from underclock.core.job.planning import JobGoal, plan_job
from underclock.errors import DataError
from underclock.records import (
    Evidence,
    GpuInfo,
    Kernel,
    Step,
)
from underclock.records.job import JobPlan
from underclock.report import (
    job_plan_tables,
    job_tables,
    page,
)
from underclock.report.chrome import job_trace


@pytest.mark.untraced
@pytest.mark.parametrize("evidence", Evidence)
def test_every_block_of_the_page_has_the_evidence_beside_it(evidence: Evidence) -> None:
    text = page(with_plan(evidence=evidence), with_validation(evidence=evidence))

    seen = Seen(text)
    captions = seen.count("figcaption")
    badges = sum(1 for _, attributes in seen.tags if attributes.get("class") == "badge")
    assert captions == 5
    assert badges == captions + 1 + 1  # the answer, what this rests on
    assert all(word.strip() in text for word in (f"({evidence})", evidence.capitalize()))
    for other in set(Evidence) - {evidence}:
        assert f">{other}</span>" not in text


def test_a_script_in_a_name_is_text_not_a_script() -> None:
    harmless = page(PLAN, VALIDATION)
    plan = with_plan(
        step=Step(name=NASTY, kernels=(Kernel(name=NASTY),)),
        gpu=GpuInfo(name=NASTY),
        kernels={NASTY: choices(2)["kernel1"]},
        warnings=(NASTY,),
    )

    text = page(plan, VALIDATION)

    assert Seen(text).count("script") == Seen(harmless).count("script")
    assert NASTY not in text
    assert page_table(text, "kernels")[0]["kernel"] == NASTY


def test_the_page_loads_nothing_from_anywhere() -> None:
    seen = Seen(page(PLAN, VALIDATION))

    assert not {tag for tag, _ in seen.tags} & {"link", "img", "iframe", "object", "embed", "base"}
    assert not any({"src", "href", "srcset"} & attributes.keys() for _, attributes in seen.tags)
    assert "url(" not in seen.styles
    assert "@import" not in seen.styles
    policy = next(a["content"] for _, a in seen.tags if "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


@pytest.mark.untraced
def test_of_more_kernels_than_a_page_lists_the_others_are_one_row_and_that_is_said() -> None:
    text = page(with_plan(kernels=choices(10_050)), None)

    rows = page_table(text, "kernels")
    assert len(rows) == 10_001
    assert rows[-1]["kernel"] == "50 others, each of which draws less"
    assert rows[-1]["auto_j"] == pytest.approx(50 * 80.0)
    assert "All 10050 kernels, 10000 of them one by one" in text


def test_numbers_of_the_slider_are_the_line_that_is_drawn() -> None:
    line = tuple(cost(0.002 * n, -0.3 * n / (n + 20.0)) for n in range(200))
    html = page(with_plan(frontier=line), None)

    ((takes, points),) = page_data(html)["lines"]
    drawn = [a["points"] for tag, a in Seen(html).tags if tag == "polyline"]

    assert takes == "no time: a bound"
    assert len(drawn) == 2
    assert all(len((each or "").split()) == len(points) for each in drawn)
    assert points[0] == [0.0, 0.0]
    assert points[-1][0] == 0.05  # as far as is drawn, between two points of the frontier
    assert [time for time, _ in points] == sorted(time for time, _ in points)
    assert f"It goes on to +39.80 % time, {MINUS}27.26 % energy." in Seen(html).text


def test_warnings_of_plan_and_validation_stand_above_the_numbers() -> None:
    both = ("the table has holes", "the GPU was throttled")

    text = Seen(page(with_plan(warnings=both[:1]), with_validation(warnings=both))).text

    assert all(text.count(warning) == 1 for warning in both)
    assert max(map(text.index, both)) < text.index("What more time would save")


def test_what_is_unknown_is_called_unknown() -> None:
    plan = with_plan(gpu=GpuInfo(name="RTX"), closure=None, frontier=())

    text = Seen(page(plan, None)).text

    for fact in ("Driver", "Power limit", "Step fingerprint", "Kernel launches per step"):
        assert f"{fact} unknown" in text
    assert "Kernels added up unknown: the step was not measured as a whole." in text


def test_tables_do_not_load_jinja2() -> None:
    code = "import sys, underclock.report; print({'jinja2'} & sys.modules.keys())"

    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert result.stdout == "set()\n"


def planned(**shape: Any) -> JobPlan:
    job = small_job(stages=3, microbatches=4, **shape)
    return plan_job(job, JobGoal(max_slowdown=0.02, points=5))


def printed(parts: object) -> str:
    console = Console(width=100, no_color=True)
    with console.capture() as said:
        console.print(*parts)  # type: ignore[misc]
    return said.get()


def test_the_answer_comes_first_and_fits_a_screen() -> None:
    plan = planned()
    text = printed(job_plan_tables(plan))
    assert " ".join(text.split()).startswith(" ".join(plan.answer))
    assert plan.answer[0].startswith("Saves")
    assert "* each instruction" in text
    assert "simulated" in printed(job_tables(plan.job)) or "replayed" in text
    assert "MHz that stages hold" in text
    assert len(text.splitlines()) <= 24


def test_the_page_shows_both_timelines_of_a_pipeline_and_all_ranks() -> None:
    plan = planned(data=2, transfer_s=(0.02,))
    page = render_report(plan)
    assert page == render_report(plan)
    assert page.split("<script")[0].count("<svg") == 2  # the frontier, wide and narrow
    data = page_data(page)
    for band in data["bands"]:
        assert [track["label"] for track in band["tracks"]] == ["stage 0", "stage 1", "stage 2"]
    ends = [
        sum(track["gaps"]) + sum(track["states"][1][at] for at in accumulate(track["order"]))
        for track in data["bands"][1]["tracks"]
    ]
    assert max(ends) == pytest.approx(plan.auto.time_s, rel=1e-3)
    assert "Shown are 3 of 6 ranks." in page
    assert len(data["lines"][0][1]) == len(plan.frontier)
    assert len(page.encode()) < 500_000
    assert not re.search(r"https?://(?!www\.w3\.org)", page)


def test_the_trace_has_every_instruction_twice_and_says_what_numbers_are() -> None:
    plan = planned()
    events = json.loads(job_trace(plan, *timelines(plan)))["traceEvents"]
    runs = [each for each in events if each["ph"] == "X"]
    held = sum(each is not None and each.then is not None for rank in plan.clocks for each in rank)
    assert len(runs) == 2 * plan.job.instructions + held
    assert {each["pid"] for each in runs} == set(range(6))
    names = [each["args"]["name"] for each in events if each["ph"] == "M"]
    assert all("replayed" in name for name in names)
    last_us = max(each["ts"] + each["dur"] for each in runs if each["pid"] < 3)
    assert last_us == 1e6 * (plan.auto.time_s)


def test_a_job_s_plan_has_no_validation() -> None:
    with pytest.raises(DataError, match="no validation"):
        render_report(planned(), planned())
