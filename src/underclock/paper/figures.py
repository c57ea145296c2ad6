"""The drawings of ``underclock paper`` as fragments of HTML that expect plotly.js on the page."""

from underclock.paper.charts import Chart, Series
from underclock.records import Evidence
from underclock.report.drawing import BOTTOM_PX, TOP_PX, blank, fragment, plain

_PLOT_PX = 360
_ROW_PX = 17  # one kernel
_LEGEND_ROW_PX = 21
_LEGEND_COLUMNS = 3
_MARK_PX = {"star": 14, "diamond": 11, "square": 10, "circle": 9}


def figure(chart: Chart, evidence: Evidence) -> str:
    """Draw one chart."""
    # The legend stands under the title, in about three columns on a wide page.
    legend_px = _LEGEND_ROW_PX * -(-len(chart.series) // _LEGEND_COLUMNS)
    plot_px = _ROW_PX * len(chart.y_labels) if chart.y_labels else _PLOT_PX
    height_px = TOP_PX + legend_px + plot_px + BOTTOM_PX
    drawn = blank(f"{chart.title} (ours {evidence})", height_px)
    for series in chart.series:
        drawn.add_scatter(**_trace(series))
    drawn.update_xaxes(title_text=chart.x_title)
    drawn.update_yaxes(title_text=chart.y_title)
    if chart.x_labels:
        drawn.update_xaxes(
            tickvals=list(range(len(chart.x_labels))), ticktext=[plain(t) for t in chart.x_labels]
        )
    if chart.y_labels:
        drawn.update_yaxes(
            tickvals=list(range(len(chart.y_labels))),
            ticktext=[plain(text) for text in chart.y_labels],
            range=(len(chart.y_labels) - 0.4, -0.6),
        )
    drawn.update_layout(
        showlegend=True,
        margin_t=TOP_PX + legend_px,
        legend={"orientation": "h", "x": 0.0, "y": 1.0, "yanchor": "bottom"},
    )
    return fragment(drawn, f"figure-{chart.key}")


def _trace(series: Series) -> dict[str, object]:
    trace: dict[str, object] = {
        "name": plain(series.name),
        "x": [x for x, _ in series.points],
        "y": [y for _, y in series.points],
        "mode": "markers" if series.symbol else "lines",
        "line": {"color": series.colour, "width": 2},
        "hovertemplate": f"{plain(series.name)}<br>%{{customdata}}(%{{x:.4g}}, %{{y:.4g}})"
        "<extra></extra>",
        "customdata": [f"{plain(note)}<br>" for note in series.notes] or [""] * len(series.points),
    }
    if series.symbol:
        trace["marker"] = {
            "color": series.colour,
            "symbol": f"{series.symbol}-open" if series.hollow else series.symbol,
            "size": _MARK_PX[series.symbol],
            "line": {"width": 1.5 if series.hollow else 0.0},
            "opacity": 0.85,
        }
    return trace
