"""The drawings of ``underclock paper`` as fragments of its page."""

from dataclasses import replace

from underclock.records import Evidence
from underclock.report.chart import Chart
from underclock.report.plot import both, draw


def figure(chart: Chart, evidence: Evidence) -> str:
    """Draw one chart."""
    titled = replace(chart, title=f"{chart.title} (ours {evidence})")
    return both(lambda width_px: draw(titled, width_px))
