"""Draws the pictures of docs/how_it_works.md anew: ``python studies/drawings.py``.

Charts and timelines are drawn by what draws reports, of the small tables of docs/examples; boxes
and arrows are only put where they stand. Equal input gives equal pictures, and a test draws them
again. Each picture is light, whatever the page around it is.
"""

import csv
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import underclock
from pages import ROOT
from underclock.core.job.timeline import auto_clocks
from underclock.core.job.timeline import timeline as spans_of
from underclock.records.job import Span
from underclock.report.chart import BLUE, GREEN, GREY, ORANGE, VERMILION, Chart, Series, draw
from underclock.report.svg import Box, document, px, rectangle, text

EXAMPLES = ROOT / "docs" / "examples"
IMAGES = ROOT / "docs" / "images"
_WIDTH_PX = 720
_KERNELS = (
    ("qkv", "a matrix product (qkv)", BLUE, "circle"),
    ("softmax_forward_kernel5", "a softmax", VERMILION, "square"),
)
_LINE_PX, _BOX_PX = 17, 56
_BOOST_MHZ = 1410  # of the example's GPU
_PAPER, _INK = "#ffffff", "#1f2328"


def drawings() -> dict[str, str]:
    """Return every picture as SVG, by the name of its file."""
    before, after = _pipeline()
    drawn = {
        "two_kernels": _two_kernels("time_s", "Time of a launch against the core clock"),
        "two_energies": _two_kernels("energy_j", "Energy of a launch against the core clock"),
        "ways": _ways(),
        "following": _following(),
        "stages": _stages(),
        "who_undoes": _who_undoes(),
        "pipeline_auto": before,
        "pipeline_plan": after,
    }
    return {f"{name}.svg": _light(svg) for name, svg in drawn.items()}


def _light(svg: str) -> str:
    """Put paper below a drawing and ink into it, so that it stands on pages of any colour."""
    paper = f'<rect width="100%" height="100%" fill="{_PAPER}"/>'
    return re.sub(r"(<svg [^>]*)>", rf'\1 color="{_INK}">{paper}', svg, count=1) + "\n"


def _two_kernels(column: str, title: str) -> str:
    """Draw what two kernels of the example take at each core clock, against auto."""
    with (EXAMPLES / "sweep.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if not row["mem_mhz"]]
    series = []
    for kernel, name, colour, symbol in _KERNELS:
        of = {row["core_mhz"]: float(row[column]) for row in rows if row["kernel"] == kernel}
        points = [(float(mhz), 100 * (value / of[""] - 1)) for mhz, value in of.items() if mhz]
        line = tuple(sorted(points))
        series.append(Series(name="", points=line, colour=colour, labelled=True))
        series.append(Series(name=name, points=line, colour=colour, symbol=symbol))
    chart = Chart(
        key=column,
        title=title,
        x_title="core clock that is held (MHz)",
        y_title=f"{'time' if column == 'time_s' else 'energy'} against auto (%)",
        series=tuple(series),
        signed=False,
        plot_px=230,
        x_limits=(550.0, 1850.0),
    )
    return draw(chart, _WIDTH_PX)


def _ways() -> str:
    """Draw what each way of choosing clocks makes of the example's step, within 1 %."""
    plan = underclock.plan(EXAMPLES / "sweep.csv", underclock.Goal(max_slowdown=0.01))
    looks = {
        "auto": ("auto", GREY, "circle"),
        "pass": ("a pair of clocks for each pass", ORANGE, "square"),
        "kernel_global": ("a pair for each kernel, chosen together", VERMILION, "star"),
    }
    series = [
        Series(
            name=looks[arm.name][0],
            points=((100 * arm.time_change, 100 * arm.energy_change),),
            colour=looks[arm.name][1],
            symbol=looks[arm.name][2],
        )
        for arm in plan.arms
        if arm.name in looks and arm.time_change is not None and arm.energy_change is not None
    ]
    chart = Chart(
        key="ways",
        title="What ways of choosing clocks save of four kernels",
        x_title="time against auto (%)",
        y_title="energy against auto (%)",
        series=tuple(series),
        plot_px=200,
        x_limits=(-1.2, 0.3),
    )
    return draw(chart, _WIDTH_PX)


def _pipeline() -> tuple[str, str]:
    """Draw the example's pipeline at auto and under its plan, a row for each rank."""
    profile = EXAMPLES / "stages.csv"
    job = underclock.pipeline_job("1f1b", profile, stages=4, microbatches=8, blocked_w=85.0)
    plan = underclock.plan_job(job, max_slowdown=0.01)
    auto, planned = spans_of(job, auto_clocks(job)), spans_of(job, plan.clocks)
    end_s = max(span.ends_s for span in (*auto, *planned))
    return (
        _ranks(auto, end_s, "A pipeline at auto clocks"),
        _ranks(planned, end_s, "The same pipeline under its plan"),
    )


def _ranks(spans: Sequence[Span], end_s: float, title: str) -> str:
    """Draw what ranks do over time, the lower the clock the darker; where a rank waits, nothing."""
    left, row, width = 70.0, 24.0, _WIDTH_PX - 84.0
    parts = [
        text(4, 14, title, bold=True),
        text(_WIDTH_PX - 6, 14, "dark: a low clock", anchor="end"),
    ]
    for span in spans:
        x, to_x = (left + each / end_s * width for each in (span.begins_s, span.ends_s))
        top = 24 + row * span.rank
        ghz = (span.core_mhz or _BOOST_MHZ) / _BOOST_MHZ
        paint = f'fill="{BLUE}" fill-opacity="{px(1.6 - 1.3 * ghz)}" stroke="{_PAPER}"'
        parts.append(rectangle(Box(x, top, to_x, top + row - 5), paint))
    last = 1 + max(span.rank for span in spans)
    parts += [text(4, 38 + row * rank, f"stage {rank}") for rank in range(last)]
    bottom = 24 + row * last + 14
    ticks = [(0.2 * at, f"{0.2 * at:.1f} s") for at in range(int(end_s / 0.2) + 1)]
    parts += [text(left + at / end_s * width, bottom, words) for at, words in ticks]
    return document(parts, _WIDTH_PX, bottom + 8, title)


def _following() -> str:
    """Draw the clocks that launches want, and a schedule that changes clocks seldom."""
    wanted = [(3.0, 1875), (0.6, 1005), (4.0, 1875), (0.5, 1005), (0.7, 1200), (5.0, 1890)]
    wanted += [(3.0, 1875), (2.4, 1005), (1.9, 1005), (2.2, 1200), (4.0, 1875)]
    steps: list[tuple[float, float]] = []
    at_ms = 0.0
    for length_ms, mhz in wanted:
        steps += [(at_ms, float(mhz)), (at_ms + length_ms, float(mhz))]
        at_ms += length_ms
    slow = ((0.0, 1860.0), (16.8, 1860.0), (16.8, 1100.0), (23.3, 1100.0), (23.3, 1860.0))
    chart = Chart(
        key="following",
        title="What launches want, and what a GPU can follow",
        x_title="time in the step (ms): a drawing, not a measurement",
        y_title="core clock (MHz)",
        series=(
            Series(name="what each launch wants", points=tuple(steps), colour=GREY),
            Series(
                name="a schedule for clocks that take 6 ms to change",
                points=(*slow, (at_ms, 1860.0)),
                colour=GREEN,
            ),
        ),
        signed=False,
        plot_px=200,
    )
    return draw(chart, _WIDTH_PX)


@dataclass(frozen=True, slots=True)
class _Node:
    """A box of a drawing: where its left top corner stands, and its lines, the first one bold."""

    left: float
    top: float
    width: float
    lines: tuple[str, ...]
    colour: str = GREY

    @property
    def box(self) -> Box:
        return Box(self.left, self.top, self.left + self.width, self.top + _BOX_PX)


def _node(node: _Node) -> list[str]:
    box = node.box
    paint = f'rx="6" fill="{node.colour}" fill-opacity="0.14" stroke="{node.colour}"'
    middle = (box.left + box.right) / 2
    first = box.top + (_BOX_PX - _LINE_PX * len(node.lines)) / 2 + 13
    lines = [
        text(middle, first + _LINE_PX * at, line, anchor="middle", bold=at == 0)
        for at, line in enumerate(node.lines)
    ]
    return [rectangle(box, paint), *lines]


def _arrow(start: tuple[float, float], end: tuple[float, float], words: str = "") -> list[str]:
    """Draw an arrow along one axis, with words beside its middle."""
    (x, y), (to_x, to_y) = start, end
    across = abs(to_x - x) > abs(to_y - y)
    back = 7.0 if (to_x + to_y) > (x + y) else -7.0
    one, other = ((-back, -4), (-back, 4)) if across else ((-4, -back), (4, -back))
    ends = [f"{px(to_x + right)} {px(to_y + down)}" for right, down in (one, (0, 0), other)]
    head = f"M{ends[0]}L{ends[1]}L{ends[2]}"
    line = f'<path d="M{px(x)} {px(y)}L{px(to_x)} {px(to_y)}{head}" fill="none" stroke="{_INK}"/>'
    if not words:
        return [line]
    place = ((x + to_x) / 2, y - 7) if across else (x + 8, (y + to_y) / 2 + 4)
    return [line, text(*place, words, anchor="middle" if across else "start")]


def _stages() -> str:
    """Draw the stages and the file that each writes."""
    names = ("trace", "measure", "plan", "run", "report")
    says = ("which kernels", "what clocks cost", "which clocks", "holds them", "shows it")
    files = ("step.json", "samples.db", "plan.json", "run.jsonl", "report.html")
    width, gap = 116.0, 34.0
    nodes = [
        _Node(4 + at * (width + gap), 8, width, (name, says[at]), BLUE)
        for at, name in enumerate(names)
    ]
    parts = [part for node in nodes for part in _node(node)]
    for left, right in itertools.pairwise(nodes):
        y = left.top + _BOX_PX / 2
        parts += _arrow((left.box.right + 3, y), (right.left - 3, y))
    for node, file in zip(nodes, files, strict=True):
        middle = node.left + width / 2
        parts += _arrow((middle, node.box.bottom + 3), (middle, node.box.bottom + 26))
        parts.append(text(middle, node.box.bottom + 44, file, anchor="middle"))
    return document(parts, _right(nodes) + 4, 124, "The stages, and the file that each writes")


def _who_undoes() -> str:
    """Draw who sets clocks while a job trains, and who gives them back."""
    training = _Node(4, 8, 170, ("your training", "as it is, with marks"), BLUE)
    conductor = _Node(276, 8, 170, ("conductor", "reads marks, sets clocks"), GREEN)
    gpu = _Node(548, 8, 168, ("GPU", "follows the plan"), GREY)
    launcher = _Node(4, 140, 170, ("underclock run", "starts all of them"), ORANGE)
    watcher = _Node(276, 140, 170, ("watcher", "waits for its end"), ORANGE)
    journal = _Node(548, 140, 168, ("journal on disk", "what was found"), GREY)
    nodes = (training, conductor, gpu, launcher, watcher, journal)
    parts = [part for node in nodes for part in _node(node)]
    parts += _arrow((177, 36), (273, 36), "marks")
    parts += _arrow((449, 36), (545, 36), "sets")
    parts += _arrow((89, 137), (89, 67), "starts")
    parts += _arrow((361, 137), (361, 67), "watches")
    parts += _arrow((177, 168), (273, 168), "watches")
    parts += _arrow((545, 168), (449, 168), "reads")
    parts += _arrow((600, 67), (600, 137), "first, as found")
    words = "Whoever of conductor, watcher and underclock run is left puts back what was found."
    parts.append(text(4, 222, words))
    return document(parts, _WIDTH_PX, 236, "Who sets clocks, and who gives them back")


def _right(nodes: Sequence[_Node]) -> float:
    return max(node.box.right for node in nodes)


def write(drawn: Iterable[tuple[str, str]], folder: Path = IMAGES) -> None:
    """Write pictures into a folder."""
    for name, svg in drawn:
        (folder / name).write_text(svg, encoding="utf-8")
        print(f"wrote {folder / name}")


if __name__ == "__main__":
    write(drawings().items())
