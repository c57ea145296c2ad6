"""What a run under a plan came to: a line at its end, a table, and one self-contained page."""

from collections.abc import Callable, Sequence

from rich.table import Column, Table

from underclock.errors import DataError
from underclock.records.answers import outcome
from underclock.records.runs import LEARNED, TRIED, EventLine, Line, RunLine, RunSummary, StepLine
from underclock.report.chart import BLUE, GREEN, GREY, ORANGE, PINK, SKY, Chart, Series, figure
from underclock.report.page import rendered
from underclock.report.step_data import Packer, TimelineBox
from underclock.report.terminal import filled, words
from underclock.report.wording import EVIDENCE_SENTENCES, duration_text
from underclock.units import KWH_J, format_drawn, format_percent

# What holds no clock.
_DRIVEN = {"auto", "auto-again", "warm-up", "learning", "off", "observed"}
_UNKNOWN = "-"
_MOST_POINTS = 1000  # of a drawing: more do not show
_COLOURS = {  # in the order in which they are shown: auto, then the plan, then what is simpler
    "warm-up": GREY,
    "learning": GREY,
    "auto": GREY,
    "auto-again": GREEN,
    "checking": PINK,
    "plan": BLUE,
    "reduced": SKY,
    "fixed": ORANGE,
    "best-fixed": ORANGE,
    LEARNED: BLUE,
    TRIED: SKY,
    "off": PINK,
}


_SYMBOLS = {"auto": "circle", "plan": "square", "best-fixed": "triangle"}


def closing_line(summary: RunSummary, *, clocks: str = "") -> str:
    """Return what a run came to: its steps, its saving, what it drew, what became of clocks."""
    parts = _steps(summary), _saving(summary), format_drawn(summary.energy_j), clocks
    return "; ".join(filter(None, parts))


def _saving(summary: RunSummary) -> str:
    """Return what a run saved, against what; or why that is not known."""
    run = summary.run
    if run is None:
        return "nothing was seen of it"
    if run.dry:
        return "no clock was held, and nothing was saved"
    plans = [arm for arm in summary.arms if arm.arm == "plan"]
    if summary.arms:  # of several GPUs each has some, and one line has room for one
        arm = (plans or summary.arms)[0]
        name = "" if plans else f"{arm.arm}: "
        if arm.verdict.startswith("cannot tell"):
            return f"its saving: {name}{arm.verdict}"
        verdict = f": promise {arm.verdict.partition(': energy')[0]}" if arm.verdict else ""
        saved = outcome(arm.energy_change or 0.0, arm.energy_interval, arm.time_change)
        return f"{name}{saved} than auto on this job, {run.evidence}{verdict}"
    promised = ""
    if run.energy_change is not None:
        promised = f"promised {format_percent(run.energy_change, digits=1)} energy, "
    if not summary.followed and summary.events:
        why = f"saved nothing: {summary.events[-1]}"
    elif run.is_job and summary.since_auto is not None:
        arm = summary.since_auto
        saved = outcome(arm.energy_change or 0.0, arm.energy_interval, arm.time_change)
        return f"{promised}{saved} than its iterations at auto before, warm-up left out"
    elif run.is_job:
        why = (
            "its saving is not known: too few iterations at auto before it, after warming up "
            "(--guard 20), or what they drew is not known"
        )
    elif run.arms:
        why = f"not measured: {next(reversed(summary.events), 'no round was whole')}"
    else:
        why = "what it saved was not measured: --compare auto,plan measures it"
    return promised + why


def _steps(summary: RunSummary) -> str:
    times = {0: "", 1: ", the trainer was started again"}
    again = times.get(summary.restarts, f"{times[1]} {summary.restarts} times")
    if summary.enqueued is None or summary.enqueued == summary.steps:
        return f"{summary.steps} steps{again}"
    return f"{summary.steps} of {summary.enqueued} steps seen{again}"


def run_table(summary: RunSummary) -> Table:
    """Return a run in a few numbers."""
    run, title = summary.run, "no step was seen"
    if run is not None:
        how = "no clock was held" if run.dry else "run"
        gpus = ", ".join(dict.fromkeys(run.gpus))
        title = f"{run.workload} on {gpus}, {how}: {run.evidence}"
    arms = []
    for arm in summary.arms:
        name = f"{arm.arm} against auto, {arm.rounds} rounds"
        arms.append((f"{name}: energy", _change(arm.energy_change, arm.energy_interval)))
        arms.append((f"{name}: time", _change(arm.time_change, arm.time_interval)))
        arms += [(f"{name}: verdict", arm.verdict)] if arm.verdict else []
    rows: tuple[tuple[str, str], ...] = (
        ("marks in a step", str(summary.marks)),
        ("steps seen", str(summary.steps)),
        ("steps that training took", _known(summary.enqueued, str)),
        ("steps in which clocks followed the plan", str(summary.followed)),
        ("a step took", _known(summary.step_s, duration_text)),
        ("a step drew", _known(summary.step_j, "{:.3g} J".format)),
        ("clocks asked for in a step", _known(summary.asks, "{:.1f}".format)),
        ("changes within 1 ms of their launch", _known(summary.hits, "{:.1%}".format)),
        ("starts of launches foreseen to, median", _known(summary.error_p50_s, duration_text)),
        ("starts of launches foreseen to, p99", _known(summary.error_p99_s, duration_text)),
        ("changes late by, median", _known(summary.late_p50_s, duration_text)),
        ("changes late by, p99", _known(summary.late_p99_s, duration_text)),
        ("of one core, the controller took", _known(summary.conductor, "{:.1%}".format)),
        ("all of the run drew", _known(summary.energy_j, lambda j: f"{j / KWH_J:.3g} kWh")),
    )
    if run is not None and run.marks == 1 and (run.dry or run.arms == LEARNED):  # without a plan
        rows = (*rows[1:3], *rows[4:6], *rows[-2:])
    return filled(
        title,
        (*words("what"), Column("", justify="right")),
        (*arms, *(row for row in rows if row[1] != _UNKNOWN)),
        "\n".join(dict.fromkeys(summary.events)),
    )


def _known(value: float | None, write: Callable[[float], str]) -> str:
    return _UNKNOWN if value is None else write(value)


def _change(mean: float | None, interval: tuple[float, float] | None) -> str:
    if mean is None:
        return "-"
    ends = "" if interval is None else f" ({' to '.join(format_percent(e) for e in interval)})"
    return f"{format_percent(mean)}{ends}"


def run_page(lines: Sequence[Line], summary: RunSummary) -> str:
    """Return the HTML page of a run: steps as they came, what was asked for, what it saved.

    Raises:
        DataError: The lines begin no run.
    """
    run = next((line for line in lines if isinstance(line, RunLine)), None)
    if run is None:
        raise DataError(
            "the log begins no run", hint="`underclock run plan.json --log FILE` writes one"
        )
    steps = [line for line in lines if isinstance(line, StepLine)]
    saved = _saving(summary)
    # For each arm its steps, and mean time, energy and core clock.
    rows = []
    for arm in sorted({step.arm or "plan" for step in steps}, key=_place):
        mine = [step for step in steps if (step.arm or "plan") == arm]
        counts = [step.steps for step in mine]
        means = (
            _mean([1e3 * step.time_s for step in mine], counts, "ms"),
            _mean([step.energy_j for step in mine], counts, "J"),
            _mean([step.core_mhz for step in mine], counts, "MHz"),
        )
        rows.append((arm, sum(counts), *means))
    return rendered(
        "run.html.jinja",
        run=run,
        saved=saved[:1].upper() + saved[1:],
        followed=summary.followed,
        came_to=f"{_steps(summary)}; {format_drawn(summary.energy_j)}",
        data=_data(run, steps),
        best=next((arm for arm in summary.arms if arm.arm == "plan"), None),
        evidence_sentence=EVIDENCE_SENTENCES[run.evidence],
        drawings=[(chart, figure(chart)) for chart in run_charts(run, steps)],
        events=[line for line in lines if isinstance(line, EventLine)],
        arms=[
            (
                line,
                _change(line.energy_change, line.energy_interval),
                _change(line.time_change, line.time_interval),
            )
            for line in sorted(summary.arms, key=lambda line: (line.gpu, _place(line.arm)))
        ],
        promised=_change(run.energy_change, None),
        promised_time=_change(run.time_change, None),
        rows=rows,
    )


def _data(run: RunLine, steps: Sequence[StepLine]) -> str:
    """Return what each GPU held over the run, what its core clock was, and what it drew."""
    packer, tracks = Packer(), []
    for gpu in sorted({step.gpu for step in steps}):
        boxes, held, ends_s = [], [], run.began_s
        for step in (step for step in steps if step.gpu == gpu):
            lasts_s, some = step.time_s * step.steps, f" to {step.step + step.steps - 1}"
            power_w = step.power_w if step.energy_j is None else step.energy_j / step.time_s
            box = TimelineBox(
                name=f"step {step.step}{some if step.steps > 1 else ''}: {step.state}",
                lasts_s=lasts_s,
                core_mhz=step.core_mhz and round(step.core_mhz),
                set_by=int(not run.dry and step.arm not in _DRIVEN),
                power_w=power_w,
                gap_s=max(0.0, step.began_s - ends_s),
            )
            boxes.append(box)
            held.append(step.arm or "plan")
            ends_s = step.began_s + lasts_s
        label = f"GPU {gpu}" if len(run.gpus) > 1 else ""
        tracks.append(packer.track(boxes, label=label, groups={"held": held}))
    bands = [{"title": f"Steps as they came ({run.evidence})", "tracks": tracks}] if tracks else []
    return packer.packed(bands=bands)


def run_charts(run: RunLine, steps: Sequence[StepLine]) -> tuple[Chart, ...]:
    """Return what a page draws: times, energies and misses, step by step."""
    shown = steps[:: -(-len(steps) // _MOST_POINTS) or 1]
    times = _by_arm(shown, lambda s: [1e3 * s.time_s])
    energies = _by_arm(shown, lambda s: [] if s.energy_j is None else [s.energy_j])
    misses = _by_arm(shown, lambda s: [1e3 * each_s for each_s in s.late_s])
    late = "When clocks changed, after the launch that they were for"
    return tuple(
        Chart(
            key=key,
            title=f"{title} ({run.evidence})",
            x_title="step",
            y_title=unit,
            series=series,
            signed=key == "misses",
        )
        for key, title, unit, series in (
            ("time", "Time of a step", "ms", times),
            ("energy", "Energy of a step", "J", energies),
            ("misses", late, "ms", misses),
        )
        if series
    )


def _by_arm(
    steps: Sequence[StepLine], values: Callable[[StepLine], Sequence[float]]
) -> tuple[Series, ...]:
    points: dict[str, list[tuple[float, float]]] = {}
    for step in steps:
        some = [(float(step.step), value) for value in values(step)]
        if some:
            points.setdefault(step.arm or "plan", []).extend(some)
    return tuple(
        Series(
            name=arm,
            points=tuple(some),
            colour=_COLOURS.get(arm, GREEN),
            symbol=_SYMBOLS.get(arm, "diamond"),
        )
        for arm, some in sorted(points.items(), key=lambda each: _place(each[0]))
    )


def _place(arm: str) -> int:
    known = list(_COLOURS)
    return known.index(arm) if arm in known else len(known)


def _mean(values: Sequence[float | None], counts: Sequence[int], unit: str) -> str:
    known = [(v, steps) for v, steps in zip(values, counts, strict=True) if v is not None]
    if not known:
        return "-"
    mean = sum(value * steps for value, steps in known) / sum(steps for _, steps in known)
    return f"{mean:.4g} {unit}"
