"""One self-contained page of ``underclock paper``: ours beside arXiv 2601.08539's numbers.

Which drawing answers to which figure of the paper is inferred from what its results report, for
the figures themselves could not be looked at.
"""

from itertools import groupby

from underclock.paper.charts import charts
from underclock.paper.figures import figure
from underclock.paper.records import Study
from underclock.paper.svg import svg
from underclock.paper.tables import agreement_text, number_text
from underclock.report import wording
from underclock.report.templating import rendered
from underclock.units import format_mhz

CHART_KEYS = ("frontier", "relaxed", "kernels", "validation", "batch", "tensor-parallel")
# Figure of the paper: key of the chart. Inferred.
FIGURE_NUMBERS = {
    3: "frontier",
    4: "relaxed",
    6: "validation",
    7: "batch",
    8: "tensor-parallel",
}


def paper_page(study: Study) -> str:
    """Return the HTML page of a study."""
    return rendered(
        "paper.html.jinja",
        {"mhz": format_mhz, "number": _number},
        package="underclock.paper",
        study=study,
        agreement=agreement_text(study),
        evidence_sentence=wording.EVIDENCE_SENTENCES[study.evidence],
        groups=[
            (group, list(rows))
            for group, rows in groupby(study.quoted, key=lambda number: number.group)
        ],
        drawings=[(chart, figure(chart, study.evidence)) for chart in charts(study)],
        numbers={key: number for number, key in FIGURE_NUMBERS.items()},
    )


def paper_drawings(study: Study) -> dict[str, str]:
    """Return every drawing as SVG, by the chart's key."""
    return {chart.key: svg(chart, study.evidence) for chart in charts(study)}


def _number(value: float | None, unit: str) -> str:
    """Write a number with a true minus sign: a hyphen is too short to be seen."""
    return number_text(value, unit).replace("-", "\N{MINUS SIGN}")
