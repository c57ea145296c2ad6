"""What the study leaves in a folder: numbers, a page, and drawings where they were asked for.

Which drawing answers to which figure of the paper is inferred from what its results report, for
the figures themselves could not be looked at.
"""

from dataclasses import replace
from itertools import groupby
from pathlib import Path

from underclock.errors import UsageError
from underclock.paper.charts import charts
from underclock.paper.records import Study
from underclock.paper.study import Conditions, run_study, simulated_gpu
from underclock.paper.tables import agreement_text, number_text
from underclock.report.chart import Chart, draw, figure
from underclock.report.page import rendered
from underclock.report.wording import EVIDENCE_SENTENCES, minus
from underclock.store import check_output, write_document, write_text
from underclock.units import format_mhz

CHART_KEYS = ("frontier", "relaxed", "kernels", "validation", "batch", "tensor-parallel")
FIGURE_NUMBERS = {
    "frontier": 3,
    "relaxed": 4,
    "validation": 6,
    "batch": 7,
    "tensor-parallel": 8,
}
"""Figures of the paper, by the key of the chart: inferred."""
PAGE = "paper.html"
_WIDTH_PX = 760  # of a drawing that is a file


def run_paper(
    conditions: Conditions, folder: Path | None, *, svg: bool = False, force: bool = False
) -> Study:
    """Run the paper's study, and write down its numbers and a page.

    Args:
        conditions: Where and how to run it.
        folder: Made if it is missing; ``None`` writes nothing.
        svg: Whether every drawing also becomes a file of its own.

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
    drawings = {key: folder / f"{key}.svg" for key in CHART_KEYS} if svg else {}
    for path in (data, page, *drawings.values()):
        check_output(path, force=force)  # before any work is spent on it
    study = run_study(conditions)
    write_document(data, study, force=force)
    write_text(page, paper_page(study), force=force)
    drawn = paper_drawings(study)
    for key, path in drawings.items():
        write_text(path, drawn[key], force=force)
    return study


def paper_page(study: Study) -> str:
    """Return the HTML page of a study."""
    return rendered(
        "paper.html.jinja",
        {"mhz": format_mhz, "number": lambda value, unit: minus(number_text(value, unit))},
        package="underclock.paper",
        study=study,
        agreement=agreement_text(study),
        evidence_sentence=EVIDENCE_SENTENCES[study.evidence],
        groups=[
            (group, list(rows))
            for group, rows in groupby(study.quoted, key=lambda number: number.group)
        ],
        drawings=[(chart, figure(_titled(chart, study))) for chart in charts(study)],
        numbers=FIGURE_NUMBERS,
    )


def paper_drawings(study: Study) -> dict[str, str]:
    """Return every drawing as SVG, by the chart's key."""
    return {
        chart.key: draw(_titled(chart, study), _WIDTH_PX, alone=True) for chart in charts(study)
    }


def _titled(chart: Chart, study: Study) -> Chart:
    return replace(chart, title=f"{chart.title} (ours {study.evidence})")
