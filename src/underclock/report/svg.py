"""SVG elements as text, and a whole drawing of them.

Text and lines take the colour of the text around the drawing, so that they follow a page into dark
and print. Text has a halo in the page's colour (``--paper``), so that no line strikes it through.
"""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_FONT_PX, _CHARACTER_PX = 12, 6.7
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
_SYMBOL_PX = 5.0


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle that text should keep free."""

    left: float
    top: float
    right: float
    bottom: float

    def moved(self, right: float, down: float) -> "Box":
        """Return it elsewhere."""
        return Box(self.left + right, self.top + down, self.right + right, self.bottom + down)

    def meets(self, other: "Box") -> bool:
        """Whether two rectangles share any place."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


def document(parts: Iterable[str], width_px: float, height_px: float, title: str) -> str:
    """Return a whole drawing of its parts."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width_px:g} {height_px:g}" '
        f'width="{width_px:g}" height="{height_px:g}" role="img" aria-label="{escape(title)}" '
        f'font-family="{_FONT}" font-size="{_FONT_PX}" fill="currentColor">'
        f"{''.join(parts)}</svg>"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How a point is drawn.

    Attributes:
        symbol: ``circle``, ``square``, ``diamond``, ``triangle`` or ``star``.
        colour: As ``#rrggbb``.
        hollow: Whether it is an outline.
        scale: Times the usual size.
    """

    symbol: str
    colour: str
    hollow: bool = False
    scale: float = 1.0


def text(x_px: float, y_px: float, words: str, *, anchor: str = "start", bold: bool = False) -> str:
    """Write one line of text with its halo, on its baseline."""
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{px(x_px)}" y="{px(y_px)}" text-anchor="{anchor}"{weight} '
        'stroke="var(--paper, #fff)" stroke-width="4" stroke-linejoin="round" '
        f'paint-order="stroke">{escape(words)}</text>'
    )


def rectangle(box: Box, paint: str) -> str:
    """Fill a rectangle; ``paint`` is its attributes."""
    return (
        f'<rect x="{px(box.left)}" y="{px(box.top)}" width="{px(box.right - box.left)}" '
        f'height="{px(box.bottom - box.top)}" {paint}/>'
    )


def text_px(words: str) -> float:
    """Return about how wide a line of text is."""
    return _CHARACTER_PX * len(words)


def shortened(words: str, most: int) -> str:
    """Cut long text in the middle, for kernel names differ at both ends."""
    if len(words) <= most:
        return words
    head = (most - 1) // 2
    return f"{words[:head]}\N{HORIZONTAL ELLIPSIS}{words[len(words) - (most - 1 - head) :]}"


def escape(words: str) -> str:
    """Write text so that it is not read as markup, in an element or between quotation marks."""
    return html.escape(words)


def px(value: float) -> str:
    """Write a place to a hundredth of a pixel."""
    return f"{round(value, 2) + 0.0:g}"


def marker(place: tuple[float, float], look: Look, note: str = "") -> str:
    """Draw a symbol; a note is shown on hovering."""
    x_px, y_px = place
    size = _SYMBOL_PX * look.scale
    paint = f'stroke="{look.colour}" stroke-width="1.5" fill="{look.colour}"'
    if look.hollow:  # hovering meets its inside too
        paint = f'stroke="{look.colour}" stroke-width="1.5" fill="none" pointer-events="all"'
    inside = f"<title>{escape(note)}</title>" if note else ""
    if look.symbol == "circle":
        shape = f'circle cx="{px(x_px)}" cy="{px(y_px)}" r="{px(size)}"'
        return f"<{shape} {paint}>{inside}</circle>"
    corners = " ".join(
        f"{px(x_px + size * a)},{px(y_px + size * b)}" for a, b in _CORNERS[look.symbol]
    )
    return f'<polygon points="{corners}" {paint}>{inside}</polygon>'


def _star() -> tuple[tuple[float, float], ...]:
    """Return the corners of a five-pointed star."""
    turns = [(math.pi * n / 5.0, 1.35 if n % 2 == 0 else 0.55) for n in range(10)]
    return tuple((radius * math.sin(turn), -radius * math.cos(turn)) for turn, radius in turns)


_CORNERS: dict[str, Sequence[tuple[float, float]]] = {
    "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    "diamond": ((0.0, -1.25), (1.25, 0.0), (0.0, 1.25), (-1.25, 0.0)),
    "triangle": ((0.0, -1.15), (1.1, 0.85), (-1.1, 0.85)),
    "star": _star(),
}
