"""Records as people read them: terminal tables and one offline page. Nothing is computed here.

* `tables`: what a command prints, for an 80-column terminal
* `page`: one self-contained HTML page of a plan, and of its validation where there is one
* `figures`: the page's figures
* `wording`: how both name arms, statuses and missing values

plotly and jinja2 load when a page is made, not before.
"""

from underclock.report.page import page
from underclock.report.tables import (
    arms_table,
    breakdown_tables,
    clock_log_table,
    clocks_table,
    latency_table,
    latency_tables,
    score_table,
    validation_table,
)
from underclock.report.wording import verdict_text

__all__ = [
    "arms_table",
    "breakdown_tables",
    "clock_log_table",
    "clocks_table",
    "latency_table",
    "latency_tables",
    "page",
    "score_table",
    "validation_table",
    "verdict_text",
]
