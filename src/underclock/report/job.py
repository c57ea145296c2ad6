"""A job of many GPUs and its plan: tables for a terminal, and a page of what ranks do when."""

import math
from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from underclock.records.job import Job, JobPlan, RankClocks, Span
from underclock.report.chart import GREEN, Series
from underclock.report.page import arm_series, rendered, trade
from underclock.report.step_data import Packed, Packer, TimelineBox
from underclock.report.terminal import filled, numbers, words
from underclock.report.wording import (
    EVIDENCE_SENTENCES,
    arm_title,
    change_text,
    duration_text,
    energy_text,
    interval_text,
    status_text,
)

_MOST_RANKS = 32  # drawn: of alike pipelines the first


def job_tables(job: Job) -> tuple[RenderableType, ...]:
    """Return what a job is, in two lines."""
    replicas = len({rank.place[1:] for rank in job.ranks})
    pipelines = "" if replicas == 1 else f", {replicas} pipelines side by side"
    known = "" if job.has_energy else ": times only, no energy"
    size = f"{job.microbatches} microbatches, {job.instructions} instructions an iteration"
    return (
        Text(f"{job.schedule} of {job.workload}: {len(job.ranks)} ranks{pipelines}, {size}"),
        Text(f"on {job.gpu.name}; what instructions cost is {job.evidence}{known}"),
    )


def job_plan_tables(plan: JobPlan) -> tuple[RenderableType, ...]:
    """Return the answer of a job's plan: what it saves, the arms, and what ranks hold."""
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
                duration_text(None if arm.cost is None else arm.cost.time_s),
                energy_text(None if arm.cost is None else arm.cost.energy_j),
                status_text(arm)
                + (f", {interval_text(arm.energy_interval)}" if arm.energy_interval else ""),
            )
            for arm in plan.arms
        ),
        "* what the plan holds; time and energy against auto, waiting counted until the "
        "iteration ends",
        bold=[arm.name for arm in plan.arms].index(plan.chosen),
    )
    ranges = [
        _range_text(plan.job, at, held)
        for at, held in enumerate(plan.clocks)
        if plan.job.ranks[at].place[1:] == plan.job.ranks[0].place[1:]
    ]
    text = f"MHz that stages hold, weighed by time: {', '.join(ranges)}"
    if len(plan.frontier) > 1:
        text += (
            f"\n{len(plan.frontier)} plans are stored for slower iterations, to "
            f"{plan.frontier[-1].cost}: the ranks that a straggler holds up follow them"
        )
    saves, *more = plan.answer
    return (Text(saves, style="bold"), *map(Text, more), arms, Text(text))


def _range_text(job: Job, at: int, held: RankClocks) -> str:
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


def job_page(plan: JobPlan, auto: Sequence[Span], planned: Sequence[Span]) -> str:
    """Return the HTML page of a job's plan, and when instructions run at auto and under it."""
    ranks = plan.job.ranks
    alike = [at for at, rank in enumerate(ranks) if rank.place[1:] == ranks[0].place[1:]]
    shown = alike[:_MOST_RANKS]
    points = [(each.cost.time_change, each.cost.energy_change) for each in plan.frontier]
    packer = Packer()
    bands = [
        {"title": title, "tracks": [_track(packer, plan, at, spans) for at in shown]}
        for title, spans in (("Under the plan", planned), ("At auto", auto))
    ]
    drawn = ""
    if len(points) > 1:
        line = tuple((100.0 * time, 100.0 * energy) for time, energy in points)
        arms = (
            arm_series(arm.name, arm.cost, large=arm.name is plan.chosen)
            for arm in plan.arms
            if arm.cost is not None
        )
        title = f"Time of an iteration and energy of all ranks ({plan.evidence})"
        drawn = trade(title, (Series(name="stored plans", points=line, colour=GREEN), *arms))
    return rendered(
        "job.html.jinja",
        plan=plan,
        cost=plan.promise,
        shown=len(shown),
        evidence_sentence=EVIDENCE_SENTENCES[plan.evidence],
        data=packer.packed(
            bands=bands,
            evidence=plan.evidence,
            lines=[("", points)],
            auto=(plan.auto.time_s, plan.auto.energy_j),
        ),
        points=points,
        frontier=drawn,
    )


def _track(packer: Packer, plan: JobPlan, rank: int, spans: Sequence[Span]) -> Packed:
    """Return what a rank computes; where nothing is drawn, it waits."""
    boxes, ends_s = [], 0.0
    mine = (span for span in spans if span.rank == rank and not span.stream)
    for span in sorted(mine, key=lambda span: span.begins_s):
        box = TimelineBox(
            name=span.what,
            lasts_s=span.ends_s - span.begins_s,
            core_mhz=span.core_mhz if span.has_profile else None,
            set_by=int(span.core_mhz is not None) if span.has_profile else -1,
            gap_s=max(0.0, span.begins_s - ends_s),
        )
        boxes.append(box)
        ends_s = span.ends_s
    return packer.track(boxes, label=f"stage {plan.job.ranks[rank].stage}")
