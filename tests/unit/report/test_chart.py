"""Charts as SVG: round numbers beside the axes, and names that nothing strikes through."""

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.report.chart import (
    BLUE,
    ORANGE,
    Chart,
    Series,
    draw,
    round_ticks,
)
from underclock.report.wording import MINUS

SVG = "{http://www.w3.org/2000/svg}"
limits = st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6)).map(lambda x: (x[0], x[0] + x[1]))
NASTY = "<b>&\"'"


def chart(*series: Series) -> Chart:
    return Chart(key="k", title="title", x_title="x", y_title="y", series=series)


def named(name: str, x: float, y: float) -> Series:
    return Series(name=name, points=((x, y),), colour=ORANGE, symbol="square", labelled=True)


def elements(text: str, tag: str) -> list[ET.Element]:
    return list(ET.fromstring(text).iter(f"{SVG}{tag}"))  # noqa: S314 - our own


@given(limits, st.integers(2, 12))
def test_ticks_are_round_lie_within_and_are_told_apart(
    ends: tuple[float, float], most: int
) -> None:
    low, high = ends

    ticks = round_ticks(low, high, most, signed=True)

    span = high - low
    assert all(low - 1e-6 * span <= value <= high + 1e-6 * span for value, _ in ticks)
    assert len({words for _, words in ticks}) == len(ticks) <= most + 1
    for value, words in ticks:
        written = float(words.replace(MINUS, "-"))
        assert math.isclose(written, value, rel_tol=1e-6, abs_tol=1e-6 * span)


def test_markup_in_a_name_is_text() -> None:
    text = draw(replace(chart(named(NASTY, 1.0, 1.0)), title=NASTY), 400)

    assert any(element.text == NASTY for element in elements(text, "text"))
    assert any(element.text == f"{NASTY}: 1, 1" for element in elements(text, "title"))
    assert ET.fromstring(text).get("aria-label") == NASTY  # noqa: S314


@pytest.mark.parametrize("width_px", [350, 880])
def test_names_of_points_that_coincide_stand_apart_and_within_the_drawing(width_px: int) -> None:
    names = ["auto", "best fixed clock", "each pass", "each kernel, alone", "each kernel, together"]
    line = Series(name="frontier", points=((0.0, 0.0), (5.0, -20.0)), colour=BLUE)
    crowded = [named(name, 0.0, 0.01 * n) for n, name in enumerate(names)]
    shaded = replace(chart(line, *crowded), shade=(1.0, "over the time budget"))

    found = [e for e in elements(draw(shaded, width_px), "text") if e.text in {*names}]

    places = [(float(e.get("x", 0)), float(e.get("y", 0)), len(e.text or "")) for e in found]
    assert len(places) == len(names)
    for n, (x, y, length) in enumerate(places):
        assert y > 12
        assert x + 6 * length <= width_px
        for other_x, other_y, other_length in places[:n]:
            beside = x > other_x + 6 * other_length or other_x > x + 6 * length
            assert abs(y - other_y) >= 12 or beside


def test_no_number_is_written_that_a_browser_cannot_read() -> None:
    series = Series(name="s", points=((0.1, -1e-9), (1 / 3, 2.0)), colour=BLUE, symbol="star")

    text = draw(chart(series), 880)

    assert not re.search(r'"-0"|nan|inf|e-\d', re.sub(r"<title>.*?</title>", "", text))


def test_a_line_breaks_where_there_is_nothing_to_draw() -> None:
    points = ((0.0, 900.0), (1.0, 900.0), (1.0, math.nan), (2.0, math.nan), (2.0, 1500.0))
    line = Series(name="core clock", points=(*points, (3.0, 1500.0)), colour=BLUE)
    drawing = draw(Chart(key="k", title="t", x_title="s", y_title="MHz", series=(line,)), 800)

    assert drawing.count("<polyline") == 2
    assert "nan" not in drawing
