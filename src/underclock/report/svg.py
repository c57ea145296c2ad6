"""SVG elements as text, and a whole drawing of them.

Text and lines take the colour of the text around the drawing, so that they follow a page into dark
and print. Text has a halo in the page's colour (``--paper``), so that no line strikes it through.
"""

import html
from collections.abc import Iterable
from dataclasses import dataclass

_FONT_PX, _CHARACTER_PX = 12, 6.7
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle, in pixels."""

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


def document(
    parts: Iterable[str], width_px: float, height_px: float, title: str, attributes: str = ""
) -> str:
    """Return a whole drawing of its parts; ``attributes`` are further ones."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width_px:g} {height_px:g}" '
        f'width="{width_px:g}" height="{height_px:g}" role="img" aria-label="{html.escape(title)}" '
        f'font-family="{_FONT}" font-size="{_FONT_PX}" fill="currentColor" {attributes}>'
        f"{''.join(parts)}</svg>"
    )


def text(x_px: float, y_px: float, words: str, *, anchor: str = "start", bold: bool = False) -> str:
    """Write one line of text with its halo, on its baseline."""
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{px(x_px)}" y="{px(y_px)}" text-anchor="{anchor}"{weight} '
        'stroke="var(--paper, #fff)" stroke-width="4" stroke-linejoin="round" '
        f'paint-order="stroke">{html.escape(words)}</text>'
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


def px(value: float) -> str:
    """Write a place to a hundredth of a pixel."""
    return f"{round(value, 2) + 0.0:g}"
