"""Records as people read them: terminal tables and offline pages. Nothing is decided here.

jinja2 loads when a page is made, not before.
"""

from underclock.report.job import job_page, job_plan_tables, job_tables
from underclock.report.page import page
from underclock.report.plan_tables import (
    arms_table,
    plan_details,
    plan_parts,
    savings_table,
    validation_parts,
    validation_table,
)
from underclock.report.run import closing_line, run_page, run_table
from underclock.report.wording import verdict_text
