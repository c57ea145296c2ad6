"""Charts: series of points on two axes as plain data, and their drawing as SVG.

No script and no style sheet is needed, and equal input gives equal bytes. The palette is Okabe and
Ito's, which stays apart for colour-blind readers; series differ in symbol as well as in colour.
Text and lines take the colour of the surrounding text, so that a drawing follows a page into dark
mode and print. Text has a halo in the page's colour (``--paper``), so that no line strikes it out.
"""

import html
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from underclock.report.wording import MINUS

_FONT_PX, _CHARACTER_PX = 12, 6.7
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


class Box(NamedTuple):
    """A rectangle, in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "Box") -> bool:
        """Whether two rectangles share any place."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


def text(x_px: float, y_px: float, words: str, *, anchor: str = "start", bold: bool = False) -> str:
    """Write one line of text with its halo, on its baseline."""
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{px(x_px)}" y="{px(y_px)}" text-anchor="{anchor}"{weight} '
        'stroke="var(--paper, #fff)" stroke-width="4" stroke-linejoin="round" '
        f'paint-order="stroke">{html.escape(words)}</text>'
    )


def text_px(words: str) -> float:
    """Return about how wide a line of text is."""
    return _CHARACTER_PX * len(words)


def px(value: float) -> str:
    """Write a place to a hundredth of a pixel."""
    return f"{round(value, 2) + 0.0:g}"


BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
VERMILION, SKY, GREY = "#D55E00", "#56B4E9", "#7f7f7f"

_WIDE_PX, _NARROW_PX = 880, 350
_LINE_PX = 18
_PLOT_PX = 330
_RIGHT_PX, _BOTTOM_PX, _TICK_PX = 12, 44, 6
_SYMBOL_PX, _LARGE = 5.0, 1.5
_SWATCH_PX = 24
_MANY = 100  # points of a series, of which none has a note of its own
_CAPS = {"circle": "round", "square": "square"}  # that a line without length has
_ABOVE_PX = 6  # how far a name may stand out of the plot
_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
_PAD = 0.06  # of the span, so that no point lies on the frame

_STAR = [(math.pi * n / 5.0, 1.35 if n % 2 == 0 else 0.55) for n in range(10)]
_CORNERS: dict[str, Sequence[tuple[float, float]]] = {
    "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    "diamond": ((0.0, -1.25), (1.25, 0.0), (0.0, 1.25), (-1.25, 0.0)),
    "triangle": ((0.0, -1.15), (1.1, 0.85), (-1.1, 0.85)),
    "star": [(radius * math.sin(turn), -radius * math.cos(turn)) for turn, radius in _STAR],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points that belong together."""

    name: str
    points: tuple[tuple[float, float], ...]  # x and y; a line breaks where y is not a number
    colour: str  # as ``#rrggbb``
    symbol: str = ""  # circle, square, diamond, triangle or star; empty for a line
    dashed: bool = False  # whether its line is
    large: bool = False
    labelled: bool = False  # whether the name stands next to the points, not in the legend
    # what to say of each point on hovering; empty for its name and position
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One drawing."""

    key: str  # name of its place on the page
    title: str
    x_title: str
    y_title: str
    series: tuple[Series, ...]
    signed: bool = True  # whether the numbers on the axes have signs, as changes have
    x_limits: tuple[float, float] | None = None  # of the axis; ``None`` leaves them to the points
    # where on the x axis it is shaded to its end, and what is written there
    shade: tuple[float, str] | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear axis, from ``low`` at ``start_px`` to ``high`` at ``end_px``.

    Ticks are places on it, and what is written there.
    """

    low: float
    high: float
    start_px: float
    end_px: float
    ticks: tuple[tuple[float, str], ...]

    @property
    def written(self) -> str:
        """Both ends, as values and as places, for a script that draws on the same axes."""
        return " ".join(f"{end:.6g}" for end in (self.low, self.high, self.start_px, self.end_px))

    def px(self, value: float) -> float:
        """Return where a value lies."""
        part = (value - self.low) / (self.high - self.low)
        return self.start_px + part * (self.end_px - self.start_px)


def padded(values: Sequence[float]) -> tuple[float, float]:
    """Return limits around all values; around a single one, limits that still differ."""
    low, high = min(values), max(values)
    pad = _PAD * (high - low) or 0.5 * abs(low) or 1.0
    return low - pad, high + pad


def round_ticks(
    low: float, high: float, most: int, *, signed: bool
) -> tuple[tuple[float, str], ...]:
    """Return round numbers between two limits, at most so many, all with as many decimals.

    Positive numbers get a plus sign where signs are asked for.
    """
    sign = "+" if signed else ""
    least = (high - low) / most
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in _ROUND if factor * power >= least * (1 - 1e-9))
    decimals = next((n for n in range(12) if math.isclose(round(step, n), step, rel_tol=1e-9)), 12)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    values = [n * step for n in range(first, last + 1)]
    written = (f"{value:{sign}.{decimals}f}".replace("-", MINUS) for value in values)
    return tuple(
        (value, words if round(value, decimals) else "0")
        for value, words in zip(values, written, strict=True)
    )


def draw(chart: Chart, width_px: int) -> str:
    """Draw a chart of a width; text is made for it to be shown at about that."""
    swatches, plot_top = _legend(chart.series, width_px)
    height_px = plot_top + _PLOT_PX + _BOTTOM_PX
    low, high = padded([y for s in chart.series for _, y in s.points if not math.isnan(y)])
    y = Axis(
        low, high, plot_top + _PLOT_PX, plot_top, round_ticks(low, high, 6, signed=chart.signed)
    )
    left_px = 28 + max(text_px(words) for _, words in y.ticks)
    right_px = width_px - _RIGHT_PX
    low, high = chart.x_limits or padded([x for s in chart.series for x, _ in s.points])
    most = 8 if right_px - left_px > 400 else 4  # noqa: PLR2004 - a telephone's width
    x = Axis(low, high, left_px, right_px, round_ticks(low, high, most, signed=chart.signed))
    # Shade what is beyond a place; its name stands at the top, where no frontier comes.
    shade: list[str] = []
    if chart.shade is not None:
        top, bottom = sorted((y.start_px, y.end_px))
        start, said = chart.shade
        words = text(x.end_px - 6, top + 15, said, anchor="end")
        size = f'width="{px(x.end_px - x.px(start))}" height="{px(bottom - top)}"'
        shade = [
            f'<rect x="{px(x.px(start))}" y="{px(top)}" {size} fill-opacity="0.07"/>',
            f'<g opacity="0.75">{words}</g>',
        ]
    parts = [*swatches, *shade, *_grid(chart, x, y)]
    parts += [part for series in chart.series for part in _series(series, x, y)]
    parts += _labels(chart, x, y)
    title = html.escape(chart.title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width_px:g} {height_px:g}" '
        f'width="{width_px:g}" height="{height_px:g}" role="img" aria-label="{title}" '
        f'font-family="{_FONT}" font-size="{_FONT_PX}" fill="currentColor" '
        f'data-x="{x.written}" data-y="{y.written}">{"".join(parts)}</svg>'
    )


def figure(chart: Chart) -> str:
    """Return a drawing for wide pages and one for telephones; a page shows the one that fits."""
    wide, narrow = draw(chart, _WIDE_PX), draw(chart, _NARROW_PX)
    return f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'


def _grid(chart: Chart, x: Axis, y: Axis) -> list[str]:
    top, bottom = sorted((y.start_px, y.end_px))
    lines = [f"M{px(x.px(value))} {px(top)}V{px(bottom)}" for value, _ in x.ticks]
    lines += [f"M{px(x.start_px)} {px(y.px(value))}H{px(x.end_px)}" for value, _ in y.ticks]
    parts = [
        f'<path d="{"".join(lines)}" fill="none" stroke="currentColor" stroke-opacity="0.16"/>'
    ]
    parts += [text(x.px(value), bottom + 16, words, anchor="middle") for value, words in x.ticks]
    left_px = x.start_px - _TICK_PX
    parts += [text(left_px, y.px(value) + 4, words, anchor="end") for value, words in y.ticks]
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
        look = f'fill="none" stroke-linejoin="round" {_stroke(series)}'
        lines = [
            " ".join(f"{px(a)},{px(b)}" for a, b in run)
            for whole, run in itertools.groupby(places, lambda place: not math.isnan(place[1]))
            if whole
        ]
        return [f'<polyline points="{line}" {look}/>' for line in lines]
    if len(places) > _MANY and not series.notes:
        # Draw many symbols as one path; what each says on hovering would be longer than the page.
        size = _SYMBOL_PX / 2
        if series.symbol in _CAPS:
            dots = "".join(f"M{px(a)} {px(b)}h0" for a, b in places)
            look = f'stroke-width="{2 * size:g}" stroke-linecap="{_CAPS[series.symbol]}"'
            markers = f'<path d="{dots}" stroke="{series.colour}" {look}/>'
        else:
            shape = [(size * a, size * b) for a, b in _CORNERS[series.symbol]]
            moves = [(c - a, d - b) for (a, b), (c, d) in itertools.pairwise(shape)]
            (a0, b0), outline = shape[0], "".join(f"l{px(a)} {px(b)}" for a, b in moves)
            path = "".join(f"M{px(a + a0)} {px(b + b0)}{outline}" for a, b in places)
            markers = f'<path d="{path}" fill="{series.colour}"/>'
        return [markers]
    notes = series.notes or tuple(f"{a:.4g}, {b:.4g}" for a, b in series.points)
    return [
        _marker(place, series, f"{series.name}: {note}")
        for place, note in zip(places, notes, strict=True)
    ]


def _stroke(series: Series) -> str:
    dashed = ' stroke-dasharray="7 4"' if series.dashed else ""
    return f'stroke="{series.colour}" stroke-width="2.5"{dashed}'


def _marker(place: tuple[float, float], series: Series, note: str = "") -> str:
    """Draw a series' symbol; a note is shown on hovering."""
    x_px, y_px = place
    size = _SYMBOL_PX * (_LARGE if series.large else 1.0)
    paint = f'stroke="{series.colour}" stroke-width="1.5" fill="{series.colour}"'
    inside = f"<title>{html.escape(note)}</title>" if note else ""
    if series.symbol == "circle":
        shape = f'circle cx="{px(x_px)}" cy="{px(y_px)}" r="{px(size)}"'
        return f"<{shape} {paint}>{inside}</circle>"
    corners = " ".join(
        f"{px(x_px + size * a)},{px(y_px + size * b)}" for a, b in _CORNERS[series.symbol]
    )
    return f'<polygon points="{corners}" {paint}>{inside}</polygon>'


def _legend(series: Iterable[Series], width_px: float) -> tuple[list[str], float]:
    parts, x_px, y_px = [], 0.0, 14.0
    for one in series:
        if one.labelled:
            continue
        entry_px = _SWATCH_PX + text_px(one.name) + 14
        if x_px and x_px + entry_px > width_px:
            x_px, y_px = 0.0, y_px + _LINE_PX
        if one.symbol:
            parts.append(_marker((x_px + 10, y_px - 4), one))
        else:
            line = f'd="M{px(x_px)} {px(y_px - 4)}h18"'
            parts.append(f"<path {line} {_stroke(one)}/>")
        parts.append(text(x_px + _SWATCH_PX, y_px, one.name))
        x_px += entry_px
    return parts, y_px + 12 if parts else 8.0


def _labels(chart: Chart, x: Axis, y: Axis) -> list[str]:
    """Write names of points up and to the right, where no other point or name stands."""
    top = min(y.start_px, y.end_px)
    kept_free = []
    if chart.shade is not None:
        kept_free.append(Box(x.end_px - 6 - text_px(chart.shade[1]), top, x.end_px, top + 18))
    for series in chart.series:
        if series.symbol:
            places = [(x.px(a), y.px(b)) for a, b in series.points]
            kept_free += [Box(a - 6, b - 6, a + 6, b + 6) for a, b in places]
    named = [(x.px(a), y.px(b), s) for s in chart.series if s.labelled for a, b in s.points]
    parts = []
    for x_px, y_px, series in sorted(named, key=lambda each: -each[1]):
        width_px = text_px(series.name)
        left = min(x_px + 9, x.end_px - width_px)
        wanted = Box(left, y_px - 19, left + width_px, y_px - 6)
        box = _free(wanted, kept_free, top, x.end_px)
        kept_free.append(box)
        parts.append(text(box.left, box.bottom - 2, series.name, bold=series.large))
    return parts


def _free(wanted: Box, kept_free: list[Box], top: float, right: float) -> Box:
    """Return the nearest place where nothing stands: further up, then aside, then down."""
    moves = [(aside, -up) for aside in range(0, 200, 20) for up in range(80)]
    for aside, down in (*moves, *((0, down) for down in range(20, 200))):
        left, top_px, right_px, bottom = wanted
        box = Box(left + aside, top_px + down, right_px + aside, bottom + down)
        inside = box.top >= top - _ABOVE_PX and box.right <= right + 1
        if inside and not any(box.meets(other) for other in kept_free):
            return box
    return wanted
