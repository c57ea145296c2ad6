"""What a run came to, in the one line that it ends with and in what leads its page."""

from underclock.records.runs import ArmLine, RunSummary
from underclock.units import format_percent

_JOULES_OF_A_KWH = 3.6e6
_PLAN, _CANNOT_TELL = "plan", "cannot tell"


def closing_line(summary: RunSummary, *, clocks: str = "") -> str:
    """Return what a run came to: its steps, what it saved, and what it drew.

    Args:
        summary: Of it.
        clocks: What became of them, in words.
    """
    parts = (_steps(summary), saving(summary), _drawn(summary), clocks)
    return "; ".join(filter(None, parts))


def saving(summary: RunSummary) -> str:
    """Return what a run saved, against what; or why nobody can tell."""
    run = summary.run
    if run is None:
        return "nothing was seen of it"
    plans = [arm for arm in summary.arms if arm.arm == _PLAN]
    if summary.arms:  # of several GPUs each has some, and one line has room for one
        arm = (plans or summary.arms)[0]
        name = "" if plans else f"{arm.arm}: "
        if arm.verdict.startswith(_CANNOT_TELL):
            return f"its saving: {name}{arm.verdict}"
        verdict = f": {arm.verdict}" if arm.verdict else ""
        return f"{name}{_measured(arm)} against auto on this job, {run.evidence}{verdict}"
    promised = ""
    if run.energy_change is not None:
        promised = f"promised {format_percent(run.energy_change)} energy, "
    if run.dry:
        why = "saved nothing: a dry run"
    elif not summary.followed and summary.events:
        why = f"saved nothing: {summary.events[-1]}"
    elif run.arms:
        why = f"not measured: {next(reversed(summary.events), 'no round was whole')}"
    else:
        why = "not measured: no blocks at auto (--arms auto,plan)"
    return promised + why


def _measured(arm: ArmLine) -> str:
    words = f"{format_percent(arm.energy_change or 0.0)} energy"
    if arm.energy_interval is not None:
        words += f" ({' to '.join(map(format_percent, arm.energy_interval))})"
    return f"{words} at {format_percent(arm.time_change)} time"


def steps_and_energy(summary: RunSummary) -> str:
    """Return how many steps there were, and what all of the run drew."""
    return f"{_steps(summary)}; {_drawn(summary)}"


def _steps(summary: RunSummary) -> str:
    """Return how many steps there were; a trainer's first two only show where marks go."""
    if summary.enqueued is None or summary.enqueued == summary.steps:
        return f"{summary.steps} steps"
    return f"{summary.steps} of {summary.enqueued} steps seen"


def _drawn(summary: RunSummary) -> str:
    if summary.energy_j is None:
        return "what it drew is not known"
    return f"{summary.energy_j / _JOULES_OF_A_KWH:.3g} kWh drawn"
