"""One self-contained page of a plan: it opens offline, and equal input gives equal bytes."""

import math
import re
from collections.abc import Callable

from underclock.records import Plan, Validation
from underclock.report import answer, figures, wording
from underclock.report.step_data import MOST_ROWS, is_held, kernel_uses, plan_data
from underclock.report.wording import minus
from underclock.units import format_mhz


def rendered(
    template: str,
    **values: object,
) -> str:
    """Render a template; everything it is given is escaped.

    Args:
        template: File name under ``templates``.
        values: What the template shows; a name it uses and is not given is an error.
    """
    import jinja2  # noqa: PLC0415 - a command that prints tables need not load it

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("underclock.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(_FILTERS)
    return environment.get_template(template).render(**values)


def page(plan: Plan, validation: Validation | None) -> str:
    """Return the HTML page of a plan, and of its validation where it was run again."""
    uses, first = kernel_uses(plan), plan.headline
    lines = figures.lines_of(plan)
    return rendered(
        "page.html.jinja",
        plan=plan,
        validation=validation,
        auto=plan.arm("auto"),
        auto_word=wording.auto_word(plan),
        first=first,
        nothing=answer.gives_nothing(plan),
        all_zero=all(wording.no_change(arm) for arm in plan.arms),
        kernels=len(uses),
        most_rows=MOST_ROWS,
        held=is_held(plan),
        is_bound=plan.bound is plan.chosen,
        auto_known=any(choice.auto_core_mhz for choice in plan.kernels.values()),
        saved_sentence=answer.saved_text(plan, math.fsum(use.saved_j for use in uses)),
        warnings=wording.once(plan.warnings + (validation.warnings if validation else ())),
        words=wording,
        answer=answer,
        data=plan_data(plan, uses, [(line.takes, line.points) for line in lines]),
        lines=lines,
        own_line=next((at for at, line in enumerate(lines) if line.is_own), 0),
        slowest=figures.slowest_shown(plan),
        budget=round(first.time_change or plan.max_slowdown or 0.01, 4),
        frontier_figure=figures.frontier(plan),
        energy_figure=figures.energy(uses),
        repeats_figure=figures.repeats(validation) if validation else None,
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
