"""A job of many GPUs and its plan, as a terminal shows them."""

import math

from rich.console import RenderableType
from rich.text import Text

from underclock.records.job import Job, JobPlan, RankClocks
from underclock.records.outcomes import TOLERANCE
from underclock.report.terminal import filled, numbers, words
from underclock.report.wording import (
    arm_title,
    change_text,
    duration_text,
    energy_text,
    interval_text,
    status_text,
)
from underclock.units import format_percent


def job_tables(job: Job) -> tuple[RenderableType, ...]:
    """Return what a job is, in two lines."""
    replicas = len({rank.place[1:] for rank in job.ranks})
    pipelines = "" if replicas == 1 else f", {replicas} pipelines side by side"
    known = "" if job.has_energy else ": times only, no energy"
    return (
        Text(
            f"{job.schedule} of {job.workload}: {len(job.ranks)} ranks{pipelines}, "
            f"{job.microbatches} microbatches, {job.instructions} instructions an iteration"
        ),
        Text(f"on {job.gpu.name}; what instructions cost is {job.evidence}{known}"),
    )


def job_plan_tables(plan: JobPlan) -> tuple[RenderableType, ...]:
    """Return the answer of a job's plan: what it saves, the arms, and what ranks hold."""
    cost = plan.promise
    budget = format_percent(plan.max_slowdown).removeprefix("+")
    sure = plan.arm(plan.chosen).time_interval is None
    kept = "" if sure or plan.board_spread else f" + {100.0 * TOLERANCE:.2f}"
    answer = (
        f"{change_text(cost.energy_change)} energy at {change_text(cost.time_change)} time an "
        f"iteration (at most {budget}{kept} slower), all {len(plan.job.ranks)} ranks together"
    )
    arms = filled(
        f"{plan.job.schedule} of {plan.workload} on {plan.gpu.name}: {plan.evidence}",
        (
            *words("one clock for"),
            *numbers("time", "energy", "iteration", "of all ranks"),
            *words(""),
        ),
        (
            (
                f"{'*' if arm.name is plan.chosen else ' '} {arm_title(arm.name)}",
                change_text(arm.time_change),
                f"{change_text(arm.energy_change)}",
                duration_text(arm.time_s),
                energy_text(arm.energy_j),
                status_text(arm)
                + (f", {interval_text(arm.energy_interval)}" if arm.energy_interval else ""),
            )
            for arm in plan.arms
        ),
        "* what the plan holds; time and energy against auto, waiting counted until the "
        "iteration ends",
        bold=[arm.name for arm in plan.arms].index(plan.chosen),
    )
    return (Text(answer, style="bold"), arms, Text(_held(plan)))


def _held(plan: JobPlan) -> str:
    """Say which clocks ranks hold, and how far the stored plans reach."""
    ranges = [
        _range_text(plan.job, at, held)
        for at, held in enumerate(plan.clocks)
        if plan.job.ranks[at].place[1:] == plan.job.ranks[0].place[1:]
    ]
    text = f"MHz that stages hold, weighed by time: {', '.join(ranges)}"
    if len(plan.frontier) > 1:
        last = plan.frontier[-1].cost
        text += (
            f"\n{len(plan.frontier)} plans are stored for slower iterations, to "
            f"{change_text(last.energy_change)} energy at {change_text(last.time_change)} time: a "
            "straggler's others follow them"
        )
    return text


def _range_text(job: Job, at: int, held: RankClocks) -> str:
    """Write the least, the mean and the greatest core clock of a rank's instructions."""
    clocks: list[tuple[float, float]] = []
    for each, instruction in zip(held, job.ranks[at].instructions, strict=True):
        if each is None or instruction.profile is None:
            continue
        for row, share in each.parts:
            chosen = job.profiles[instruction.profile].rows[row]
            if chosen.clocks.core_mhz is not None:
                clocks.append((chosen.clocks.core_mhz, share * chosen.time_s))
    if not clocks:
        return "auto"
    mean = math.fsum(mhz * time_s for mhz, time_s in clocks) / math.fsum(t for _, t in clocks)
    low, high = min(clocks)[0], max(clocks)[0]
    return f"{low:g}" if low == high else f"{low:g} to {high:g} ({mean:.0f})"
