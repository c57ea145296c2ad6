"""Charts as SVG: no script, no style sheet needed, and equal input gives equal bytes."""

import itertools
import math
from collections.abc import Callable, Iterable

from underclock.report.axes import Axis, padded, round_ticks, word_limits, word_ticks
from underclock.report.chart import Chart, Series, Shade
from underclock.report.svg import (
    Box,
    Look,
    document,
    marker,
    px,
    rectangle,
    shortened,
    text,
    text_px,
)

_WIDE_PX, _NARROW_PX = 880, 350
_LINE_PX = 18
_ROW_PX = 17  # one word of the y axis
_RIGHT_PX, _BOTTOM_PX, _TICK_PX = 12, 44, 6
_MOST_Y_LABEL = 24  # characters
_LARGE = 1.5
_SWATCH_PX = 24
_ABOVE_PX = 6  # how far a name may stand out of the plot


def draw(chart: Chart, width_px: int, *, alone: bool = False) -> str:
    """Draw a chart.

    Args:
        chart: What to draw.
        width_px: Of the drawing; text is made for it to be shown at about this width.
        alone: Whether it is a file of its own, with its title and on white, not part of a page.
    """
    swatches, plot_top = _legend(chart.series, width_px, _LINE_PX + 4 if alone else 0)
    plot_px = _ROW_PX * len(chart.y_labels) if chart.y_labels else chart.plot_px
    height_px = plot_top + plot_px + _BOTTOM_PX
    y = _y_axis(chart, plot_top, plot_px)
    left_px = 28 + max(text_px(tick.text) for tick in y.ticks)
    x = _x_axis(chart, left_px, width_px - _RIGHT_PX)
    parts = [*swatches, *_shade(chart, x, y), *_grid(chart, x, y)]
    parts += [part for series in chart.series for part in _series(series, x, y)]
    parts += _labels(chart, x, y)
    if alone:
        ground = rectangle(Box(0, 0, width_px, height_px), 'fill="#fff"')
        parts = [ground, text(0, 14, chart.title, bold=True), *parts]
    return document(parts, width_px, height_px, chart.title)


def both(drawn: Callable[[int], str]) -> str:
    """Return a drawing for wide pages and one for telephones; a page shows the one that fits."""
    return f'<div class="wide">{drawn(_WIDE_PX)}</div><div class="narrow">{drawn(_NARROW_PX)}</div>'


def _y_axis(chart: Chart, top_px: float, plot_px: float) -> Axis:
    if chart.y_labels:
        ticks = word_ticks([shortened(words, _MOST_Y_LABEL) for words in chart.y_labels])
        low, high = word_limits(chart.y_labels)
        return Axis(low=low, high=high, start_px=top_px, end_px=top_px + plot_px, ticks=ticks)
    values = [y for series in chart.series for _, y in series.points if not math.isnan(y)]
    low, high = padded(values)
    ticks = round_ticks(low, high, 6, signed=chart.signed)
    return Axis(low=low, high=high, start_px=top_px + plot_px, end_px=top_px, ticks=ticks)


def _x_axis(chart: Chart, left_px: float, right_px: float) -> Axis:
    if chart.x_labels:
        ticks, (low, high) = word_ticks(chart.x_labels), word_limits(chart.x_labels)
    else:
        low, high = chart.x_limits or padded([x for s in chart.series for x, _ in s.points])
        most = 8 if right_px - left_px > 400 else 4  # noqa: PLR2004 - a telephone's width
        ticks = round_ticks(low, high, most, signed=chart.signed)
    return Axis(low=low, high=high, start_px=left_px, end_px=right_px, ticks=ticks)


def _shade(chart: Chart, x: Axis, y: Axis) -> list[str]:
    """Shade what is beyond a place; its name stands at the top, where no frontier comes."""
    if chart.shade is None:
        return []
    top, bottom = sorted((y.start_px, y.end_px))
    box = Box(x.px(chart.shade.start), top, x.end_px, bottom)
    words = text(x.end_px - 6, top + 15, chart.shade.text, anchor="end")
    return [rectangle(box, 'fill-opacity="0.07"'), f'<g opacity="0.75">{words}</g>']


def _grid(chart: Chart, x: Axis, y: Axis) -> list[str]:
    """Draw the lines behind the points, and write numbers and titles beside them."""
    top, bottom = sorted((y.start_px, y.end_px))
    lines = [f"M{px(x.px(t.value))} {px(top)}V{px(bottom)}" for t in x.ticks]
    lines += [f"M{px(x.start_px)} {px(y.px(t.value))}H{px(x.end_px)}" for t in y.ticks]
    parts = [
        f'<path d="{"".join(lines)}" fill="none" stroke="currentColor" stroke-opacity="0.16"/>'
    ]
    parts += [text(x.px(t.value), bottom + 16, t.text, anchor="middle") for t in x.ticks]
    parts += [text(x.start_px - _TICK_PX, y.px(t.value) + 4, t.text, anchor="end") for t in y.ticks]
    half_px = text_px(chart.x_title) / 2  # a long title is moved so that its end is not cut off
    middle = min((x.start_px + x.end_px) / 2, x.end_px + _RIGHT_PX - half_px)
    parts.append(text(middle, bottom + 36, chart.x_title, anchor="middle"))
    if chart.y_title:
        middle = (top + bottom) / 2
        turned = text(0, 0, chart.y_title, anchor="middle")
        parts.append(f'<g transform="translate(12 {px(middle)}) rotate(-90)">{turned}</g>')
    return parts


def _series(series: Series, x: Axis, y: Axis) -> list[str]:
    places = [(x.px(a), y.px(b)) for a, b in series.points]
    if not series.symbol:
        look = f'fill="none" stroke="{series.colour}" stroke-width="2.5" stroke-linejoin="round"'
        lines = [
            " ".join(f"{px(a)},{px(b)}" for a, b in run)
            for whole, run in itertools.groupby(places, lambda place: not math.isnan(place[1]))
            if whole
        ]
        return [f'<polyline points="{line}" {look}/>' for line in lines]
    notes = series.notes or tuple(f"{a:.4g}, {b:.4g}" for a, b in series.points)
    return [
        marker(place, _look(series), f"{series.name}: {note}")
        for place, note in zip(places, notes, strict=True)
    ]


def _look(series: Series) -> Look:
    return Look(
        symbol=series.symbol,
        colour=series.colour,
        hollow=series.hollow,
        scale=_LARGE if series.large else 1.0,
    )


def _legend(series: Iterable[Series], width_px: float, top_px: float) -> tuple[list[str], float]:
    """Draw what is not labelled in the drawing itself.

    Returns:
        The parts, and where the plot may start.
    """
    parts, x_px, y_px = [], 0.0, top_px + 14.0
    for one in series:
        if one.labelled:
            continue
        entry_px = _SWATCH_PX + text_px(one.name) + 14
        if x_px and x_px + entry_px > width_px:
            x_px, y_px = 0.0, y_px + _LINE_PX
        if one.symbol:
            parts.append(marker((x_px + 10, y_px - 4), _look(one)))
        else:
            line = f'd="M{px(x_px)} {px(y_px - 4)}h18"'
            parts.append(f'<path {line} stroke="{one.colour}" stroke-width="2.5"/>')
        parts.append(text(x_px + _SWATCH_PX, y_px, one.name))
        x_px += entry_px
    return parts, y_px + 12 if parts else top_px + 8.0


def _labels(chart: Chart, x: Axis, y: Axis) -> list[str]:
    """Name points beside them, up and to the right, where no other point or name stands."""
    kept_free = [] if chart.shade is None else [_named_shade(chart.shade, x, y)]
    kept_free += [_around(x.px(a), y.px(b)) for s in chart.series if s.symbol for a, b in s.points]
    named = [
        (x.px(a), y.px(b), series)
        for series in chart.series
        if series.labelled
        for a, b in series.points
    ]
    parts = []
    for x_px, y_px, series in sorted(named, key=lambda each: -each[1]):
        width_px = text_px(series.name)
        left = min(x_px + 9, x.end_px - width_px)
        wanted = Box(left, y_px - 19, left + width_px, y_px - 6)
        box = _free(wanted, kept_free, min(y.start_px, y.end_px), x.end_px)
        kept_free.append(box)
        parts.append(text(box.left, box.bottom - 2, series.name, bold=series.large))
    return parts


def _free(wanted: Box, kept_free: list[Box], top: float, right: float) -> Box:
    """Return the nearest place where nothing stands: further up, then aside, then down."""
    moves = [(aside, -up) for aside in range(0, 200, 20) for up in range(80)]
    for aside, down in (*moves, *((0, down) for down in range(20, 200))):
        box = wanted.moved(aside, down)
        inside = box.top >= top - _ABOVE_PX and box.right <= right + 1
        if inside and not any(box.meets(other) for other in kept_free):
            return box
    return wanted


def _named_shade(shade: Shade, x: Axis, y: Axis) -> Box:
    """Return where the name of the shaded part stands."""
    top = min(y.start_px, y.end_px)
    return Box(x.end_px - 6 - text_px(shade.text), top, x.end_px, top + 18)


def _around(x_px: float, y_px: float) -> Box:
    """Return what a symbol covers."""
    return Box(x_px - 6, y_px - 6, x_px + 6, y_px + 6)
