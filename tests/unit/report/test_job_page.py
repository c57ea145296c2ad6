"""A job and its plan as people see them: tables, a page, a trace."""

import json
import re
from itertools import accumulate
from typing import Any

import pytest
from rich.console import Console

from invented import page_data
from small_jobs import small_job
from underclock.app.report import render_report, timelines
from underclock.core.job.planning import JobGoal, plan_job
from underclock.errors import DataError
from underclock.records.job import JobPlan
from underclock.report import job_plan_tables, job_tables
from underclock.report.chrome import job_trace


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
    assert text.startswith("-")
    assert "energy at +" in text.splitlines()[0]
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
    assert max(ends) == pytest.approx(plan.arm("auto").time_s, rel=1e-3)
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
    assert last_us == 1e6 * (plan.arm("auto").time_s or 0.0)


def test_a_job_s_plan_has_no_validation() -> None:
    with pytest.raises(DataError, match="no validation"):
        render_report(planned(), planned())
