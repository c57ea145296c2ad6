"""A job's plan as a page: what every rank does when, coloured by its clock, before and after."""

import math
from collections.abc import Sequence

from underclock.records.job import JobPlan, Span
from underclock.report.chart import GREEN, Series, both, round_ticks
from underclock.report.figures import arm_series, trade
from underclock.report.page import rendered
from underclock.report.svg import Box, document, px, text, text_px
from underclock.report.wording import (
    EVIDENCE_SENTENCES,
)

_RAMP = ("#440154", "#414487", "#2a788e", "#22a884", "#7ad151", "#fde725")
"""Six steps of viridis, slow to fast: in order for colour-blind readers, and in grey."""
_FIXED = "#9a9a9a"  # instructions to which clocks do not matter
_ROW_PX, _GAP_PX, _AXIS_PX, _KEY_PX = 18, 4, 22, 26
_MOST_RANKS = 32  # drawn: of alike pipelines the first


def job_page(plan: JobPlan, auto: Sequence[Span], planned: Sequence[Span]) -> str:
    """Return the HTML page of a job's plan.

    Args:
        plan: The plan.
        auto: When every instruction runs where nothing is set.
        planned: The same under the plan.
    """
    cost = plan.promise
    end_s = max(span.ends_s for span in (*auto, *planned))
    return rendered(
        "job.html.jinja",
        plan=plan,
        cost=cost,
        evidence_sentence=EVIDENCE_SENTENCES[plan.evidence],
        timelines=[
            (title, timeline(plan, spans, end_s, title))
            for title, spans in (("At auto", auto), ("Under the plan", planned))
        ],
        frontier=_frontier(plan),
    )


def timeline(plan: JobPlan, spans: Sequence[Span], end_s: float, title: str) -> str:
    """Draw what ranks do over time, a row each; where nothing is drawn, a rank waits.

    Args:
        plan: Says the ranks, and which clocks there are.
        spans: What is drawn.
        end_s: Where the time axis ends.
        title: Of the drawing.
    """
    clocks = [
        row.clocks.core_mhz
        for profile in plan.job.profiles.values()
        for row in profile.rows
        if row.clocks.core_mhz is not None
    ]
    low, high = (min(clocks), max(clocks)) if clocks else (0, 0)
    return both(lambda width_px: _drawn(plan, spans, end_s, (low, high), (title, width_px)))


def _drawn(
    plan: JobPlan,
    spans: Sequence[Span],
    end_s: float,
    range_mhz: tuple[int, int],
    look: tuple[str, int],
) -> str:
    title, width_px = look
    shown = [
        at
        for at, rank in enumerate(plan.job.ranks)
        if rank.place[1:] == plan.job.ranks[0].place[1:]
    ][:_MOST_RANKS]
    rows = {at: row for row, at in enumerate(shown)}
    left_px = 12 + text_px(f"stage {plan.job.ranks[shown[-1]].stage}")
    per_s = (width_px - left_px - 8) / end_s
    height_px = _KEY_PX + len(shown) * (_ROW_PX + _GAP_PX)
    paths: dict[str, list[str]] = {}
    for span in spans:
        if span.rank not in rows or span.stream:
            continue
        top = _KEY_PX + rows[span.rank] * (_ROW_PX + _GAP_PX)
        left, right = left_px + span.begins_s * per_s, left_px + span.ends_s * per_s
        width = max(right - left - 0.4, 0.2)  # neighbours stay apart
        paths.setdefault(_colour(span, range_mhz), []).append(
            f"M{px(left)} {top}h{px(width)}v{_ROW_PX}h{px(-width)}z"
        )
    parts = [f'<path d="{"".join(each)}" fill="{colour}"/>' for colour, each in paths.items()]
    for at, row in rows.items():
        top = _KEY_PX + row * (_ROW_PX + _GAP_PX)
        parts.append(text(left_px - 6, top + 13, f"stage {plan.job.ranks[at].stage}", anchor="end"))
    most = 8 if width_px > 400 else 4  # noqa: PLR2004 - a telephone's width
    for value, words in round_ticks(0.0, end_s, most, signed=False):
        x_px = left_px + value * per_s
        parts.append(text(x_px, height_px + 14, f"{words} s", anchor="middle"))
    return document([*_key(range_mhz, left_px), *parts], width_px, height_px + _AXIS_PX, title)


def _colour(span: Span, range_mhz: tuple[int, int]) -> str:
    if not span.has_profile:
        return _FIXED
    low, high = range_mhz
    if span.core_mhz is None or high == low:
        return _RAMP[-1]
    part = (span.core_mhz - low) / (high - low)
    return _RAMP[min(len(_RAMP) - 1, math.floor(part * len(_RAMP)))]


def _key(range_mhz: tuple[int, int], left_px: float) -> list[str]:
    """Draw which colour is which clock."""
    low, high = range_mhz
    parts, x_px = [], left_px
    words = [f"{low} MHz", *[""] * (len(_RAMP) - 2), f"{high} MHz or auto"]
    for colour, said in zip(_RAMP, words, strict=True):
        parts.append(_swatch(x_px, colour))
        x_px += 16
        if said:
            parts.append(text(x_px, 12, said))
            x_px += text_px(said) + 10
    return parts


def _swatch(left_px: float, colour: str) -> str:
    box = Box(left_px, 2, left_px + 13, 14)
    return f'<path d="M{px(box.left)} {px(box.top)}h13v12h-13z" fill="{colour}"/>'


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
