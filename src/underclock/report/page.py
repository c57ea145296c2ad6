"""One self-contained page of a plan: it opens offline, and equal input gives equal bytes."""

from collections.abc import Callable, Mapping

from underclock.records import Plan, Validation
from underclock.report import answer, figures, wording
from underclock.report.wording import minus
from underclock.units import format_mhz

_MOST_SEGMENTS = 24


def rendered(
    template: str,
    filters: Mapping[str, Callable[..., object]] | None = None,
    *,
    package: str = "underclock.report",
    **values: object,
) -> str:
    """Render a template; everything it is given is escaped.

    Args:
        template: File name under ``templates``, of the package or of this room.
        filters: Beside those that all pages have.
        values: What the template shows; a name it uses and is not given is an error.
    """
    import jinja2  # noqa: PLC0415 - a command that prints tables need not load it

    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(name) for name in (package, "underclock.report")]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update({**_FILTERS, **(filters or {})})
    return environment.get_template(template).render(**values)


def page(plan: Plan, validation: Validation | None) -> str:
    """Return the HTML page of a plan, and of its validation where it was run again."""
    kernels = answer.by_savings(plan)
    saved_unit, saved = answer.joules_column([choice.saved_j for _, choice in kernels])
    ranking = answer.top_savings(plan, figures.MOST_BARS)
    return rendered(
        "page.html.jinja",
        plan=plan,
        validation=validation,
        auto=plan.arm("auto"),
        first=plan.headline,
        free=plan.arm(plan.chosen),
        nothing=answer.gives_nothing(plan),
        all_zero=all(wording.no_change(arm) for arm in plan.arms),
        counts={kernel.name: kernel.count for kernel in plan.runs},
        kernels=kernels,
        saved_unit=saved_unit,
        saved=[minus(text) for text in saved],
        saved_sentence=answer.saved_text(plan, ranking.total_j),
        warnings=wording.once(plan.warnings + (validation.warnings if validation else ())),
        words=wording,
        most_segments=_MOST_SEGMENTS,
        answer=answer,
        timeline_figure=figures.timeline(plan),
        stretches=figures.stretches(plan),
        frontier_figure=figures.frontier(plan),
        frontier_points=[
            (round(time, 7), round(energy, 7)) for time, energy in figures.shown_frontier(plan)
        ],
        savings_figure=figures.savings(ranking),
        power_figure=figures.power(plan),
        repeats_figure=figures.repeats(validation) if validation else None,
    )


def _sentence(text: str) -> str:
    """Write words as a sentence of their own."""
    return f"{text[0].upper()}{text[1:]}."


_FILTERS: dict[str, Callable[..., object]] = {
    "arm": wording.arm_title,
    "brief": "{:.6g}".format,
    "change": lambda fraction: minus(wording.change_text(fraction)),
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
