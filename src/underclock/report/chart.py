"""A drawing as plain data: series of points on two axes, for `svg` to draw.

The palette is Okabe and Ito's, which stays apart for colour-blind readers; series differ in symbol
as well as in colour.
"""

from dataclasses import dataclass

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
VERMILION, SKY, GREY = "#D55E00", "#56B4E9", "#7f7f7f"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points that belong together.

    Attributes:
        name: In the legend.
        points: Positions, x and y; a line breaks where y is not a number.
        colour: As ``#rrggbb``.
        symbol: ``circle``, ``square``, ``diamond``, ``triangle`` or ``star``; empty for a line.
        hollow: Whether symbols are drawn as outlines.
        large: Whether symbols are drawn larger than others.
        labelled: Whether the name stands beside the points instead of in the legend.
        notes: What to say of each point on hovering; empty for its name and position.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    colour: str
    symbol: str = ""
    hollow: bool = False
    large: bool = False
    labelled: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shade:
    """A part of a chart that is shaded, from a place on the x axis to its end."""

    start: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One drawing.

    Attributes:
        key: Name of its file, and of its place on the page.
        title: What it shows.
        caption: How to read it.
        x_title: Of the axis.
        y_title: Of the axis.
        series: In order of drawing.
        x_labels: Words in place of numbers, at 0, 1, 2, …; empty for numbers.
        y_labels: Words in place of numbers, from the top; empty for numbers.
        signed: Whether the numbers on the axes have signs, as changes have.
        x_limits: Both ends of the x axis; ``None`` leaves them to the points.
        shade: What is shaded; ``None`` for nothing.
        plot_px: How high the plot is, where numbers stand beside it.
    """

    key: str
    title: str
    caption: str = ""
    x_title: str
    y_title: str
    series: tuple[Series, ...]
    x_labels: tuple[str, ...] = ()
    y_labels: tuple[str, ...] = ()
    signed: bool = True
    x_limits: tuple[float, float] | None = None
    shade: Shade | None = None
    plot_px: int = 330
