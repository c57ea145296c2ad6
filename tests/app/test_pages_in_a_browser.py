"""Pages in a browser: quick, silent, offline, for keyboards, telephones, dark rooms and paper."""

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from playwright.sync_api import Browser, Page

from browsers import needs_browser, serious_findings, started_browser
from invented import LATENCY_PLAN, MINUS, VALIDATION, cost
from small_jobs import small_job
from underclock.app.report import render_report
from underclock.core.job.planning import JobGoal, plan_job
from underclock.records import (
    Choice,
    Clocks,
    ClockSchedule,
    Evidence,
    Kernel,
    LatencyPoint,
    Pass,
    Plan,
    Segment,
    Step,
)
from underclock.records.latencies import LatencyTable
from underclock.records.runs import ArmLine, EndLine, EventLine, Line, RunLine, StepLine
from underclock.report import page as plan_page
from underclock.report import run_page
from underclock.runtime.controller.log import summary_of

_FUNCTIONS = (
    "ampere_bf16_s16816gemm_bf16_{}x{}_ldg8_f2f_stages_64x{}_nt",
    "void at::native::vectorized_elementwise_kernel<{}, at::native::MulFunctor<float>, {}>_{}",
    "triton_red_fused_native_layer_norm_backward_{}_{}_{}",
)
_PASSES = (Pass.FORWARD, Pass.BACKWARD, Pass.OPTIMIZER)
_CLOCKS = (1410, 1500, 1605, 1740, None)


def wide_plan(kernels: int, *, layers: int = 24, seed: int = 0) -> Plan:
    """Return a plan in which every kernel has times, powers and clocks of its own.

    Args:
        kernels: Each is launched once, a third of them in each pass.
        layers: Of the model, in each pass.
    """
    draw = random.Random(seed)  # noqa: S311 - for tests
    names = [
        f"{draw.choice(_FUNCTIONS).format(*draw.choices(range(16, 512), k=3))} {at}"
        for at in range(kernels)
    ]
    part = -(-kernels // 3)
    runs = tuple(
        Kernel(name=name, pass_=_PASSES[at // part], bytes_moved=1e6)
        for at, name in enumerate(names)
    )
    modules = []
    for at in range(kernels):
        layer = at % part * layers // part
        modules.append(f"Gpt > blocks.{layer} > .attention")
    choices = {
        name: Choice(
            clocks=Clocks(core_mhz=draw.choice(_CLOCKS)),
            time_change=draw.uniform(0.0, 0.02),
            energy_change=draw.uniform(-0.2, 0.0),
            auto_time_s=12.31 / kernels * draw.uniform(0.1, 1.9),
            auto_energy_j=4212.0 / kernels * draw.uniform(0.1, 1.9),
            auto_core_mhz=1695,
        )
        for name in names
    }
    length = max(1, kernels // 300)
    lengths = [length] * (kernels // length) + [kernels % length] * (kernels % length > 0)
    segments = [
        Segment(
            launches=each,
            clocks=Clocks(core_mhz=_CLOCKS[at % 5], mem_mhz=(None, 5001)[at % 7 == 6]),
        )
        for at, each in enumerate(lengths)
    ]
    schedule = ClockSchedule(
        segments=tuple(segments),
        switches=sum(
            a.clocks != b.clocks for a, b in zip(segments, segments[1:] + segments[:1], strict=True)
        ),
        latency="20ms, assumed",
        latencies=LatencyTable.constant(0.02),
        launch_s=tuple(choices[name].auto_time_s * draw.uniform(1.0, 1.02) for name in names),
        launch_j=tuple(choices[name].auto_energy_j * draw.uniform(0.8, 1.0) for name in names),
    )
    own = (cost(-0.001, -0.0512), cost(0.01, -0.07), cost(0.05, -0.1))
    faster = (cost(-0.001, -0.08), cost(0.01, -0.11), cost(0.05, -0.15))
    point = LatencyPoint(
        latency_s=0.006,
        time_change=0.01,
        energy_change=-0.11,
        switches=12,
        gap=0.0,
        hardware="Hopper (as cited by arXiv 2601.08539)",
        frontier=faster,
    )
    return msgspec.structs.replace(
        LATENCY_PLAN,
        kernels=choices,
        step=Step(
            name="gpt3-xl", kernels=runs, order=tuple(range(kernels)), modules=tuple(modules)
        ),
        schedule=schedule,
        achievable_frontier=own,
        latency_curve=(point, LATENCY_PLAN.latency_curve[1]),
    )


_KINDS: Final = ("plan", "run", "job")
_FEW: Final = 36  # kernels: enough for a table to scroll in a frame of its own
_MOST_BYTES, _MOST_S = 500_000, 2.0  # of a page of 10 000 kernels

pytestmark = [
    pytest.mark.slow,
    needs_browser,
]


def _run_lines() -> tuple[Line, ...]:
    run = RunLine(
        evidence=Evidence.SIMULATED,
        gpus=("RTX 3080 Ti",),
        workload="gpt",
        marks=6,
        dry=False,
        began_s=100.0,
        energy_change=-0.12,
        time_change=0.004,
    )
    arms = [("auto", "plan", "best-fixed")[at // 20 % 3] for at in range(180)]
    steps = [
        StepLine(
            gpu=0,
            step=at,
            began_s=100.0 + 0.1 * at,
            time_s=0.099,
            state="clocks follow the plan",
            arm=arm,
            planned=2,
            asked=2,
            hits=1,
            late_s=(0.0005, -0.002),
            energy_j={"auto": 22.0, "plan": 20.0}.get(arm, 21.0),
            core_mhz={"auto": 1740.0, "plan": 1500.0 + at}.get(arm, 1605.0),
        )
        for at, arm in enumerate(arms)
    ]
    saved = ArmLine(
        gpu=0,
        arm="plan",
        rounds=3,
        steps=60,
        time_change=0.003,
        time_interval=(0.001, 0.005),
        energy_change=-0.1,
        energy_interval=(-0.11, -0.09),
        verdict="kept: energy -10.00 % against -12.00 % ± 3.00 % promised",
    )
    event = EventLine(gpu=0, at_s=101.0, text="a lock was overruled")
    return (run, *steps, event, saved, EndLine(cpu_s=0.01, wall_s=2.0, looks=400))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where a page of every kind lies, and those of many kernels."""
    found = tmp_path_factory.mktemp("pages")
    lines = _run_lines()
    job = plan_job(small_job(stages=3, microbatches=4), JobGoal(max_slowdown=0.02, points=5))
    pages = {
        "plan": plan_page(wide_plan(_FEW), VALIDATION),
        "run": run_page(lines, summary_of(lines)),
        "job": render_report(job),
        "many": plan_page(wide_plan(10_000), VALIDATION),
    }
    for name, text in pages.items():
        (found / f"{name}.html").write_text(text, encoding="utf-8")
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as found:
        yield found


Opened = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser, folder: Path) -> Iterator[Opened]:
    """Return what opens a page; in the end nothing was asked of a network or told the console."""
    contexts, said = [], []

    def open_page(
        name: str, *, width: int = 1280, dark: bool = False, folded: bool = False, **more: Any
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            **more,
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        own = (folder / f"{name}.html").as_uri()
        page.on(
            "request",
            lambda r: None if r.url == own or r.url[:5] == "blob:" else said.append(r.url),
        )
        page.goto(own)
        page.wait_for_selector("html[data-ready]", state="attached")
        if not folded:
            page.evaluate("document.querySelectorAll('.fold').forEach(e => { e.open = true })")
            settle(page)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []


def seen_s(page: Page) -> tuple[float, float]:
    """Return which part of the time a timeline shows."""
    shown = page.locator("#timeline").evaluate(
        "e => [Number(e.dataset.from), Number(e.dataset.to)]"
    )
    return shown[0], shown[1]


def settle(page: Page) -> None:
    page.evaluate("() => new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("kind", _KINDS)
def test_axe_finds_nothing_serious(kind: str, dark: bool, opened: Opened) -> None:  # noqa: FBT001
    # What does not hang on colours is the same in the dark.
    assert serious_findings(opened(kind, dark=dark), colours_only=dark) == []


@pytest.mark.parametrize("kind", _KINDS)
def test_on_a_telephone_nothing_is_beside_the_screen(kind: str, opened: Opened) -> None:
    page = opened(kind, width=390, has_touch=True)

    assert page.evaluate("document.documentElement.scrollWidth") == 390
    drawn = page.locator("#timeline svg").bounding_box()
    assert drawn is not None
    assert drawn["x"] >= 0
    assert drawn["x"] + drawn["width"] <= 390


@pytest.mark.parametrize("width", [390, 1280])
def test_the_first_screen_has_the_answer_and_a_picture(width: int, opened: Opened) -> None:
    page = opened("plan", width=width, folded=True)

    for at, line in enumerate((page.locator("h1"), *page.locator("header p").all()[:2])):
        assert " ".join(line.inner_text().replace(MINUS, "-").split()).startswith(
            LATENCY_PLAN.answer[at][:40]
        )
    drawn = page.locator("#figure-frontier svg").locator("visible=true").bounding_box()
    assert drawn is not None
    assert drawn["y"] < 800
    assert page.locator("#table-kernels").is_hidden()


def test_paper_shows_what_is_folded(opened: Opened) -> None:
    page = opened("plan", folded=True)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")

    assert page.locator("#table-kernels table").is_visible()


def test_a_page_of_10_000_kernels_is_small_and_opens_at_once(folder: Path, opened: Opened) -> None:
    assert (folder / "many.html").stat().st_size <= _MOST_BYTES

    for _ in range(3):  # a busy machine may be late once
        begun = time.perf_counter()
        page = opened("many")
        if time.perf_counter() - begun <= _MOST_S:
            break
    else:
        raise AssertionError("it takes too long to open")

    # Only rows in sight are there, and all can be reached.
    table = page.locator("#table-kernels")
    assert table.locator("tbody tr").count() < 100
    assert table.locator("table").get_attribute("aria-rowcount") == "10001"
    table.locator(".tall").evaluate("e => { e.scrollTop = e.scrollHeight }")
    settle(page)
    assert table.locator('tr[aria-rowindex="10001"]').count() == 1
    # What is drawn depends on the screen, not on the step.
    shapes = "document.querySelector('#timeline svg').innerHTML.length"
    assert page.evaluate(shapes) < 400_000
    page.locator(".stage").focus()
    for _ in range(9):
        page.keyboard.press("+")
    settle(page)
    assert page.evaluate(shapes) < 400_000


def test_a_timeline_is_zoomed_and_walked_with_the_keyboard_alone(opened: Opened) -> None:
    page = opened("plan")
    stage = page.locator(".stage")
    for _ in range(40):
        if page.evaluate("document.activeElement.classList.contains('stage')"):
            break
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.classList.contains('stage')")

    whole = seen_s(page)
    page.keyboard.press("Home")
    assert "blocks.0.attention" in page.locator(".tip").inner_text()
    page.keyboard.press("+")
    page.keyboard.press("+")
    settle(page)
    first, last = seen_s(page)
    assert (last - first) == pytest.approx((whole[1] - whole[0]) / 4)
    assert page.locator(".cursor").is_visible()  # about the box that it is on
    page.keyboard.press("ArrowRight")
    text = stage.get_attribute("aria-valuetext") or ""
    assert "Under the plan" in text
    assert f"2 of {_FEW}" in text
    assert "MHz" in text
    page.keyboard.press("ArrowDown")
    text = stage.get_attribute("aria-valuetext") or ""
    assert text.startswith("At auto")
    assert "core 1695 MHz, set by the driver" in text
    page.keyboard.press("End")
    settle(page)
    assert seen_s(page)[1] == pytest.approx(whole[1], rel=0.05)  # it is followed
    page.keyboard.press("0")
    settle(page)
    assert seen_s(page) == pytest.approx(whole)


def test_tables_sort_and_search_and_save_what_they_show(opened: Opened, tmp_path: Path) -> None:
    page = opened("plan")
    table = page.locator("#table-kernels")
    saved = table.get_by_role("button", name="Saved")
    assert table.locator("th[aria-sort]").inner_text().startswith("Saved")

    def column(number: int) -> list[str]:
        return table.locator(f"tbody tr td:nth-child({number})").all_inner_texts()

    falling = [float(text.replace(MINUS, "-")) for text in column(7)]
    assert falling == sorted(falling, reverse=True)
    saved.click()
    assert [float(text.replace(MINUS, "-")) for text in column(7)] == sorted(falling)

    table.get_by_role("searchbox").fill("LAYER_NORM")
    names = column(1)
    assert 0 < len(names) < _FEW
    assert all("layer_norm" in name for name in names)
    assert table.locator("output").inner_text() == f"{len(names)} of {_FEW} kernels"
    with page.expect_download() as download:
        table.get_by_role("button", name="Save as CSV").click()
    download.value.save_as(tmp_path / "kernels.csv")
    lines = (tmp_path / "kernels.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("kernel,pass,runs,core_mhz,mem_mhz,auto_j,saved_j")
    assert len(lines) == 1 + len(names)

    segments = page.locator("#table-segments")
    segments.get_by_role("searchbox").fill(names[0])  # kernels of a segment, by name
    assert segments.locator("tbody tr").count() == 1
    assert names[0] in segments.locator("tbody td:last-child").inner_text()
