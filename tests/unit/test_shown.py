"""Records at a glance: short in a shell, a table in a notebook, and nothing in them is markup."""

import sys
from html.parser import HTMLParser
from types import SimpleNamespace

import msgspec
import pytest

from invented import LATENCY_PLAN
from underclock.records import (
    AUTO,
    Aggregate,
    Arm,
    Choice,
    Clocks,
    Cost,
    Evidence,
    GpuInfo,
    Granularity,
    Kernel,
    Objective,
    Plan,
    SampleSet,
    Spread,
    Status,
    Strategy,
    Validation,
    Verdict,
    Window,
)
from underclock.store import read_samples

NASTY = "<script>alert('x')</script>\x1b[2J"
GPU = GpuInfo(name="RTX")
CHOICE = Choice(
    core_mhz=900,
    mem_mhz=None,
    time_change=0.01,
    energy_change=-0.2,
    auto_time_s=1.0,
    auto_energy_j=100.0,
)
AS_FOUND = Cost(time_s=1.0, energy_j=100.0, time_change=0.0, energy_change=0.0)
SAVED = Cost(time_s=1.01, energy_j=80.0, time_change=0.01, energy_change=-0.2)
PLAN = Plan(
    evidence=Evidence.SIMULATED,
    gpu=GPU,
    workload="gpt3-xl",
    objective=Objective.WASTE,
    max_slowdown=0.02,
    granularity=Granularity.KERNEL,
    aggregate=Aggregate.GLOBAL,
    baseline=AUTO,
    chosen=Strategy.KERNEL_GLOBAL,
    arms=(
        Arm.of(Strategy.AUTO, AS_FOUND, Status.BASELINE),
        Arm.of(Strategy.KERNEL_GLOBAL, SAVED, Status.OPTIMAL),
    ),
    kernels={f"k{n}": CHOICE for n in range(500)},
    fixed=None,
)
SAMPLES = SampleSet(
    evidence=Evidence.MEASURED,
    gpu=GPU,
    workload="gpt3-xl",
    kernels=tuple(Kernel(name=f"k{n}") for n in range(500)),
    windows=tuple(
        Window(kernel=f"k{n}", asked=clocks, time_s=1.0, energy_j=1.0)
        for n in range(500)
        for clocks in (AUTO, Clocks(core_mhz=900))
    ),
)
VALIDATION = Validation(
    evidence=Evidence.SIMULATED,
    gpu=GPU,
    workload="gpt3-xl",
    chosen=Strategy.KERNEL_GLOBAL,
    repeats=1,
    auto_time_s=(1.0,),
    auto_energy_j=(100.0,),
    plan_time_s=(1.01,),
    plan_energy_j=(81.0,),
    time_change=Spread(mean=0.01, best=0.01, worst=0.01),
    energy_change=Spread(mean=-0.19, best=-0.19, worst=-0.19),
    promised_time_change=0.01,
    promised_energy_change=-0.2,
    pairs_keeping_energy=0,
    pairs_keeping_time=1,
)


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (
            PLAN,
            (
                "<Plan of gpt3-xl on RTX, simulated: kernel_global -20.00 % energy at "
                "+1.00 % time, "
                "budget +2.00 %, kernels 500>"
            ),
        ),
        (
            msgspec.structs.replace(
                PLAN,
                max_slowdown=None,
                bound=Strategy.KERNEL_GLOBAL,
                chosen=Strategy.ACHIEVABLE,
                schedule=LATENCY_PLAN.schedule,
                arms=(*PLAN.arms, Arm.of(Strategy.ACHIEVABLE, SAVED, Status.OPTIMAL)),
            ),
            (
                "<Plan of gpt3-xl on RTX, simulated: achievable -20.00 % energy at +1.00 % time, "
                "bound, kernel_global -20.00 % energy at +1.00 % time, latency 20ms, assumed, "
                "budget none, kernels 500>"
            ),
        ),
        (
            SAMPLES,
            (
                "of gpt3-xl on RTX, measured: samples 1000, kernels 500, clock pairs 2, "
                "whole-step runs 0>"
            ),
        ),
        (msgspec.structs.replace(SAMPLES, expected_samples=1000), "samples 1000, kernels 500"),
        (msgspec.structs.replace(SAMPLES, expected_samples=1200), "samples 1000 of 1200"),
        (
            VALIDATION,
            (
                "<Validation of gpt3-xl on RTX, simulated: verdict unknown, energy -19.00 % "
                "against "
                "-20.00 % promised, time +1.00 % against +1.00 % promised, repeats 1>"
            ),
        ),
        (msgspec.structs.replace(VALIDATION, verdict=Verdict.NOT_KEPT), "verdict not kept,"),
    ],
)
def test_a_record_shows_itself_in_one_line(
    record: Plan | SampleSet | Validation, line: str
) -> None:
    assert line in repr(record)
    assert len(repr(record)) < 200


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
    named = msgspec.structs.replace(record, workload=NASTY, gpu=GpuInfo(name=NASTY))

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
    assert len(clocks) == 500
    assert clocks[0]["core_mhz"] == 900
    assert clocks[0]["saved_j"] == pytest.approx(20.0)


def test_the_frame_of_a_plan_has_what_its_schedule_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=_Frame))
    schedule = LATENCY_PLAN.schedule
    assert schedule is not None
    kernels = {name: LATENCY_PLAN.kernels[f"kernel{n}"] for name, n in (("a", 1), ("b", 2))}
    for energies_j in ((), (2.0,) * 10):
        held = msgspec.structs.replace(schedule, launch_j=energies_j)
        plan = msgspec.structs.replace(
            LATENCY_PLAN,
            kernels=kernels,
            runs=(Kernel(name="a", count=6), Kernel(name="b", count=4)),
            order=(0, 1, 0, 1, 0, 1, 0, 1, 0, 0),
            schedule=held,
        )
        rows = plan.to_pandas().rows

        assert sum(row["count"] for row in rows) == 10
        pairs = {(row["kernel"], row["core_mhz"], row["mem_mhz"]) for row in rows}
        names = [plan.runs[at].name for at in plan.order]
        assert pairs == {
            (name, each.core_mhz, each.mem_mhz)
            for name, each in zip(names, held.clocks, strict=True)
        }
        assert sum(row["count"] * row["time_s"] for row in rows) == pytest.approx(
            sum(held.launch_s)
        )
        assert {row["energy_j"] for row in rows} == ({2.0} if energies_j else {None})
