"""Records as people read them: terminal tables and one offline page. Nothing is decided here.

* `tables`: what a command prints; `fitting` makes it fit narrow terminals
* `page`: one self-contained HTML page of a plan, and of its validation where there is one
* `figures`, `bars`: the page's figures; `chart` is a drawing as data, `plot` draws it as SVG from
  `axes` and `svg` elements
* `answer`, `expected`, `ranking`: what a reader should take away, what more time would give, and
  which kernels save most
* `wording`: how all of them name arms, statuses and missing values

jinja2 loads when a page is made, not before.
"""

from underclock.report.latency_tables import latency_table, latency_tables
from underclock.report.observation_tables import breakdown_tables, clock_log_table
from underclock.report.page import page
from underclock.report.tables import (
    arms_table,
    plan_tables,
    savings_table,
    score_table,
    validation_table,
)
from underclock.report.wording import verdict_text

__all__ = [
    "arms_table",
    "breakdown_tables",
    "clock_log_table",
    "latency_table",
    "latency_tables",
    "page",
    "plan_tables",
    "savings_table",
    "score_table",
    "validation_table",
    "verdict_text",
]
