"""One self-contained page of a plan: it opens offline, and equal input gives equal bytes."""

import re
from typing import Any

from underclock.records import Plan, Validation
from underclock.report import answer, expected, figures, ranking, wording
from underclock.report.axes import MINUS
from underclock.report.latency_tables import has_latencies, no_way_text
from underclock.report.templating import rendered
from underclock.units import format_mhz

_MOST_SEGMENTS = 24


def page(plan: Plan, validation: Validation | None) -> str:
    """Return the HTML page of a plan.

    Args:
        plan: What to report.
        validation: What became of it; ``None`` where it was not run again.
    """
    kernels = ranking.by_savings(plan)
    saved_unit, saved = ranking.joules_column([choice.saved_j for _, choice in kernels])
    top = ranking.top_savings(plan, figures.MOST_BARS)
    return rendered(
        "page.html.jinja",
        _FILTERS,
        plan=plan,
        validation=validation,
        auto=plan.arm("auto"),
        first=plan.headline,
        free=plan.arm(plan.chosen),
        nothing=expected.gives_nothing(plan),
        all_zero=all(wording.no_change(arm) for arm in plan.arms),
        has_latencies=has_latencies(plan),
        frontier=expected.frontier_of(plan),
        lent=expected.lent(plan),
        bound=expected.bound_words(plan),
        counts={kernel.name: kernel.count for kernel in plan.runs},
        kernels=kernels,
        saved_unit=saved_unit,
        saved=[_minus(text) for text in saved],
        top=top,
        saved_sentence=ranking.saved_text(plan, top.total_j),
        warnings=wording.once(plan.warnings + (validation.warnings if validation else ())),
        words=wording,
        most_segments=_MOST_SEGMENTS,
        answer=answer,
        auto_sentence=expected.auto_plan_sentence(plan),
        timeline_figure=figures.timeline(plan),
        stretches=figures.stretches(plan),
        no_way=no_way_text(plan),
        frontier_figure=figures.frontier(plan),
        frontier_points=[
            (round(cost.time_change, 7), round(cost.energy_change, 7))
            for cost in figures.shown_frontier(plan)
        ],
        savings_figure=figures.savings(plan),
        power_figure=figures.power(plan),
        repeats_figure=figures.repeats(validation) if validation else None,
    )


def _minus(text: str) -> str:
    """Write true minus signs before numbers: a hyphen is too short to be seen."""
    return re.sub(r"(?<![\w-])-(?=\d)", MINUS, text)


def _change(fraction: float | None) -> str:
    return _minus(wording.change_text(fraction))


def _interval(ends: tuple[float, float] | None) -> str:
    return _minus(wording.interval_text(ends))


def _verdict(validation: Validation) -> str:
    return _sentence(_minus(wording.verdict_text(validation)))


def _sentence(text: str) -> str:
    """Write words as a sentence of their own."""
    return f"{text[0].upper()}{text[1:]}."


def _saved(joules: float) -> str:
    return _minus(wording.energy_text(joules))


def _known(value: object) -> object:
    """Write a missing fact as a word, never as nothing."""
    return wording.UNKNOWN if value is None or value == "" else value


def _brief(value: float) -> str:
    """Write a number for machines, to six digits."""
    return f"{value:.6g}"


_FILTERS: dict[str, Any] = {
    "brief": _brief,
    "change": _change,
    "duration": wording.duration_text,
    "energy": wording.energy_text,
    "interval": _interval,
    "known": _known,
    "mhz": format_mhz,
    "minus": _minus,
    "saved": _saved,
    "sentence": _sentence,
    "verdict": _verdict,
}
