"""One self-contained page of a plan: it opens offline, and equal input gives equal bytes."""

from typing import Any

from underclock.records import Plan, Strategy, Validation
from underclock.report import wording
from underclock.report.templating import rendered
from underclock.units import format_mhz


def page(plan: Plan, validation: Validation | None) -> str:
    """Return the HTML page of a plan.

    Args:
        plan: What to report.
        validation: What became of it; ``None`` where it was not run again.
    """
    from underclock.report import figures  # noqa: PLC0415 - plotly takes long to load

    return rendered(
        "page.html.jinja",
        _FILTERS,
        plan=plan,
        validation=validation,
        arm=plan.arm(plan.chosen),
        auto=plan.arm(Strategy.AUTO),
        counts={kernel.name: kernel.count for kernel in plan.runs},
        headline=headline(plan),
        warnings=wording.once(plan.warnings + (validation.warnings if validation else ())),
        words=wording,
        most_bars=figures.MOST_BARS,
        plotly_js=figures.script(),
        frontier_figure=figures.frontier(plan),
        kernels_figure=figures.kernels(plan) if plan.kernels else None,
        validation_figure=figures.repeats(validation) if validation else None,
    )


def headline(plan: Plan) -> str:
    """Say the page in a sentence: what is saved, at what time, and how that is known."""
    energy = _signed(plan.promise.energy_change, digits=1)
    time = _signed(plan.promise.time_change, digits=1)
    return f"{energy} energy at {time} time, {plan.evidence} on {plan.gpu.name}"


def _signed(fraction: float | None, *, digits: int = 2) -> str:
    """Write a change with a true minus sign: a hyphen is too short to be seen."""
    return wording.change_text(fraction, digits=digits).replace("-", "\N{MINUS SIGN}")


def _interval(ends: tuple[float, float] | None) -> str:
    """Write an interval with true minus signs."""
    return wording.interval_text(ends).replace("-", "\N{MINUS SIGN}")


def _verdict(validation: Validation) -> str:
    """Write the verdict as a sentence, with true minus signs."""
    text = wording.verdict_text(validation).replace("-", "\N{MINUS SIGN}")
    return f"{text[0].upper()}{text[1:]}."


def _known(value: object) -> object:
    """Write a missing fact as a word, never as nothing."""
    return wording.UNKNOWN if value is None or value == "" else value


_FILTERS: dict[str, Any] = {
    "change": _signed,
    "duration": wording.duration_text,
    "energy": wording.energy_text,
    "interval": _interval,
    "known": _known,
    "mhz": format_mhz,
    "verdict": _verdict,
}
