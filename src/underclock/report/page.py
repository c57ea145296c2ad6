"""One self-contained page of a plan: it opens offline, and equal input gives equal bytes."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

from underclock.records import Cost, Plan, Strategy, Validation
from underclock.records.answers import answer_of, gives_nothing, no_change
from underclock.report import answer, wording
from underclock.report.answer import expected_energy_change
from underclock.report.chart import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    SKY,
    VERMILION,
    Chart,
    Series,
    figure,
)
from underclock.report.step_data import MOST_ROWS, is_held, kernel_uses, plan_data
from underclock.report.wording import arm_title, change_text, duration_text, minus
from underclock.units import format_mhz


def rendered(template: str, **values: object) -> str:
    """Render a file of ``templates``, escaped; a name it uses and is not given is an error."""
    import jinja2  # noqa: PLC0415 - a command that prints tables need not load it

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("underclock.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(_FILTERS)
    environment.globals["squeezed"] = _squeezed
    return environment.get_template(template).render(**values)


def _squeezed(name: str) -> str:
    """Return a script or a style sheet without indentation and lines of comment."""
    text = (resources.files(__package__) / "templates" / name).read_text("utf-8")
    lines = map(str.strip, text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))


# Numbers, their units and their margins stand on one line.
_JOINT = re.compile(r"(?<=±) | (?=%)| (?=(?:kWh|EUR|ms)\b)")


def page(plan: Plan, validation: Validation | None) -> str:
    """Return the HTML page of a plan, and of its validation where it was run again."""
    uses, first = kernel_uses(plan), plan.headline
    lines = lines_of(plan)
    return rendered(
        "page.html.jinja",
        plan=plan,
        said=[_JOINT.sub("\N{NO-BREAK SPACE}", line) for line in answer_of(plan, validation)],
        validation=validation,
        auto=plan.auto,
        auto_word=wording.auto_word(plan),
        first=first,
        nothing=gives_nothing(plan),
        all_zero=all(no_change(arm) for arm in plan.arms),
        kernels=len(uses),
        most_rows=MOST_ROWS,
        held=is_held(plan),
        is_bound=plan.bound is plan.chosen,
        auto_known=any(choice.auto_core_mhz for choice in plan.kernels.values()),
        saved_sentence=answer.saved_text(plan, math.fsum(use.saved_j for use in uses)),
        warnings=[*dict.fromkeys((*plan.warnings, *(validation.warnings if validation else ())))],
        words=wording,
        answer=answer,
        data=plan_data(plan, uses, [(line.takes, line.points) for line in lines]),
        lines=lines,
        own_line=next((at for at, line in enumerate(lines) if line.is_own), 0),
        slowest=slowest_shown(plan),
        budget=round(first.time_change or plan.max_slowdown or 0.01, 4),
        frontier_figure=frontier(plan, lines),
    )


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _coded(words: str) -> object:
    from markupsafe import Markup, escape  # noqa: PLC0415 - jinja2 loads it

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(words))))  # noqa: S704 - escaped


_FILTERS: dict[str, Callable[..., object]] = {
    "arm": wording.arm_title,
    "brief": "{:.6g}".format,
    "change": lambda fraction: minus(wording.change_text(fraction)),
    "coded": _coded,
    "duration": wording.duration_text,
    "energy": wording.energy_text,
    "interval": lambda ends: minus(wording.interval_text(ends)),
    # A missing fact is a word, never nothing.
    "known": lambda value: wording.UNKNOWN if value is None or value == "" else value,
    "mhz": format_mhz,
    "minus": minus,
    "sentence": _sentence,
    "status": wording.status_text,
    "verdict": lambda validation: _sentence(minus(wording.verdict_text(validation))),
}


_SHOWN = 0.05  # of auto's time: how far right the frontier is drawn at least
_BEYOND = 1.5  # times the greatest time change that must be seen
_LEFT, _RIGHT = 0.02, 0.03  # of what is shown, beyond both ends
_ARM_MARKERS: dict[str, tuple[str, str]] = {
    Strategy.AUTO: (GREY, "circle"),
    Strategy.BEST_FIXED: (ORANGE, "square"),
    Strategy.PASS: (SKY, "diamond"),
    Strategy.KERNEL_LOCAL: (PINK, "triangle"),
    Strategy.KERNEL_GLOBAL: (VERMILION, "star"),
    Strategy.ACHIEVABLE: (GREEN, "circle"),
    Strategy.RANK: (ORANGE, "square"),
    Strategy.DIRECTION: (SKY, "diamond"),
    Strategy.INSTRUCTION: (PINK, "triangle"),
    Strategy.KERNEL: (VERMILION, "star"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierLine:
    """A frontier that a plan has."""

    name: str
    takes: str  # how long clocks take to change on it, in words
    latency_s: float
    points: tuple[tuple[float, float], ...]  # changes of time and energy, as far as they are shown
    colour: str
    is_drawn: bool = True  # whether the page draws it at once, or as a reader asks for it
    is_own: bool = False  # whether it is the one that counts


def lines_of(plan: Plan) -> list[FrontierLine]:
    """Return the frontiers that a plan has, at the least latency first."""
    limit, held = slowest_shown(plan), bool(plan.achievable_frontier)
    own_s = plan.schedule and plan.schedule.latencies.constant_s
    at_once = held or plan.bound is plan.chosen
    lines = [
        FrontierLine(
            name="if clocks changed at once: a bound" if at_once else "at other time budgets",
            takes="no time: a bound",
            latency_s=0.0,
            points=points_of(plan.frontier, limit),
            colour=BLUE,
            is_own=not held,
        ),
        FrontierLine(
            name=f"if clocks take {duration_text(own_s)}" if own_s else "as clocks change",
            takes=f"{duration_text(own_s) if own_s else 'as long as measured'}, as planned",
            latency_s=own_s or math.inf,
            points=points_of(plan.achievable_frontier, limit),
            colour=GREEN,
            is_own=True,
        ),
    ]
    lines += [
        FrontierLine(
            name="",
            takes=duration_text(each.latency_s)
            + (f", as of {each.hardware.partition(' (')[0]}" if each.hardware else ""),
            latency_s=each.latency_s,
            points=points_of(each.frontier, limit),
            colour=GREY,
            is_drawn=False,
        )
        for each in plan.latency_curve
        if each.frontier != plan.achievable_frontier
    ]
    return sorted((line for line in lines if len(line.points) > 1), key=lambda line: line.latency_s)


def frontier(plan: Plan, lines: Sequence[FrontierLine]) -> str:
    """Draw frontiers as lines, the arms as points, and shade what is over the time budget."""
    series = [
        Series(
            name=line.name,
            points=tuple((100.0 * time, 100.0 * energy) for time, energy in line.points),
            colour=line.colour,
            dashed=not line.is_own,
        )
        for line in sorted(lines, key=lambda line: not line.is_own)
        if line.is_drawn
    ]
    places = [x for each in series for x, _ in each.points]
    for arm in plan.arms:
        if arm.cost is None:
            continue
        places.append(100.0 * arm.cost.time_change)
        stays = arm.name is Strategy.AUTO and _is_auto(plan.promise)
        counts = stays or arm.name is plan.chosen
        if arm.name is Strategy.AUTO or (
            arm.name in {Strategy.BEST_FIXED, plan.chosen} and not _is_auto(arm.cost)
        ):
            title = "the plan" if counts else arm_title(arm.name, plan)
            series.append(arm_series(arm.name, arm.cost, title, large=counts))
    low, high = min(places), 100.0 * slowest_shown(plan)
    return trade(
        f"Time and energy of a step ({plan.stands_on})",
        series,
        limits=(low - _LEFT * (high - low), high + _RIGHT * (high - low)),
        budget=plan.max_slowdown,
    )


def trade(
    title: str,
    series: Sequence[Series],
    *,
    limits: tuple[float, float] | None = None,
    budget: float | None = None,
) -> str:
    """Draw energy against time; what is over a budget is shaded."""
    shade = None
    if budget is not None:
        over = minus(f"over the time budget, {change_text(budget)}")
        shade = 100.0 * budget, over
    return figure(
        Chart(
            key="frontier",
            title=title,
            x_title="time, change (%)",
            y_title="energy, change (%)",
            series=tuple(series),
            x_limits=limits,
            shade=shade,
        )
    )


def arm_series(arm: str, cost: Cost, title: str = "", *, large: bool = False) -> Series:
    """Return a way of choosing clocks as a point; its title is that of the arm unless given."""
    colour, symbol = _ARM_MARKERS.get(arm, (SKY, "diamond"))
    note = f"time {change_text(cost.time_change)}, energy {change_text(cost.energy_change)}"
    return Series(
        name=title or arm_title(arm),
        points=((100.0 * cost.time_change, 100.0 * cost.energy_change),),
        colour=colour,
        symbol=symbol,
        large=large,
        labelled=True,
        notes=(minus(note),),
    )


def _is_auto(cost: Cost) -> bool:
    return change_text(cost.time_change) == change_text(cost.energy_change) == change_text(0.0)


def points_of(line: Sequence[Cost], slowest: float) -> tuple[tuple[float, float], ...]:
    """Return changes of time and energy on a frontier, as far as it is shown."""
    found = [(c.time_change, c.energy_change) for c in line if c.time_change <= slowest]
    end = expected_energy_change(line, slowest)
    if len(found) < len(line) and end is not None:
        found.append((slowest, end))
    return tuple((round(time, 7), round(energy, 7)) for time, energy in found)


def slowest_shown(plan: Plan) -> float:
    """Return the greatest time change to draw: all arms, the budget, and some of the frontier."""
    marks = [arm.cost.time_change for arm in plan.arms if arm.cost is not None]
    if plan.max_slowdown is not None:
        marks.append(plan.max_slowdown)
    return max(_SHOWN, _BEYOND * max(marks))
