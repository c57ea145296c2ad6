"""Records at a glance: short in a shell, a table in a notebook, and nothing in them is markup."""

import io
import sys
from html.parser import HTMLParser
from types import SimpleNamespace

import msgspec
import pytest

from invented import GPU, LATENCY_PLAN, PLAN, VALIDATION
from underclock.errors import NotSupportedError
from underclock.records import (
    AUTO,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    Plan,
    SampleSet,
    Step,
    Validation,
    Verdict,
    Window,
)
from underclock.store import read_samples
from windows import with_step

NASTY = "<script>alert('x')</script>\x1b[2J"
SAMPLES = SampleSet(
    evidence=Evidence.MEASURED,
    gpu=GPU,
    step=Step(name="gpt3-xl", kernels=tuple(Kernel(name=f"k{n}") for n in range(500))),
    windows=tuple(
        Window(kernel=f"k{n}", asked=clocks, time_s=1.0, energy_j=1.0)
        for n in range(500)
        for clocks in (AUTO, Clocks(core_mhz=900))
    ),
)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (PLAN, "simulated: Saves at most 15.6 % of energy"),
        (LATENCY_PLAN, "time (0 % allowed), if clocks take 20 ms to change.>"),
        (SAMPLES, "measured: samples 1000, kernels 500, clock pairs 2, whole-step runs 0>"),
        (msgspec.structs.replace(SAMPLES, expected_samples=1200), "samples 1000 of 1200"),
        (VALIDATION, "energy -14.53 % against -15.64 % promised"),
        (msgspec.structs.replace(VALIDATION, verdict=Verdict.NOT_KEPT), "verdict not kept,"),
    ],
)
def test_a_record_shows_itself_in_one_line(
    record: Plan | SampleSet | Validation, words: str
) -> None:
    assert words in repr(record)
    assert len(repr(record)) < 250


class _Seen(HTMLParser):
    """Collects tags and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not attrs
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("record", [PLAN, SAMPLES, VALIDATION])
def test_a_notebook_shows_a_small_table_and_reads_no_name_as_markup(
    record: Plan | SampleSet | Validation,
) -> None:
    of = {"workload": NASTY} if isinstance(record, Validation) else {}
    named = msgspec.structs.replace(record, **of, gpu=GpuInfo(name=NASTY))
    if not isinstance(named, Validation):
        named = with_step(named, name=NASTY)

    seen = _Seen(named._repr_html_())

    assert seen.tags == {"table", "caption", "tbody", "tr", "th", "td"}
    assert seen.text.count("<script>alert('x')</script>") == 2
    assert len(named._repr_html_()) < 1100
    assert "\x1b" not in repr(named)


class _Frame:
    """Stands for a pandas DataFrame: rows of cells, written as CSV with empty cells for none."""

    def __init__(self, rows: list[dict[str, object]]) -> None:
        self.rows = rows

    def to_csv(self, *, index: bool) -> str:
        assert not index
        lines = [",".join(self.rows[0])]
        lines += [",".join("" if v is None else str(v) for v in row.values()) for row in self.rows]
        return "\n".join(lines) + "\n"


def test_samples_go_to_a_frame_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=_Frame))
    frame = SAMPLES.to_pandas()
    back = read_samples(frame)

    assert back.samples == SAMPLES.samples
    assert back.kernels == SAMPLES.kernels
    assert back.evidence is Evidence.REPLAYED  # nobody knows what was done to it
    clocks = PLAN.to_pandas().rows
    assert len(clocks) == len(PLAN.kernels)
    assert clocks[1]["core_mhz"] == 1680
    assert clocks[1]["saved_j"] == pytest.approx(80.0 / 96)


class _Axes:
    """Stands for axes of matplotlib."""

    def __init__(self) -> None:
        self.drawn: dict[str, tuple[float, ...]] = {}
        self.title, self.figure = "", self

    def savefig(self, to: io.StringIO, *, format: str) -> None:  # noqa: A002 - as matplotlib's
        to.write(f"<{format}>{self.title}</{format}>")

    def plot(self, x: tuple[float, ...], y: tuple[float, ...], style: str, *, label: str) -> None:
        assert style in {"-", "o"}
        assert len(x) == len(y)
        self.drawn[label] = y

    def set(self, **said: str) -> None:
        self.title = said["title"]

    def legend(self) -> None:
        assert self.drawn


def test_a_plan_is_drawn_with_its_answer_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[_Axes] = []
    pyplot = SimpleNamespace(subplots=lambda: (None, _Axes()), close=closed.append)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", pyplot)

    axes = LATENCY_PLAN.plot()
    # A notebook shows the drawing below the answer, and does not show it again by itself.
    assert LATENCY_PLAN._repr_html_().endswith(f"</table><svg>{axes.title}</svg>")
    assert len(closed) == 1

    assert axes.title == LATENCY_PLAN.answer[0]
    assert axes.drawn["the plan"] == pytest.approx((-5.12,))
    assert axes.drawn["auto"] == (0.0,)
    assert len(axes.drawn["other time budgets"]) == len(LATENCY_PLAN.frontier)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(NotSupportedError, match="needs matplotlib") as caught:
        LATENCY_PLAN.plot()
    assert caught.value.hint == "pip install matplotlib"
    assert LATENCY_PLAN._repr_html_().endswith("</table>")
