"""A plan's step as its page draws it: launch by launch, kernel by kernel, segment by segment."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from underclock.records import Clocks, Plan
from underclock.records.launches import module_calls
from underclock.report.packed import Packed, Packer, TimelineBox, column, differences, digits
from underclock.report.wording import auto_word, duration_text, energy_text
from underclock.units import format_mhz

MOST_ROWS = 10_000  # of a table; the others are one row
_LAYER = re.compile(r"^.*?\d+(?=\.|$)")  # of a module's path: up to its first number


class StepLaunch(NamedTuple):
    """One launch of a step: of which of its kernels, at which clocks, and what it takes."""

    at: int
    clocks: Clocks
    time_s: float
    energy_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelUse:
    """What a kernel does in a step: at auto, and as the plan has it.

    Attributes:
        pass_: Part of the step; empty when unknown.
        runs: In a step; ``None`` when unknown.
        clocks: That it holds; several where launches have clocks of their own.
        auto_s: Of all its runs, as all that follow.
    """

    name: str
    pass_: str
    runs: int | None
    clocks: tuple[Clocks, ...]
    auto_s: float
    auto_j: float
    time_s: float
    energy_j: float

    @property
    def saved_j(self) -> float:
        """Energy of a step that it saves; negative where it costs some."""
        return self.auto_j - self.energy_j


def is_held(plan: Plan) -> bool:
    """Whether the schedule that a plan holds says what its launches take."""
    return bool(plan.schedule and plan.order and plan.schedule.launch_j)


def kernel_uses(plan: Plan) -> list[KernelUse]:
    """Return every kernel as the plan has it."""
    kernels, uses, held = {kernel.name: kernel for kernel in plan.runs}, [], plan.held
    for name, choice in plan.kernels.items():
        time_s, energy_j = choice.launch(1)
        uses.append(
            KernelUse(
                name=name,
                pass_=str(kernels[name].pass_) if name in kernels else "",
                runs=kernels[name].count if name in kernels else None,
                clocks=tuple(held[name]),
                auto_s=choice.auto_time_s,
                auto_j=choice.auto_energy_j,
                time_s=time_s,
                energy_j=energy_j,
            )
        )
    return uses


def _planned(plan: Plan) -> Iterator[StepLaunch]:
    """Return launches as the plan holds them, or as with free switching where it does not."""
    schedule = plan.schedule
    if schedule is not None and is_held(plan):
        columns = (plan.order, schedule.clocks, schedule.launch_s, schedule.launch_j)
        return map(StepLaunch, *columns)
    return freely_planned(plan)


def freely_planned(plan: Plan) -> Iterator[StepLaunch]:
    """Yield launches at the clocks of their kernels, as with free switching."""
    for at in plan.order:
        choice = plan.kernels[plan.runs[at].name]
        yield StepLaunch(at, choice.clocks, *choice.launch(plan.runs[at].count))


def at_auto(plan: Plan) -> Iterator[StepLaunch]:
    """Yield launches as they run at the clocks called auto."""
    for at in plan.order:
        choice = plan.kernels[plan.runs[at].name]
        yield StepLaunch(at, plan.baseline, *choice.auto_launch(plan.runs[at].count))


def plan_data(
    plan: Plan,
    uses: Sequence[KernelUse],
    lines: Sequence[tuple[str, Sequence[tuple[float, float]]]],
) -> str:
    """Return all that the page of a plan draws by itself.

    Args:
        lines: Frontiers and which they are: changes of time and energy.
    """
    packer = Packer()
    auto = plan.arm("auto")
    tables = {"kernels": _kernels(packer, uses, auto_word(plan))}
    if is_held(plan):
        tables["segments"] = _segments(packer, plan)
    return packer.packed(
        tables=tables,
        bands=_bands(packer, plan) if plan.order else [],
        cap_w=plan.gpu.power_limit_w,
        evidence=plan.evidence,
        lines=lines,
        auto=(auto.time_s, auto.energy_j),
    )


def _kernels(packer: Packer, uses: Sequence[KernelUse], auto: str) -> Packed:
    """Return the table of kernels, those that draw most where there are too many for a page.

    Args:
        auto: What they are compared with.
    """
    shown = list(uses)
    if len(uses) > MOST_ROWS:
        ranked = sorted(uses, key=lambda use: -use.auto_j)
        shown = [*ranked[:MOST_ROWS], _together(ranked[MOST_ROWS:])]
    times = [round(1e4 * (use.time_s / use.auto_s - 1.0)) for use in shown]
    energies = [round(1e4 * (use.energy_j / use.auto_j - 1.0)) for use in shown]
    passes = differences([packer.text(use.pass_) for use in shown])
    known = (
        column("Pass", "pass", "text", passes),
        column("Runs", "runs", "count", [use.runs for use in shown]),
    )
    columns = [
        column("Kernel", "kernel", "text", differences([packer.text(use.name) for use in shown])),
        *(known if any(use.runs is not None for use in shown) else ()),
        column("Core MHz", "core_mhz", "mhz", [_range(u.clocks, "core_mhz") for u in shown]),
        column("Memory MHz", "mem_mhz", "mhz", [_range(u.clocks, "mem_mhz") for u in shown]),
        column(f"At {auto}", "auto_j", "joules", [digits(use.auto_j) for use in shown]),
        column("Saved", "saved_j", "joules", [digits(use.saved_j) for use in shown]),
        column("Time", "time_change", "change", times),
        column("Energy", "energy_change", "change", energies),
    ]
    return {"noun": "kernels", "columns": columns, "sort": "saved_j", "falls": True}


def _together(uses: Sequence[KernelUse]) -> KernelUse:
    """Return many kernels as one."""
    return KernelUse(
        name=f"{len(uses)} others, each of which draws less",
        pass_="",
        runs=sum(use.runs or 0 for use in uses) or None,
        clocks=tuple(dict.fromkeys(pair for use in uses for pair in use.clocks)),
        auto_s=math.fsum(use.auto_s for use in uses),
        auto_j=math.fsum(use.auto_j for use in uses),
        time_s=math.fsum(use.time_s for use in uses),
        energy_j=math.fsum(use.energy_j for use in uses),
    )


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
        names = differences([packer.text(plan.runs[at].name) for at in parts])
        time_s = digits(math.fsum(launch.time_s for launch in mine))
        energy_j = digits(math.fsum(launch.energy_j for launch in mine))
        told = (names, [len(taken[at]) for at in parts])
        rows.append(
            (number, segment.launches, segment.core_mhz, segment.mem_mhz, time_s, energy_j, told)
        )
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
    title += ", clocks changing for free: a bound" if plan.bound is plan.chosen else ""
    ways = [
        (title, plan.headline, _planned(plan)),
        (f"At {auto_word(plan)}", plan.arm("auto"), at_auto(plan)),
    ]
    groups, bands = _groups(plan), []
    for name, arm, some in ways[1:] if plan.sets_nothing else ways:
        launches = list(some)
        memory = [f"{format_mhz(launch.clocks.mem_mhz)} MHz" for launch in launches]
        rows = {**groups, "memory": memory} if len(set(memory)) > 1 else groups
        boxes = [_box(plan, launch) for launch in launches]
        takes = f": {duration_text(arm.time_s)}, {energy_text(arm.energy_j)}" if arm.cost else ""
        track = packer.track(boxes, leaf="kernel", groups=rows)
        bands.append({"title": f"{name}{takes}", "tracks": [track]})
    return bands


def _box(plan: Plan, launch: StepLaunch) -> TimelineBox:
    """Return one launch; a clock that the driver sets is shown where it is expected."""
    kernel, clocks = plan.runs[launch.at], launch.clocks
    expected = plan.kernels[kernel.name].auto_core_mhz
    return TimelineBox(
        name=kernel.name,
        lasts_s=launch.time_s,
        core_mhz=expected if clocks.core_mhz is None else clocks.core_mhz,
        set_by=int(clocks.core_mhz is not None),
        mem_mhz=clocks.mem_mhz,
        power_w=None if kernel.overlapped else launch.energy_j / launch.time_s,
    )


def _groups(plan: Plan) -> dict[str, list[str]]:
    """Return what each launch belongs to: its pass, and its module from the outside in."""
    groups = {"pass": [str(plan.runs[at].pass_) for at in plan.order]}
    if any(plan.modules):
        known = {text: _outer_and_inner(text) for text in plan.modules}
        groups["layer"] = [known[text][0] for text in plan.modules]
        groups["module"] = [known[text][1] for text in plan.modules]
    elif any(kernel.section for kernel in plan.runs):
        groups["section"] = [plan.runs[at].section for at in plan.order]
    return groups


def _outer_and_inner(text: str) -> tuple[str, str]:
    """Return the layer that a launch ran for, and the innermost module."""
    calls = module_calls(text) or (text,)
    layer = _LAYER.match(calls[-1])
    return (calls[0] if layer is None else layer.group()), calls[-1]
