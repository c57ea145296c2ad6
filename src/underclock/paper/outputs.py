"""What the study leaves in a folder: its numbers and a page, and how those are worded.

Which drawing answers to which figure of the paper is inferred from what its results report, for
the figures themselves could not be looked at.
"""

from dataclasses import replace
from itertools import groupby
from pathlib import Path

from underclock.errors import UsageError
from underclock.paper.charts import charts
from underclock.paper.comparison import basis_of
from underclock.paper.records import Study
from underclock.paper.study import Conditions, run_study, simulated_gpu
from underclock.report.chart import figure
from underclock.report.page import rendered
from underclock.report.wording import DASH, EVIDENCE_SENTENCES, minus
from underclock.store import check_output, write_document, write_text
from underclock.units import format_mhz

FIGURE_NUMBERS = {
    "frontier": 3,
    "relaxed": 4,
    "validation": 6,
    "batch": 7,
    "tensor-parallel": 8,
}
"""Figures of the paper, by the key of the chart: inferred."""
PAGE = "paper.html"


def run_paper(conditions: Conditions, folder: Path | None, *, force: bool = False) -> Study:
    """Run the paper's study, and write down its numbers and a page.

    Args:
        conditions: Where and how to run it.
        folder: Made if it is missing; ``None`` writes nothing.

    Raises:
        UsageError: Not a simulated GPU, no such model, or a folder that holds an earlier study.
        DeviceError, MeasurementError: From the GPU.
    """
    simulated_gpu(conditions.gpu)  # refuses before a folder is made
    if folder is None:
        return run_study(conditions)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageError(f"cannot make {folder}: {exc.strerror}") from exc
    data, page = folder / "paper.json", folder / PAGE
    for path in (data, page):
        check_output(path, force=force)  # before any work is spent on it
    study = run_study(conditions)
    write_document(data, study, force=force)
    write_text(page, paper_page(study), force=force)
    return study


def paper_page(study: Study) -> str:
    """Return the HTML page of a study."""
    return rendered(
        "paper.html.jinja",
        {"mhz": format_mhz, "number": lambda value, unit: minus(number_text(value, unit))},
        package="underclock.paper",
        basis=basis_of,
        study=study,
        agreement=agreement_text(study),
        evidence_sentence=EVIDENCE_SENTENCES[study.evidence],
        groups=[
            (group, list(rows))
            for group, rows in groupby(study.quoted, key=lambda number: number.group)
        ],
        drawings=[
            (chart, figure(replace(chart, title=f"{chart.title} (ours {study.evidence})")))
            for chart in charts(study)
        ],
        numbers=FIGURE_NUMBERS,
    )


def agreement_text(study: Study) -> str:
    """Say in a sentence how often the same clocks are lowered."""
    agreement = study.agreement
    return (
        f"{agreement.same} of {agreement.kernels} kernels ({agreement.share:.0%}) lower exactly "
        f"the clocks that the paper lowers; {agreement.overlapping} where one clock in common is "
        "enough"
    )


def number_text(value: float | None, unit: str) -> str:
    """Write a number in its unit's digits; a missing one is a dash."""
    if value is None:
        return DASH
    return f"{round(value, 2) + 0.0:{'+.2f' if unit == '%' else 'g'}}"  # + 0.0: no "-0.00"
