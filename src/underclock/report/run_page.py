"""One self-contained page of a run: steps as they came, what was asked for, what it saved."""

import re
from collections.abc import Callable, Sequence

from underclock.errors import DataError
from underclock.records.runs import ArmLine, EventLine, Line, RunLine, RunSummary, StepLine
from underclock.report.chart import BLUE, GREEN, GREY, ORANGE, PINK, SKY, Chart, Series
from underclock.report.closing import saving, steps_and_energy
from underclock.report.plot import both, draw
from underclock.report.templating import rendered
from underclock.report.wording import EVIDENCE_SENTENCES
from underclock.units import format_percent

_COLOURS = {  # in the order in which they are shown
    "warm-up": GREY,
    "learning": GREY,
    "auto": GREY,
    "auto-again": GREEN,
    "checking": PINK,
    "plan": BLUE,
    "reduced": SKY,
    "fixed": ORANGE,
    "best-fixed": ORANGE,
    "off": PINK,
}
_MOST_POINTS = 2000  # of a drawing: more do not show
_MINUS = "\N{MINUS SIGN}"


def run_page(lines: Sequence[Line], summary: RunSummary) -> str:
    """Return the HTML page of a run.

    Args:
        lines: Of one run's log.
        summary: Of those.

    Raises:
        DataError: They begin no run.
    """
    run = next((line for line in lines if isinstance(line, RunLine)), None)
    if run is None:
        raise DataError(
            "the log begins no run", hint="`underclock run plan.json --log FILE` writes one"
        )
    steps = [line for line in lines if isinstance(line, StepLine)]
    saved = saving(summary)
    return rendered(
        "run.html.jinja",
        {"minus": _minus},
        run=run,
        saved=saved[:1].upper() + saved[1:],
        followed=summary.followed,
        came_to=steps_and_energy(summary),
        steps=steps,
        evidence_sentence=EVIDENCE_SENTENCES[run.evidence],
        drawings=[(chart, both(_drawer(chart))) for chart in charts(run, steps)],
        events=[line for line in lines if isinstance(line, EventLine)],
        arms=[
            (line, _change(line.energy_change, line.energy_interval), _time(line))
            for line in sorted(summary.arms, key=lambda line: (line.gpu, _place(line.arm)))
        ],
        promised=_change(run.energy_change, None),
        promised_time=_change(run.time_change, None),
        rows=_rows(steps),
    )


def charts(run: RunLine, steps: Sequence[StepLine]) -> tuple[Chart, ...]:
    """Return what a page draws: times, energies and misses, step by step."""
    shown = steps[:: -(-len(steps) // _MOST_POINTS) or 1]
    drawn = (
        ("time", "Time of a step", "ms", _arms(shown, lambda s: [1e3 * s.time_s])),
        (
            "energy",
            "Energy of a step",
            "J",
            _arms(shown, lambda s: [] if s.energy_j is None else [s.energy_j]),
        ),
        (
            "misses",
            "When clocks changed, after the launch that they were for",
            "ms",
            _arms(shown, lambda s: [1e3 * each_s for each_s in s.late_s]),
        ),
    )
    return tuple(
        Chart(
            key=key,
            title=f"{title} ({run.evidence})",
            x_title="step",
            y_title=unit,
            series=series,
            signed=key == "misses",
        )
        for key, title, unit, series in drawn
        if series
    )


def _arms(
    steps: Sequence[StepLine], values: Callable[[StepLine], Sequence[float]]
) -> tuple[Series, ...]:
    points: dict[str, list[tuple[float, float]]] = {}
    for step in steps:
        some = [(float(step.step), value) for value in values(step)]
        if some:
            points.setdefault(step.arm or "plan", []).extend(some)
    return tuple(
        Series(name=arm, points=tuple(some), colour=_COLOURS.get(arm, GREEN), symbol="circle")
        for arm, some in sorted(points.items(), key=lambda each: _place(each[0]))
    )


def _rows(steps: Sequence[StepLine]) -> list[tuple[str, int, str, str, str]]:
    """Return for each arm its steps, and mean time, energy and core clock."""
    rows = []
    for arm in sorted({step.arm or "plan" for step in steps}, key=_place):
        mine = [step for step in steps if (step.arm or "plan") == arm]
        rows.append(
            (
                arm,
                sum(step.steps for step in mine),
                _mean([(1e3 * step.time_s, step.steps) for step in mine], "ms"),
                _mean([(step.energy_j, step.steps) for step in mine], "J"),
                _mean([(step.core_mhz, step.steps) for step in mine], "MHz"),
            )
        )
    return rows


def _place(arm: str) -> int:
    """Return where an arm stands among others: auto first, then the plan, then what is simpler."""
    known = list(_COLOURS)
    return known.index(arm) if arm in known else len(known)


def _mean(values: Sequence[tuple[float | None, int]], unit: str) -> str:
    known = [(value, steps) for value, steps in values if value is not None]
    if not known:
        return "-"
    mean = sum(value * steps for value, steps in known) / sum(steps for _, steps in known)
    return f"{mean:.4g} {unit}"


def _time(line: ArmLine) -> str:
    return _change(line.time_change, line.time_interval)


def _change(mean: float | None, interval: tuple[float, float] | None) -> str:
    if mean is None:
        return "-"
    ends = "" if interval is None else f" ({' to '.join(format_percent(e) for e in interval)})"
    return f"{format_percent(mean)}{ends}"


def _minus(text: str) -> str:
    return re.sub(r"-(?=\d)", _MINUS, text)


def _drawer(chart: Chart) -> Callable[[int], str]:
    return lambda width_px: draw(chart, width_px)
