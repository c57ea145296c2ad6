"""A plan's step as packed timelines and tables: columns that the page's script unpacks and draws.

Texts are listed once, equal boxes share a state, numbers keep four digits; all of it is deflated
and written in base64. The page's script computes nothing.
"""

import base64
import itertools
import json
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from underclock.records import Clocks, Plan
from underclock.records.work import module_calls
from underclock.report.wording import auto_word, duration_text, energy_text
from underclock.units import format_mhz

Packed = dict[str, Any]


class TimelineBox(NamedTuple):
    """Something that runs for a while at one clock."""

    name: str
    lasts_s: float
    core_mhz: float | None  # ``None`` where it is not known, or clocks do not matter
    set_by: int  # who sets the clock: 1 Underclock, 0 the driver, -1 where clocks do not matter
    mem_mhz: int | None = None
    power_w: float | None = None
    gap_s: float = 0.0  # how long nothing runs before it


class Packer:
    """Gathers a page's data; whatever is said twice is written once."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}

    def text(self, words: str) -> int:
        """Return the place of a text in the list of all."""
        return self._texts.setdefault(words, len(self._texts))

    def track(
        self,
        boxes: Sequence[TimelineBox],
        *,
        label: str = "",
        leaf: str = "",
        groups: Mapping[str, Sequence[str]] | None = None,
    ) -> Packed:
        """Return boxes in a row, called ``label`` where not for its clocks.

        A row of their names is called ``leaf``; empty for none. ``groups`` are the rows above it:
        what each box belongs to, by the name of the row.
        """
        states: dict[tuple[object, ...], int] = {}
        order = []
        for box in boxes:
            state = (
                self.text(box.name),
                digits(box.lasts_s),
                box.core_mhz,
                box.set_by,
                box.mem_mhz,
                None if box.power_w is None else digits(box.power_w, 3),
            )
            order.append(states.setdefault(state, len(states)))
        columns = list(zip(*states, strict=True))
        gaps_s = [digits(box.gap_s) for box in boxes]
        return {
            "label": label,
            "leaf": leaf,
            "states": [differences(columns[0]), *columns[1:]] if columns else [()] * 6,
            "order": differences(order),
            "gaps": gaps_s if any(gaps_s) else [],
            "groups": [
                (name, *zip(*self._runs(words), strict=True))
                for name, words in (groups or {}).items()
            ],
        }

    def _runs(self, words: Iterable[str]) -> list[tuple[int, int]]:
        """Return each text of a row, and how often it follows itself."""
        return [(self.text(word), len(list(run))) for word, run in itertools.groupby(words)]

    def packed(self, **parts: object) -> str:
        """Return all of it as text that may stand in a page as it is."""
        everything = {**parts, "texts": list(self._texts)}
        written = json.dumps(everything, separators=(",", ":"), ensure_ascii=False)
        return base64.b64encode(zlib.compress(written.encode(), 9)).decode()


def column(label: str, key: str, kind: str, values: Sequence[object]) -> Packed:
    """Return a column of a table: its heading, its name in a CSV file, its kind, a value a row.

    Kinds: ``text`` (places of texts, as differences), ``parts`` (such places and how often each),
    ``count``, ``mhz`` (None is auto, two are a range), ``joules``, ``seconds``, ``change`` (10⁻⁴).
    """
    return {"label": label, "key": key, "kind": kind, "values": list(values)}


def digits(value: float, most: int = 4) -> float:
    """Round to so many digits."""
    return float(f"{value:.{most}g}")


def differences(places: Sequence[int]) -> list[int]:
    """Return each place less the one before: neighbours name neighbours, mostly."""
    return [place - before for before, place in itertools.pairwise((0, *places))]


MOST_ROWS = 10_000  # of a table; the rest is one row
_LAYER = re.compile(r"^.*?\d+(?=\.|$)")  # of a module's path: up to its first number


class StepLaunch(NamedTuple):
    """One launch of a step: of which of its kernels, at which clocks, and what it takes."""

    at: int
    clocks: Clocks
    time_s: float
    energy_j: float


class KernelUse(NamedTuple):
    """What a kernel does in a step: at auto, and as the plan has it."""

    name: str
    pass_: str  # part of the step
    runs: int  # in a step
    clocks: tuple[Clocks, ...]  # that it holds; several where launches have clocks of their own
    auto_s: float  # of all its runs, as all that follow
    auto_j: float
    time_s: float
    energy_j: float

    @property
    def saved_j(self) -> float:
        """Energy of a step that it saves; negative where it costs some."""
        return self.auto_j - self.energy_j


def is_held(plan: Plan) -> bool:
    """Whether the schedule that a plan holds says what its launches take."""
    return bool(plan.schedule and plan.step.order and plan.schedule.launch_j)


def kernel_uses(plan: Plan) -> list[KernelUse]:
    """Return every kernel as the plan has it."""
    kernels, held = {kernel.name: kernel for kernel in plan.step.kernels}, plan.held
    return [
        KernelUse(
            name,
            str(kernels[name].pass_),
            kernels[name].count,
            tuple(held[name]),
            *choice.auto_launch(1),
            *choice.launch(1),
        )
        for name, choice in plan.kernels.items()
    ]


def _planned(plan: Plan) -> Iterator[StepLaunch]:
    schedule = plan.schedule
    if schedule is not None and is_held(plan):
        columns = (plan.step.order, schedule.clocks, schedule.launch_s, schedule.launch_j)
        return map(StepLaunch, *columns)
    return freely_planned(plan)


def freely_planned(plan: Plan) -> Iterator[StepLaunch]:
    """Yield launches at the clocks of their kernels, as with free switching."""
    for at in plan.step.order:
        choice = plan.kernels[plan.step.kernels[at].name]
        yield StepLaunch(at, choice.clocks, *choice.launch(plan.step.kernels[at].count))


def at_auto(plan: Plan) -> Iterator[StepLaunch]:
    """Yield launches as they run at the clocks called auto."""
    for at in plan.step.order:
        choice = plan.kernels[plan.step.kernels[at].name]
        yield StepLaunch(at, plan.baseline, *choice.auto_launch(plan.step.kernels[at].count))


def plan_data(
    plan: Plan,
    uses: Sequence[KernelUse],
    lines: Sequence[tuple[str, Sequence[tuple[float, float]]]],
) -> str:
    """Return all that a plan's page draws; ``lines`` are frontiers: names, and both changes."""
    packer = Packer()
    tables = {"kernels": _kernels(packer, uses, auto_word(plan))}
    if is_held(plan):
        tables["segments"] = _segments(packer, plan)
    return packer.packed(
        tables=tables,
        bands=_bands(packer, plan) if plan.step.order else [],
        cap_w=plan.gpu.power_limit_w,
        evidence=plan.evidence,
        lines=lines,
        auto=(plan.auto.time_s, plan.auto.energy_j),
    )


def _kernels(packer: Packer, uses: Sequence[KernelUse], auto: str) -> Packed:
    """Return the table of kernels, those that draw most where there are too many for a page."""
    shown = list(uses)
    if len(uses) > MOST_ROWS:
        ranked = sorted(uses, key=lambda use: -use.auto_j)
        rest = ranked[MOST_ROWS:]
        together = KernelUse(
            name=f"{len(rest)} others, each of which draws less",
            pass_="",
            runs=sum(use.runs for use in rest),
            clocks=tuple(dict.fromkeys(pair for use in rest for pair in use.clocks)),
            auto_s=math.fsum(use.auto_s for use in rest),
            auto_j=math.fsum(use.auto_j for use in rest),
            time_s=math.fsum(use.time_s for use in rest),
            energy_j=math.fsum(use.energy_j for use in rest),
        )
        shown = [*ranked[:MOST_ROWS], together]
    times = [round(1e4 * (use.time_s / use.auto_s - 1.0)) for use in shown]
    energies = [round(1e4 * (use.energy_j / use.auto_j - 1.0)) for use in shown]
    passes = differences([packer.text(use.pass_) for use in shown])
    columns = [
        column("Kernel", "kernel", "text", differences([packer.text(use.name) for use in shown])),
        column("Pass", "pass", "text", passes),
        column("Runs", "runs", "count", [use.runs for use in shown]),
        column("Core MHz", "core_mhz", "mhz", [_range(u.clocks, "core_mhz") for u in shown]),
        column("Memory MHz", "mem_mhz", "mhz", [_range(u.clocks, "mem_mhz") for u in shown]),
        column(f"At {auto}", "auto_j", "joules", [digits(use.auto_j) for use in shown]),
        column("Saved", "saved_j", "joules", [digits(use.saved_j) for use in shown]),
        column("Time", "time_change", "change", times),
        column("Energy", "energy_change", "change", energies),
    ]
    return {"noun": "kernels", "columns": columns, "sort": "saved_j", "falls": True}


def _range(clocks: Iterable[Clocks], name: str) -> int | tuple[int, int] | None:
    """Return a clock, or the least and the greatest of several; ``None`` where one is auto."""
    known: list[int | None] = [getattr(pair, name) for pair in clocks]
    held = [mhz for mhz in known if mhz is not None]
    if len(held) < len(known):
        return None
    return held[0] if min(held) == max(held) else (min(held), max(held))


def _segments(packer: Packer, plan: Plan) -> Packed:
    """Return the table of a schedule's stretches, with their kernels by name, longest first."""
    launches, rows = list(_planned(plan)), []
    begins = 0
    for number, segment in enumerate(plan.schedule.segments if plan.schedule else (), 1):
        mine = launches[begins : begins + segment.launches]
        begins += segment.launches
        taken: dict[int, list[float]] = defaultdict(list)
        for launch in mine:
            taken[launch.at].append(launch.time_s)
        parts = sorted(taken, key=lambda at: -math.fsum(taken[at]))
        names = differences([packer.text(plan.step.kernels[at].name) for at in parts])
        time_s = digits(math.fsum(launch.time_s for launch in mine))
        energy_j = digits(math.fsum(launch.energy_j for launch in mine))
        listed, clocks = (names, [len(taken[at]) for at in parts]), segment.clocks
        costs = clocks.core_mhz, clocks.mem_mhz, time_s, energy_j
        rows.append((number, segment.launches, *costs, listed))
    heads = (
        ("Segment", "segment", "count"),
        ("Launches", "launches", "count"),
        ("Core MHz", "core_mhz", "mhz"),
        ("Memory MHz", "mem_mhz", "mhz"),
        ("Time", "time_s", "seconds"),
        ("Energy", "energy_j", "joules"),
        ("Kernels", "kernels", "parts"),
    )
    values = zip(*rows, strict=True)
    columns = [column(*head, each) for head, each in zip(heads, values, strict=True)]
    return {"noun": "segments", "columns": columns, "sort": "segment", "falls": False}


def _bands(packer: Packer, plan: Plan) -> list[Packed]:
    """Return the step's launches in order: under the plan, and at auto."""
    title = "Under the plan"
    title += ", clocks changing at once: a bound" if plan.bound is plan.chosen else ""
    ways = [
        (title, plan.headline, _planned(plan)),
        (f"At {auto_word(plan)}", plan.arm("auto"), at_auto(plan)),
    ]
    groups = {"pass": [str(plan.step.kernels[at].pass_) for at in plan.step.order]}
    if any(plan.step.modules):
        known = {text: _outer_and_inner(text) for text in plan.step.modules}
        groups["layer"] = [known[text][0] for text in plan.step.modules]
        groups["module"] = [known[text][1] for text in plan.step.modules]
    elif any(kernel.section for kernel in plan.step.kernels):
        sections = [plan.step.kernels[at].section for at in plan.step.order]
        # Layers are Lf and Lb in arXiv 2601.08539.
        groups["section"] = ["layers" if each in {"Lf", "Lb"} else each for each in sections]
    bands = []
    for name, arm, some in ways[1:] if plan.sets_nothing else ways:
        launches = list(some)
        memory = [f"{format_mhz(launch.clocks.mem_mhz)} MHz" for launch in launches]
        rows = {**groups, "memory": memory} if len(set(memory)) > 1 else groups
        boxes = [_box(plan, launch) for launch in launches]
        cost = arm.cost
        takes = f": {duration_text(cost.time_s)}, {energy_text(cost.energy_j)}" if cost else ""
        track = packer.track(boxes, leaf="kernel", groups=rows)
        bands.append({"title": f"{name}{takes}", "tracks": [track]})
    return bands


def _box(plan: Plan, launch: StepLaunch) -> TimelineBox:
    kernel, clocks = plan.step.kernels[launch.at], launch.clocks
    expected = plan.kernels[kernel.name].auto_core_mhz
    return TimelineBox(
        name=kernel.name,
        lasts_s=launch.time_s,
        core_mhz=expected if clocks.core_mhz is None else clocks.core_mhz,
        set_by=int(clocks.core_mhz is not None),
        mem_mhz=clocks.mem_mhz,
        power_w=None if kernel.overlapped else launch.energy_j / launch.time_s,
    )


def _outer_and_inner(text: str) -> tuple[str, str]:
    """Return the layer that a launch ran for, and the innermost module."""
    calls = module_calls(text) or (text,)
    layer = _LAYER.match(calls[-1])
    return (calls[0] if layer is None else layer.group()), calls[-1]
