"""The drawings of ``underclock paper`` as SVG files, with matplotlib where it is installed.

plotly would need a browser to write them.
"""

import importlib
import io
from types import ModuleType
from typing import TYPE_CHECKING

from underclock.errors import NotSupportedError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from underclock.paper.charts import Chart, Series
    from underclock.records import Evidence

_WIDTH_IN, _HEIGHT_IN = 7.0, 4.5
_ROW_IN = 0.16
_MARKERS = {"circle": "o", "square": "s", "diamond": "D", "star": "*"}
_AREAS_PT2 = {"circle": 26, "square": 30, "diamond": 34, "star": 90}
# Equal input gives equal bytes: no date, and identifiers that do not depend on the process.
_STYLE = {"svg.hashsalt": "underclock", "svg.fonttype": "none", "font.size": 9.0}


def require() -> ModuleType:
    """Return matplotlib.

    Raises:
        NotSupportedError: It is not installed.
    """
    try:
        return importlib.import_module("matplotlib")
    except ImportError as exc:
        raise NotSupportedError(
            "SVG figures need matplotlib, which is not installed",
            hint="in a clone of underclock: pip install '.[figures]'; or leave --svg away",
        ) from exc


def svg(chart: "Chart", evidence: "Evidence") -> str:
    """Draw one chart.

    Raises:
        NotSupportedError: matplotlib is not installed.
    """
    matplotlib = require()
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and slow to load

    height_in = 1.5 + _ROW_IN * len(chart.y_labels) if chart.y_labels else _HEIGHT_IN
    with matplotlib.rc_context(_STYLE):
        drawn = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
        axes = drawn.add_subplot()
        for series in chart.series:
            _add(axes, series)
        axes.set_title(f"{chart.title} (ours {evidence})", loc="left", fontsize=10)
        axes.set_xlabel(chart.x_title)
        axes.set_ylabel(chart.y_title)
        if chart.x_labels:
            axes.set_xticks(range(len(chart.x_labels)), chart.x_labels)
        if chart.y_labels:
            axes.set_yticks(range(len(chart.y_labels)), chart.y_labels)
            axes.set_ylim(len(chart.y_labels) - 0.4, -0.6)
        axes.grid(visible=True, linewidth=0.4, alpha=0.5)
        axes.set_axisbelow(True)
        drawn.legend(loc="outside lower center", ncols=3, fontsize=7, frameon=False)
        buffer = io.StringIO()
        drawn.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _add(axes: "Axes", series: "Series") -> None:
    x, y = [x for x, _ in series.points], [y for _, y in series.points]
    if not series.symbol:
        axes.plot(x, y, color=series.colour, linewidth=1.5, label=series.name)
        return
    axes.scatter(
        x,
        y,
        s=_AREAS_PT2[series.symbol],
        marker=_MARKERS[series.symbol],
        facecolors="none" if series.hollow else series.colour,
        edgecolors=series.colour,
        linewidths=1.0,
        alpha=0.85,
        label=series.name,
        zorder=3,
    )
