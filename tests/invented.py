"""Plans and results to be shown. Their numbers are invented, for tests only."""

import base64
import io
import json
import zlib
from collections.abc import Iterable
from html.parser import HTMLParser
from itertools import accumulate
from typing import Any

import msgspec
from rich.console import Console, RenderableType

from underclock.records import (
    AUTO,
    Aggregate,
    Arm,
    Choice,
    Clocks,
    ClockSchedule,
    Closure,
    Cost,
    Evidence,
    GpuInfo,
    Granularity,
    Kernel,
    LatencyPoint,
    Objective,
    Pass,
    Plan,
    Segment,
    Spread,
    Status,
    Step,
    Strategy,
    Validation,
)
from underclock.records.latencies import LatencyTable
from underclock.records.serving import Basis, ServingBucket, ServingCost, ServingPlan

NASTY = "<script>alert(1)</script>&"
GPU = GpuInfo(name="NVIDIA GeForce RTX 3080 Ti", driver="555.42", power_limit_w=350.0)
MINUS = "\N{MINUS SIGN}"


def cost(time_change: float, energy_change: float) -> Cost:
    return Cost(
        time_s=12.31 * (1.0 + time_change),
        energy_j=4212.0 * (1.0 + energy_change),
        time_change=time_change,
        energy_change=energy_change,
    )


ARMS = (
    Arm(Strategy.AUTO, cost(0.0, 0.0), Status.BASELINE),
    Arm(Strategy.BEST_FIXED, cost(-0.0004, -0.0113), Status.OPTIMAL, 0.0),
    Arm(Strategy.PASS, cost(-0.001, -0.0207), Status.OPTIMAL, 0.0),
    Arm(Strategy.KERNEL_LOCAL, cost(-0.0178, -0.1154), Status.OPTIMAL, 0.0),
    Arm(Strategy.KERNEL_GLOBAL, cost(-0.000001, -0.1564), Status.BOUNDED, 2e-6),
)


def choices(count: int) -> dict[str, Choice]:
    """Return so many kernels; the later, the more they save."""
    return {
        f"kernel{i}": Choice(
            clocks=Clocks(core_mhz=(None, 1680)[i % 2], mem_mhz=(None, 5001)[i // 2 % 2]),
            time_change=0.001,
            energy_change=-i / (2.0 * count),
            auto_time_s=0.25,
            auto_energy_j=80.0,
        )
        for i in range(count)
    }


def step_of(names: Iterable[str]) -> Step:
    return Step(name="gpt3-xl", kernels=tuple(Kernel(name=name) for name in names))


PLAN = Plan(
    evidence=Evidence.SIMULATED,
    gpu=GPU,
    step=step_of(choices(48)),
    objective=Objective.WASTE,
    max_slowdown=0.0,
    granularity=Granularity.KERNEL,
    aggregate=Aggregate.GLOBAL,
    baseline=AUTO,
    bound=Strategy.KERNEL_GLOBAL,
    chosen=Strategy.KERNEL_GLOBAL,
    arms=ARMS,
    kernels=choices(48),
    fixed=Clocks(core_mhz=1680, mem_mhz=9251),
    frontier=(cost(-0.03, -0.05), cost(0.0, -0.157), cost(0.4, -0.27)),
    closure=Closure(time=0.981, energy=1.034),
)
LATENCY_PLAN = msgspec.structs.replace(
    PLAN,
    chosen=Strategy.ACHIEVABLE,
    arms=(*ARMS, Arm(Strategy.ACHIEVABLE, cost(-0.001, -0.0512), Status.OPTIMAL, 0.0)),
    schedule=ClockSchedule(
        segments=(
            Segment(launches=7, clocks=Clocks(core_mhz=1680)),
            Segment(launches=3, clocks=Clocks(mem_mhz=5001)),
        ),
        switches=2,
        latency="20ms, assumed",
        latencies=LatencyTable.constant(0.02),
        launch_s=(0.01,) * 10,
    ),
    latency_curve=(
        LatencyPoint(
            latency_s=0.006,
            time_change=-0.002,
            energy_change=-0.11,
            switches=12,
            gap=0.0,
            hardware="Hopper (as cited by arXiv 2601.08539)",
        ),
        LatencyPoint(latency_s=0.5, time_change=None, energy_change=None, switches=None, gap=None),
    ),
)
VALIDATION = Validation(
    evidence=Evidence.MEASURED,
    gpu=GPU,
    workload="gpt3-xl",
    chosen=Strategy.KERNEL_GLOBAL,
    repeats=3,
    auto_time_s=(12.30, 12.31, 12.32),
    auto_energy_j=(4210.0, 4212.0, 4214.0),
    plan_time_s=(12.36, 12.38, 12.40),
    plan_energy_j=(3590.0, 3600.0, 3610.0),
    time_change=Spread(mean=0.0057, best=0.0032, worst=0.0081),
    energy_change=Spread(mean=-0.1453, best=-0.1481, worst=-0.1425),
    promised_time_change=0.0,
    promised_energy_change=-0.1564,
    pairs_keeping_energy=0,
    pairs_keeping_time=2,
)


def read_again(record: object) -> None:
    """Read what was written of a record."""
    msgspec.json.decode(msgspec.json.encode(record), type=type(record))


def with_plan(**changes: Any) -> Plan:
    if "kernels" in changes:
        changes.setdefault("step", step_of(changes["kernels"]))
    return msgspec.structs.replace(PLAN, **changes)


def with_validation(**changes: object) -> Validation:
    return msgspec.structs.replace(VALIDATION, **changes)


def printed(table: RenderableType, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(table)
    return console.export_text()


def page_data(html: str) -> Any:
    """Return what a page draws by itself."""
    packed = html.split('id="data">')[1].split("<", maxsplit=1)[0]
    return json.loads(zlib.decompress(base64.b64decode(packed)))


def page_table(html: str, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table of a page, by the names that a CSV file would have."""
    data = page_data(html)
    columns = data["tables"][name]["columns"]

    def named(places: list[int]) -> list[str]:
        return [data["texts"][place] for place in accumulate(places)]

    def read(kind: str, values: list[Any]) -> list[Any]:
        if kind == "parts":
            return [list(zip(named(places), runs, strict=True)) for places, runs in values]
        return named(values) if kind == "text" else values

    cells = [read(each["kind"], each["values"]) for each in columns]
    keys = [each["key"] for each in columns]
    return [dict(zip(keys, row, strict=True)) for row in zip(*cells, strict=True)]


class Seen(HTMLParser):
    """What a browser would find on a page: its tags, and its text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.styles = ""
        self._hidden: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._hidden = tag if tag in {"script", "style"} else None

    def handle_endtag(self, tag: str) -> None:
        if tag == self._hidden:
            self._hidden = None

    def handle_data(self, data: str) -> None:
        if self._hidden is None:
            self.words.append(data)
        elif self._hidden == "style":
            self.styles += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def count(self, tag: str) -> int:
        return sum(1 for found, _ in self.tags if found == tag)


def _serving_cost(clocks: Clocks, time_s: float, energy_j: float) -> ServingCost:
    return ServingCost(
        clocks=clocks,
        time_s=time_s,
        time_interval_s=(0.99 * time_s, 1.01 * time_s),
        energy_j=energy_j,
        energy_interval_j=(0.99 * energy_j, 1.01 * energy_j),
        basis=Basis.MODELLED,
    )


def serving_bucket(phase: Pass, batch: int, clocks: Clocks) -> ServingBucket:
    auto = _serving_cost(AUTO, 0.010, 5.0)
    known = ((1800, 0.011, 4.0), (1200, 0.013, 3.0), (900, 0.016, 2.0))
    frontier = (auto, *(_serving_cost(Clocks(core_mhz=core), *cost) for core, *cost in known))
    chosen = next(each for each in frontier if each.clocks == clocks)
    return ServingBucket(
        pass_=phase, batch=batch, context=1024, tokens=batch, auto=auto, chosen=chosen,
        frontier=frontier,
    )  # fmt: skip


SERVING_PLAN = ServingPlan(
    evidence=Evidence.SIMULATED,
    gpu=GPU,
    workload="llama",
    max_slowdown=0.1,
    fixed=None,
    buckets=(
        serving_bucket(Pass.DECODE, 8, Clocks(core_mhz=900)),
        serving_bucket(Pass.DECODE, 32, Clocks(core_mhz=1200)),
        serving_bucket(Pass.PREFILL, 4, Clocks(core_mhz=1800)),
    ),
)
