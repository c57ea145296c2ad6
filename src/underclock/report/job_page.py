"""A job's plan as a page: what every rank does when, coloured by its clock, before and after."""

from collections.abc import Sequence

from underclock.records.job import JobPlan, Span
from underclock.report.chart import GREEN, Series
from underclock.report.figures import arm_series, trade
from underclock.report.packed import Packed, Packer, TimelineBox
from underclock.report.page import rendered
from underclock.report.wording import EVIDENCE_SENTENCES

_MOST_RANKS = 32  # drawn: of alike pipelines the first


def job_page(plan: JobPlan, auto: Sequence[Span], planned: Sequence[Span]) -> str:
    """Return the HTML page of a job's plan.

    Args:
        plan: The plan.
        auto: When every instruction runs where nothing is set.
        planned: The same under the plan.
    """
    shown = _shown_ranks(plan)
    points = [(each.cost.time_change, each.cost.energy_change) for each in plan.frontier]
    packer = Packer()
    bands = [
        {"title": title, "tracks": [_track(packer, plan, at, spans) for at in shown]}
        for title, spans in (("Under the plan", planned), ("At auto", auto))
    ]
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
            auto=(plan.arm("auto").time_s, plan.arm("auto").energy_j),
        ),
        points=points,
        frontier=_frontier(plan),
    )


def _shown_ranks(plan: JobPlan) -> list[int]:
    """Return which ranks are drawn: those of the first of pipelines side by side."""
    ranks = plan.job.ranks
    return [at for at, rank in enumerate(ranks) if rank.place[1:] == ranks[0].place[1:]][
        :_MOST_RANKS
    ]


def _track(packer: Packer, plan: JobPlan, rank: int, spans: Sequence[Span]) -> Packed:
    """Return what a rank computes; where nothing is drawn, it waits."""
    boxes, ends_s = [], 0.0
    mine = (span for span in spans if span.rank == rank and not span.stream)
    for span in sorted(mine, key=lambda span: span.begins_s):
        set_by = -1 if not span.has_profile else int(span.core_mhz is not None)
        boxes.append(
            TimelineBox(
                name=span.what,
                lasts_s=span.ends_s - span.begins_s,
                core_mhz=span.core_mhz if span.has_profile else None,
                set_by=set_by,
                gap_s=max(0.0, span.begins_s - ends_s),
            )
        )
        ends_s = span.ends_s
    return packer.track(boxes, label=f"stage {plan.job.ranks[rank].stage}")


def _frontier(plan: JobPlan) -> str:
    """Draw what slower iterations save, and the arms; empty where nothing is stored."""
    if len(plan.frontier) < 2:  # noqa: PLR2004 - one point is no line
        return ""

    costs = [point.cost for point in plan.frontier]
    line = tuple((100.0 * cost.time_change, 100.0 * cost.energy_change) for cost in costs)
    arms = (
        arm_series(arm.name, arm.cost, large=arm.name is plan.chosen)
        for arm in plan.arms
        if arm.cost is not None
    )
    title = f"Time of an iteration and energy of all ranks ({plan.evidence})"
    return trade("frontier", title, (Series(name="stored plans", points=line, colour=GREEN), *arms))
