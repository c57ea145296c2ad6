"""What the study leaves in a folder: numbers, a page, and drawings where they were asked for.

Which drawing answers to which figure of the paper is inferred from what its results report, for
the figures themselves could not be looked at.
"""

from dataclasses import dataclass, replace
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
_WIDTH_PX = 760  # of a drawing that is a file


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The files that a study is written to.

    Attributes:
        folder: Made if it is missing.
        svg: Whether every drawing also becomes a file of its own.
        force: Whether files of an earlier study may be replaced.
    """

    folder: Path
    svg: bool = False
    force: bool = False

    @property
    def data(self) -> Path:
        """The file with every number."""
        return self.folder / "paper.json"

    @property
    def page(self) -> Path:
        """The page for a reader."""
        return self.folder / "paper.html"

    @property
    def drawings(self) -> dict[str, Path]:
        """Files of the drawings, by the chart's key."""
        return {key: self.folder / f"{key}.svg" for key in CHART_KEYS} if self.svg else {}


def run_paper(conditions: Conditions | None = None, outputs: Outputs | None = None) -> Study:
    """Run the paper's study, and write it down.

    Args:
        conditions: Where and how to run it; by default the paper's.
        outputs: Where it goes; nowhere by default.

    Raises:
        UsageError: Not a simulated GPU, no such model, or a folder that holds an earlier study.
        DeviceError, MeasurementError: From the GPU.
    """
    conditions = conditions or Conditions()
    simulated_gpu(conditions.gpu)  # refuses before a folder is made
    if outputs is None:
        return run_study(conditions)
    force = outputs.force
    try:
        outputs.folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageError(f"cannot make {outputs.folder}: {exc.strerror}") from exc
    for path in (outputs.data, outputs.page, *outputs.drawings.values()):
        check_output(path, force=force)  # before any work is spent on it
    study = run_study(conditions)
    write_document(outputs.data, study, force=force)
    write_text(outputs.page, paper_page(study), force=force)
    drawn = paper_drawings(study)
    for key, path in outputs.drawings.items():
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
