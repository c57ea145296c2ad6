"""A run under a plan, as a table for a terminal."""

from rich.table import Table
from rich.text import Text

from underclock.records.runs import ArmLine, RunLine, RunSummary
from underclock.report.fitting import bare_table
from underclock.report.wording import duration_text
from underclock.units import format_percent


def run_table(summary: RunSummary) -> Table:
    """Return a run in a few numbers."""
    table = bare_table(_title(summary.run))
    table.add_column("what")
    table.add_column("", justify="right")
    for name, text in (*(row for each in summary.arms for row in _arm(each)), *_rows(summary)):
        table.add_row(Text(name), Text(text))
    if summary.events:
        table.caption = Text("\n".join(dict.fromkeys(summary.events)))
    return table


def _title(run: RunLine | None) -> str:
    if run is None:
        return "no step was seen"
    how = "tried, nothing set" if run.dry else "run"
    return f"{run.workload} on {', '.join(dict.fromkeys(run.gpus))}, {how}: {run.evidence}"


def _rows(summary: RunSummary) -> tuple[tuple[str, str], ...]:
    return (
        ("marks in a step", str(summary.marks)),
        ("steps seen", str(summary.steps)),
        ("steps that training took", "-" if summary.enqueued is None else str(summary.enqueued)),
        ("steps in which clocks followed the plan", str(summary.followed)),
        ("a step took", _duration(summary.step_s)),
        ("a step drew", _energy(summary.step_j)),
        ("clocks asked for in a step", _number(summary.asks)),
        ("changes within 1 ms of their launch", _share(summary.hits)),
        ("boundaries expected within, median", _duration(summary.error_p50_s)),
        ("boundaries expected within, 99 of 100", _duration(summary.error_p99_s)),
        ("changes late by, median", _duration(summary.late_p50_s)),
        ("changes late by, 99 of 100 less", _duration(summary.late_p99_s)),
        ("of one core, the conductor took", _share(summary.conductor)),
    )


def _arm(arm: ArmLine) -> tuple[tuple[str, str], ...]:
    name = f"{arm.arm} against auto, {arm.rounds} rounds"
    return (
        (f"{name}: energy", _change(arm.energy_change, arm.energy_interval)),
        (f"{name}: time", _change(arm.time_change, arm.time_interval)),
        *([(f"{name}: verdict", arm.verdict)] if arm.verdict else []),
    )


def _change(mean: float | None, interval: tuple[float, float] | None) -> str:
    if mean is None:
        return "-"
    if interval is None:
        return format_percent(mean)
    return f"{format_percent(mean)} ({' to '.join(format_percent(end) for end in interval)})"


def _duration(value_s: float | None) -> str:
    return "-" if value_s is None else duration_text(value_s)


def _energy(value_j: float | None) -> str:
    return "-" if value_j is None else f"{value_j:.3g} J"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
