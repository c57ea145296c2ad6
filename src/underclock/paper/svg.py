"""The drawings of ``underclock paper`` as SVG files of their own."""

from dataclasses import replace

from underclock.records import Evidence
from underclock.report.chart import Chart
from underclock.report.plot import draw

_WIDTH_PX = 760


def svg(chart: Chart, evidence: Evidence) -> str:
    """Draw one chart."""
    titled = replace(chart, title=f"{chart.title} (ours {evidence})")
    return draw(titled, _WIDTH_PX, alone=True)
