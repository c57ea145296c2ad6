"""What the page's figures share: an empty figure, the palette, escaping, and the way to HTML.

Text and grid colours are left to the page's style sheet, which knows whether the reader wants
light or dark. The palette is Okabe and Ito's, which stays apart for colour-blind readers.
"""

import html
from typing import Any

import plotly.graph_objects as go
import plotly.io

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
VERMILION, SKY, GREY = "#D55E00", "#56B4E9", "#7f7f7f"
TOP_PX, BOTTOM_PX = 90, 56
_BUTTONS_PX = 28  # plotly lays its buttons over the top right corner; titles start below
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


def blank(title: str, height_px: int) -> go.Figure:
    """Return an empty figure in the page's style."""
    figure = go.Figure()
    axis: dict[str, Any] = {"automargin": True, "zeroline": False, "showgrid": True}
    figure.update_layout(
        template="none",
        title={
            "text": title,
            "font": {"size": 15},
            "x": 0.0,
            "xanchor": "left",
            "y": 1.0,
            "yanchor": "top",
            "pad": {"t": _BUTTONS_PX},
        },
        height=height_px,
        margin={"l": 52, "r": 12, "t": TOP_PX, "b": BOTTOM_PX},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": _FONT, "size": 12},
        hoverlabel={"bgcolor": "#1b1f24", "font": {"color": "#ffffff", "size": 12}},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": BLUE},
        showlegend=False,
        xaxis=axis,
        yaxis=axis,
    )
    return figure


def plain(text: str) -> str:
    """Escape what plotly would read as markup; it knows no entity for a quotation mark."""
    return html.escape(text, quote=False)


def fragment(figure: go.Figure, div_id: str, *, zoom: bool = True) -> str:
    """Return the figure alone; a fixed id keeps equal input at equal bytes.

    The buttons are listed, not the unwanted ones removed: plotly offers one that uploads the
    figure, and a later plotly may offer more.
    """
    buttons = [["toImage"], ["zoom2d", "pan2d", "autoScale2d", "resetScale2d"]]
    text: str = plotly.io.to_html(
        figure,
        config={
            "displaylogo": False,
            "responsive": True,
            "modeBarButtons": buttons if zoom else buttons[:1],
        },
        include_plotlyjs=False,
        full_html=False,
        div_id=div_id,
    )
    return text
