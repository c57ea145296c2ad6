"""Policies as rivals: one table, one page."""

import math
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Column
from rich.text import Text

from underclock.records import Strategy
from underclock.records.rivals import Comparison, Rival, RivalChoice
from underclock.report.chart import padded
from underclock.report.figures import arm_series, trade
from underclock.report.page import rendered
from underclock.report.terminal import filled, numbers, words
from underclock.report.wording import (
    ACCOUNTING_WORDS,
    ARM_SENTENCES,
    DASH,
    EVIDENCE_SENTENCES,
    arm_title,
    change_text,
    clocks_text,
    margin_text,
)
from underclock.units import format_mhz, format_percent

_OURS = Strategy.KERNEL_GLOBAL


def rivals_tables(comparison: Comparison) -> tuple[RenderableType, ...]:
    """Return policies side by side, and why some have no numbers."""
    listed = list(_rows(comparison))
    table = filled(
        f"{comparison.workload} on {comparison.gpu.name}: {comparison.evidence}",
        (
            Column("policy", no_wrap=True),
            *numbers("time", "energy"),
            Column("budget", no_wrap=True),
            *words("clocks"),
        ),
        (row for _, row in listed),
        f"time and energy {_reading(comparison)}",
        bold=next((at for at, (name, _) in enumerate(listed) if name == _OURS), None),
    )
    return (table, *(Text(note) for note in _notes(comparison)))


def _unsure(change: float | None, interval: tuple[float, float] | None) -> str:
    """Write a change with half its interval, in a narrow column."""
    return f"{change_text(change)}{margin_text(interval)}".replace(" %", "")


def rivals_page(comparison: Comparison) -> str:
    """Return the same as an HTML page, with a drawing of time and energy."""
    return rendered(
        "rivals.html.jinja",
        comparison=comparison,
        evidence_sentence=EVIDENCE_SENTENCES[comparison.evidence],
        accounting=ACCOUNTING_WORDS[comparison.accounting],
        reading=_reading(comparison),
        rows=[
            (row[0].strip(), "" if row[0].startswith(" ") else sentence, *row[1:])
            for name, row in _rows(comparison)
            for sentence in [ARM_SENTENCES.get(name, "")]
        ],
        notes=list(_notes(comparison)),
        drawing=_drawing(comparison),
    )


def _reading(comparison: Comparison) -> str:
    """Say how to read numbers."""
    budget = format_percent(comparison.max_slowdown).removeprefix("+")
    then = "" if comparison.latency is None else f", then of this GPU ({comparison.latency})"
    return (
        f"in % against auto, with 95 %; budget: at most {budget} more time, with 95 % confidence "
        f"where that is known; changes of clocks taken as free{then}"
    )


def _rows(comparison: Comparison) -> Iterator[tuple[Strategy, tuple[str, ...]]]:
    """Yield what policies come to, in words; what changes clocks has two rows."""
    for rival in comparison.rivals:
        for choice in rival.choices:
            title = arm_title(rival.name) + (" (ours)" if rival.name == _OURS else "")
            arm = choice.arm
            yield (
                rival.name,
                (
                    title if choice is rival.free else "  as achievable",
                    _unsure(arm.time_change, arm.time_interval),
                    _unsure(arm.energy_change, arm.energy_interval),
                    "none" if arm.cost is None else "kept" if choice.keeps_budget else "over",
                    _held(rival, choice),
                ),
            )


def _held(rival: Rival, choice: RivalChoice) -> str:
    """Say what a policy holds, in a few words."""
    if rival.power_limit_w is not None:
        return f"at most {rival.power_limit_w:.0f} W"
    if len(choice.clocks) <= 1:
        return "".join(map(clocks_text, choice.clocks))
    core = _span([clocks.core_mhz for clocks in choice.clocks])
    return f"core {core}, mem {_span([clocks.mem_mhz for clocks in choice.clocks])}"


def _span(clocks_mhz: Sequence[int | None]) -> str:
    """Write from which to which clock; auto is the highest."""
    ends = [least(clocks_mhz, key=lambda mhz: mhz or math.inf) for least in (min, max)]
    return DASH.join(dict.fromkeys(map(format_mhz, ends)))


def _notes(comparison: Comparison) -> Iterator[str]:
    for rival in comparison.rivals:
        if rival.note:
            yield f"{arm_title(rival.name)}: {rival.note}"


def _drawing(comparison: Comparison) -> str:
    """Draw policies as points, hollow where clocks change as fast as this GPU's; empty for none."""
    series = [
        arm_series(
            rival.name,
            cost,
            "" if choice is rival.free else ", achievable",
            large=rival.name == _OURS,
            hollow=choice is not rival.free,
            labelled=False,
        )
        for rival in comparison.rivals
        for choice in rival.choices
        if (cost := choice.arm.cost) is not None
    ]
    if not series:
        return ""
    budget = comparison.max_slowdown
    limits = padded([100.0 * budget, *(x for each in series for x, _ in each.points)])
    title = f"Time and energy of a step ({comparison.evidence})"
    return trade("rivals", title, series, limits=limits, budget=budget)
