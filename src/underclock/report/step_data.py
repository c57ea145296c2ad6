"""A plan's step as its page draws it: launch by launch, kernel by kernel, segment by segment."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from underclock.records import Clocks, Plan
from underclock.records.launches import module_calls
from underclock.report.packed import Packed, Packer, TimelineBox, column, differences, digits
from underclock.report.wording import duration_text, energy_text

MOST_ROWS = 10_000  # of a table; the others are one row
_LAYER = re.compile(r"^.*?\d+(?=\.|$)")  # of a module's path: up to its first number


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
    """Return every kernel as the plan holds it, or as with free switching where it does not."""
    runs = {kernel.name: kernel for kernel in plan.runs}
    time_s = {
        name: each.auto_time_s * (1 + each.time_change) for name, each in plan.kernels.items()
    }
    energy_j = {name: each.auto_energy_j - each.saved_j for name, each in plan.kernels.items()}
    clocks = {name: {each.clocks: None} for name, each in plan.kernels.items()}
    if plan.schedule is not None and is_held(plan):
        time_s, energy_j = dict.fromkeys(time_s, 0.0), dict.fromkeys(energy_j, 0.0)
        clocks = {name: {} for name in clocks}
        held = zip(
            plan.order,
            plan.schedule.clocks,
            plan.schedule.launch_s,
            plan.schedule.launch_j,
            strict=True,
        )
        for at, pair, lasts_s, takes_j in held:
            name = plan.runs[at].name
            time_s[name] += lasts_s
            energy_j[name] += takes_j
            clocks[name][pair] = None
    return [
        KernelUse(
            name=name,
            pass_=str(runs[name].pass_) if name in runs else "",
            runs=runs[name].count if name in runs else None,
            clocks=tuple(clocks[name]),
            auto_s=each.auto_time_s,
            auto_j=each.auto_energy_j,
            time_s=time_s[name],
            energy_j=energy_j[name],
        )
        for name, each in plan.kernels.items()
    ]


def plan_data(
    plan: Plan,
    uses: Sequence[KernelUse],
    lines: Sequence[tuple[str, Sequence[tuple[float, float]]]],
) -> str:
    """Return all that the page of a plan draws by itself.

    Args:
        lines: Frontiers and which they are, the plan's own first: changes of time and energy.
    """
    packer = Packer()
    auto = plan.arm("auto")
    tables = {"kernels": _kernels(packer, uses)}
    if plan.schedule is not None and plan.order:
        tables["segments"] = _segments(packer, plan)
    return packer.packed(
        tables=tables,
        bands=_bands(packer, plan) if plan.order else [],
        cap_w=plan.limit_w,
        evidence=plan.evidence,
        lines=lines,
        budget=plan.headline.time_change if plan.headline.cost else plan.max_slowdown,
        auto=(auto.time_s, auto.energy_j),
    )


def _kernels(packer: Packer, uses: Sequence[KernelUse]) -> Packed:
    """Return the table of kernels, those that draw most where there are too many for a page."""
    shown, others = list(uses), []
    if len(uses) > MOST_ROWS:
        ranked = sorted(uses, key=lambda use: -use.auto_j)
        shown, others = ranked[:MOST_ROWS], ranked[MOST_ROWS:]
        shown.append(
            KernelUse(
                name=f"{len(others)} others, each of which draws less",
                pass_="",
                runs=sum(use.runs or 0 for use in others) or None,
                clocks=tuple(dict.fromkeys(pair for use in others for pair in use.clocks)),
                auto_s=math.fsum(use.auto_s for use in others),
                auto_j=math.fsum(use.auto_j for use in others),
                time_s=math.fsum(use.time_s for use in others),
                energy_j=math.fsum(use.energy_j for use in others),
            )
        )
    cores = [_range([pair.core_mhz for pair in use.clocks]) for use in shown]
    memories = [_range([pair.mem_mhz for pair in use.clocks]) for use in shown]
    changes = [
        (round(1e4 * (use.time_s / use.auto_s - 1)), round(1e4 * (use.energy_j / use.auto_j - 1)))
        for use in shown
    ]
    columns = [
        column("Kernel", "kernel", "text", differences([packer.text(use.name) for use in shown])),
        column("Pass", "pass", "text", differences([packer.text(use.pass_) for use in shown])),
        column("Runs", "runs", "count", [use.runs for use in shown]),
        column("Core MHz", "core_mhz", "mhz", cores),
        column("Memory MHz", "mem_mhz", "mhz", memories),
        column("At auto", "auto_j", "joules", [digits(use.auto_j) for use in shown]),
        column("Saved", "saved_j", "joules", [digits(use.saved_j) for use in shown]),
        column("Time", "time_change", "change", [time for time, _ in changes]),
        column("Energy", "energy_change", "change", [energy for _, energy in changes]),
    ]
    kept = [
        each
        for each in columns
        if each["key"] not in {"pass", "runs"} or any(use.runs is not None for use in shown)
    ]
    return {
        "noun": "kernels",
        "columns": kept,
        "sort": "saved_j",
        "falls": True,
        "count": len(uses),
    }


def _range(clocks_mhz: Sequence[int | None]) -> int | tuple[int, int] | None:
    """Return a clock, or the least and the greatest of several; ``None`` where one is auto."""
    known = [mhz for mhz in clocks_mhz if mhz is not None]
    if len(known) < len(clocks_mhz):
        return None
    return known[0] if min(known) == max(known) else (min(known), max(known))


def _segments(packer: Packer, plan: Plan) -> Packed:
    """Return the table of a schedule's stretches, with their kernels by name."""
    schedule, rows, begins = plan.schedule, [], 0
    if schedule is None:
        raise AssertionError("asked by the caller")
    for number, segment in enumerate(schedule.segments, 1):
        launches = range(begins, begins + segment.launches)
        begins += segment.launches
        runs = Counter(plan.order[launch] for launch in launches)
        taken_s = dict.fromkeys(runs, 0.0)
        for launch in launches:
            taken_s[plan.order[launch]] += schedule.launch_s[launch]
        parts = sorted(runs, key=lambda at: -taken_s[at])
        rows.append(
            (
                number,
                segment.launches,
                segment.core_mhz,
                segment.mem_mhz,
                digits(math.fsum(taken_s.values())),
                digits(math.fsum(schedule.launch_j[launch] for launch in launches))
                if schedule.launch_j
                else None,
                (
                    differences([packer.text(plan.runs[at].name) for at in parts]),
                    [runs[at] for at in parts],
                ),
            )
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
    columns = [
        column(*head, values)
        for head, values in zip(heads, zip(*rows, strict=True), strict=True)
        if values[0] is not None or head[2] == "mhz"
    ]
    return {
        "noun": "segments",
        "columns": columns,
        "sort": "segment",
        "falls": False,
        "count": len(rows),
    }


def _bands(packer: Packer, plan: Plan) -> list[Packed]:
    """Return the step's launches in order: under the plan, and at auto."""
    bands = []
    groups = _groups(plan)
    free = "" if is_held(plan) else ", clocks changing for free: a bound"
    ways = [("At auto", plan.arm("auto"), _at_auto(plan))]
    if not plan.sets_nothing:
        arm = plan.headline if is_held(plan) else plan.arm(plan.chosen)
        ways.insert(0, (f"Under the plan{free}", arm, _planned(plan)))
    for way, arm, boxes in ways:
        title = way
        if arm.cost is not None:
            title = f"{way}: {duration_text(arm.time_s)}, {energy_text(arm.energy_j)}"
        bands.append(
            {"title": title, "tracks": [packer.track(list(boxes), leaf="kernel", groups=groups)]}
        )
    return bands


def _planned(plan: Plan) -> Iterator[TimelineBox]:
    """Yield launches as the plan has them."""
    if plan.schedule is not None and is_held(plan):
        schedule = plan.schedule
        for at, clocks, lasts_s, takes_j in zip(
            plan.order, schedule.clocks, schedule.launch_s, schedule.launch_j, strict=True
        ):
            yield _box(plan, at, clocks, lasts_s, takes_j)
        return
    for at in plan.order:
        kernel, choice = plan.runs[at], plan.kernels[plan.runs[at].name]
        lasts_s = choice.auto_time_s * (1 + choice.time_change) / kernel.count
        takes_j = (choice.auto_energy_j - choice.saved_j) / kernel.count
        yield _box(plan, at, choice.clocks, lasts_s, takes_j)


def _at_auto(plan: Plan) -> Iterator[TimelineBox]:
    """Yield launches as they run at the clocks called auto."""
    for at in plan.order:
        kernel, choice = plan.runs[at], plan.kernels[plan.runs[at].name]
        lasts_s, takes_j = choice.auto_time_s / kernel.count, choice.auto_energy_j / kernel.count
        yield _box(plan, at, plan.baseline, lasts_s, takes_j)


def _box(plan: Plan, at: int, clocks: Clocks, lasts_s: float, takes_j: float) -> TimelineBox:
    """Return one launch; what the driver sets is shown where it is expected."""
    kernel = plan.runs[at]
    expected = plan.kernels[kernel.name].auto_core_mhz
    return TimelineBox(
        name=kernel.name,
        lasts_s=lasts_s,
        core_mhz=expected if clocks.core_mhz is None else clocks.core_mhz,
        set_by=int(clocks.core_mhz is not None),
        mem_mhz=clocks.mem_mhz,
        power_w=None if kernel.overlapped else takes_j / lasts_s,
    )


def _groups(plan: Plan) -> dict[str, list[str]]:
    """Return what each launch belongs to: its pass, and its module from the outside in."""
    groups = {"pass": [str(plan.runs[at].pass_) for at in plan.order]}
    if any(plan.modules):
        paths = [_outer_and_inner(text) for text in plan.modules]
        groups["layer"] = [outer for outer, _ in paths]
        groups["module"] = [inner for _, inner in paths]
    elif any(kernel.section for kernel in plan.runs):
        groups["section"] = [plan.runs[at].section for at in plan.order]
    return {name: words for name, words in groups.items() if any(words)}


def _outer_and_inner(text: str) -> tuple[str, str]:
    """Return the layer that a launch ran for, and the innermost module."""
    calls = module_calls(text) or (text,)
    layer = _LAYER.match(calls[-1])
    return (calls[0] if layer is None else layer.group()), calls[-1]
