"""The kernels that save most, as bars: a line for name and clocks, a line for the bar."""

from underclock.report.chart import BLUE, GREY
from underclock.report.ranking import Ranking, others_text
from underclock.report.svg import Box, document, rectangle, shortened, text, text_px
from underclock.report.wording import clocks_text, energy_text

_ROW_PX, _BAR_PX = 40, 13
_VALUE_PX = 130  # what stands to the right of the longest bar


def savings_bars(ranking: Ranking, width_px: int) -> str:
    """Draw a ranking.

    Args:
        ranking: What to draw; at least one row.
        width_px: Of the drawing.
    """
    parts: list[str] = []
    top = 0.0
    longest_j = max(ranking.rows[0][1].saved_j, ranking.others_j)
    scale = (width_px - _VALUE_PX) / longest_j
    for name, choice in ranking.rows:
        clocks = clocks_text(choice.clocks)
        most = int((width_px - text_px(clocks)) / text_px("x")) - 3
        parts.append(text(0, top + 14, shortened(name, most)))
        parts.append(text(width_px, top + 14, clocks, anchor="end"))
        parts += _bar(choice.saved_j, ranking.total_j, scale, BLUE, top + 20)
        top += _ROW_PX
    if ranking.others:
        parts.append(text(0, top + 14, others_text(ranking)))
        parts += _bar(ranking.others_j, ranking.total_j, scale, GREY, top + 20)
        top += _ROW_PX
    return document(parts, width_px, top + 6, "Energy that kernels save, per step")


def _bar(saved_j: float, total_j: float, scale: float, colour: str, top: float) -> list[str]:
    """Draw one bar, its joules and its share of all that is saved."""
    length_px = max(scale * saved_j, 0.0)
    share = f" ({saved_j / total_j:.0%})" if total_j > 0.0 else ""
    return [
        rectangle(Box(0, top, length_px, top + _BAR_PX), f'fill="{colour}"'),
        text(length_px + 7, top + 11, f"{energy_text(saved_j)}{share}"),
    ]
