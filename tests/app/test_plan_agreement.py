"""One plan has one meaning: whatever shows it, and whatever executes it, says the same numbers."""

import itertools
import json
import math
import re
import sys
from collections import Counter
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from invented import page_data, page_table, printed
from underclock import Campaign, Goal, Step, measure, plan, trace, validate
from underclock.campaign.loop import course_of
from underclock.hw.measurer import BRISK
from underclock.records import (
    AUTO,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    Pass,
    Plan,
    SampleSet,
    Verdict,
    Window,
)
from underclock.records.answers import is_unsure
from underclock.report import page, plan_parts
from underclock.report.wording import changes_text

_CLOCKS = tuple(Clocks(core_mhz=core, mem_mhz=None) for core in (1050, 1470, 1890))


@st.composite
def sample_sets(draw: st.DrawFn) -> SampleSet:
    """Draw a step of few kernels, each measured at auto, or at the fastest clocks in its place."""
    kernels = tuple(
        Kernel(name=f"k{n}", count=draw(st.integers(1, 4)), pass_=draw(st.sampled_from(Pass)))
        for n in range(draw(st.integers(1, 4)))
    )
    order = draw(st.permutations([n for n, k in enumerate(kernels) for _ in range(k.count)]))
    has_auto = draw(st.booleans())
    windows = []
    for kernel in kernels:
        size_s, bound = draw(st.floats(1e-3, 0.1)), draw(st.floats(0.0, 1.0))
        idle_w, busy_w = draw(st.floats(20.0, 90.0)), draw(st.floats(40.0, 250.0))
        for clocks in (*_CLOCKS, *([AUTO] if has_auto else [])):
            part = (clocks.core_mhz or 1890) / 1890
            time_s = size_s * (bound / part + 1.0 - bound) * draw(st.floats(0.97, 1.03))
            energy_j = time_s * (idle_w + busy_w * part**3)
            windows.append(
                Window(kernel=kernel.name, asked=clocks, time_s=time_s, energy_j=energy_j)
            )
    return SampleSet(
        evidence=draw(st.sampled_from((Evidence.SIMULATED, Evidence.REPLAYED))),
        gpu=GpuInfo(name=draw(st.sampled_from(("RTX 3080 Ti", "H200", "a GPU of tomorrow")))),
        step=Step(name="drawn", kernels=kernels, order=draw(st.sampled_from(((), tuple(order))))),
        windows=tuple(windows),
    )


goals = st.builds(Goal, max_slowdown=st.sampled_from((0.0, 0.005, 0.01, 0.1)))
latencies = st.sampled_from(("known", "free", "1ms", "20ms"))


def said(made: Plan) -> str:
    """Return all that a terminal shows of a plan."""
    return " ".join(
        "".join(printed(part, width=400) for part in plan_parts(made, "p", details=True)).split()
    )


def check_outlets(made: Plan) -> None:
    """Hold every outlet to the record that its JSON gives back."""
    arm, promise = made.headline, made.promise
    assert msgspec.json.decode(msgspec.json.encode(made), type=Plan) == made
    body = json.loads(msgspec.json.encode(made))
    assert body["chosen"] == arm.name == ("achievable" if made.schedule else made.chosen)
    assert made.max_slowdown is None or promise.time_change <= made.max_slowdown + 1e-5

    # Energy and time are those of the arm that is held, in each line that says any first.
    text, shown, html = (
        changes_text(arm.energy_change, arm.time_change),
        said(made),
        page(made, None),
    )
    assert str(promise) == text
    for words in (repr(made), made._repr_html_(), shown):
        assert all(line in words for line in made.answer[:2])
    nothing = made.answer[0].startswith("No saving")
    assert nothing == (
        made.sets_nothing or text == "+0.00 % energy at +0.00 % time" or is_unsure(made)
    )
    first = re.match(r"(Saves|Takes) (?:at most )?(\d+\.\d+) % (?:of|more) energy", made.answer[0])
    assert nothing or first is not None
    if first:
        saved = float(first[2]) * (1.0 if first[1] == "Saves" else -1.0)
        assert saved == pytest.approx(-100.0 * promise.energy_change, abs=0.0501)

    strict = re.search(r"At 0 % slower ([-+]\d+\.\d\d) % energy", shown)
    assert strict is None or float(strict[1]) >= 100.0 * promise.energy_change - 0.006

    # Free switching is a bound in all of them, or nobody speaks of it.
    is_bound = made.bound == made.chosen
    assert is_bound == (
        made.schedule is None and len({c.clocks for c in made.kernels.values()}) > 1
    )
    for words in (shown, html):
        assert ("bound" in words) >= (made.bound is not None)
    assert ("at most" in made.answer[0]) == (is_bound and not nothing)
    assert ("at once, which no GPU can" in made.answer[1]) == (is_bound and not nothing)

    # What is held, kernel by kernel: in JSON, in pandas, on the page and in the terminal.
    rows = made.to_pandas().rows
    for name, kernel in body["kernels"].items():
        mine = [row for row in rows if row["kernel"] == name]
        count = sum(row["count"] for row in mine)
        auto_j, auto_s = kernel["auto_energy_j"], kernel["auto_time_s"]
        assert math.isclose(count * mine[0]["auto_energy_j"], auto_j, rel_tol=1e-9)
        saved_j = math.fsum(row["saved_j"] for row in mine)
        assert saved_j == pytest.approx(-kernel["energy_change"] * auto_j, abs=1e-9 * auto_j)
        taken_s = math.fsum(row["count"] * row["time_s"] for row in mine)
        assert taken_s == pytest.approx((1.0 + kernel["time_change"]) * auto_s, rel=1e-9)
        assert kernel["clocks"] in [
            {name: row[name] for name in ("core_mhz", "mem_mhz")} for row in mine
        ]
    by_name = {row["kernel"]: row for row in page_table(html, "kernels")}
    for name, choice in made.kernels.items():
        assert by_name[name]["saved_j"] == pytest.approx(choice.saved_j, rel=5e-4, abs=1e-9)
        assert by_name[name]["energy_change"] == round(1e4 * choice.energy_change)
        assert by_name[name]["time_change"] == round(1e4 * choice.time_change)
    if made.step.order:
        title = page_data(html)["bands"][0]["title"]
        assert ("a bound" in title) == is_bound

    # A schedule without switches does not depend on latency.
    still = [p for p in made.latency_curve if p.switches == 0]
    if made.schedule is not None and made.schedule.switches == 0:
        assert all(
            changes_text(point.energy_change, point.time_change) == text for point in still
        ), (text, still)
    assert len({changes_text(p.energy_change, p.time_change) for p in still}) <= 1

    word = "auto" if made.baseline.is_auto else "baseline"
    assert f"against {word}" in shown or nothing
    assert made.baseline.is_auto or not re.search(r"(at|against|own at) auto\b", shown)


def check_execution(made: Plan) -> None:
    """Hold what a simulator is given to execute to what pandas shows."""
    course = course_of(made)
    assert course is not None
    asked = Counter(
        (made.step.kernels[at].name, pair.core_mhz, pair.mem_mhz)
        for at, pair in zip(made.step.order, course.clocks, strict=True)
    )
    rows = made.to_pandas().rows
    assert asked == {(row["kernel"], row["core_mhz"], row["mem_mhz"]): row["count"] for row in rows}
    changes = sum(a != b for a, b in itertools.pairwise((*course.clocks, course.clocks[0])))
    assert made.schedule is None or made.schedule.switches == changes


@pytest.fixture(autouse=True)
def _frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for pandas."""
    frame = SimpleNamespace(DataFrame=lambda rows: SimpleNamespace(rows=rows))
    monkeypatch.setitem(sys.modules, "pandas", frame)


@settings(max_examples=15)
@given(sample_sets(), goals, latencies)
def test_every_outlet_of_a_plan_says_what_it_holds(
    sample_set: SampleSet, goal: Goal, latency: str
) -> None:
    latency = latency if sample_set.order else "known"
    made = plan(sample_set, goal, latency=latency, raw=True)

    check_outlets(made)
    if made.step.order:
        check_execution(made)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> SampleSet:
    """Measure a step of few kernels that the cap of a simulated GPU holds."""
    every = trace("gpt3-xl", layers=1).kernels[:8]
    kernels = tuple(msgspec.structs.replace(kernel, count=2) for kernel in every)
    step = Step(name="few", kernels=kernels, order=tuple(range(len(kernels))) * 2)
    to = tmp_path_factory.mktemp("agreement") / "few.db"
    campaign = Campaign(precision=0.01, slowdowns=(0.01, 0.02))
    return measure(step, gpu="sim:rtx3080ti#smooth", to=to, campaign=campaign, measuring=BRISK)


@pytest.mark.slow
@pytest.mark.parametrize(("latency", "budget"), [("free", 0.01), ("20ms", 0.02)])
def test_a_simulated_gpu_executes_what_a_plan_says(
    measured: SampleSet, latency: str, budget: float
) -> None:
    made = plan(measured, Goal(max_slowdown=budget), latency=latency)
    ran = validate(made, gpu="sim:rtx3080ti#smooth", repeats=3, only_plan=True)

    check_outlets(made)
    check_execution(made)
    assert not made.sets_nothing
    assert (ran.chosen, ran.latency) == (made.chosen, made.schedule and made.schedule.latency)
    assert (ran.promised_time_change, ran.promised_energy_change) == (
        made.promise.time_change,
        made.promise.energy_change,
    )
    assert ran.time_change.mean == pytest.approx(made.promise.time_change, abs=2e-3)
    assert ran.energy_change.mean == pytest.approx(made.promise.energy_change, abs=1e-2)
    assert ran.verdict is not Verdict.NOT_KEPT
