"""Quantities as text: what is typed, and what is shown."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from underclock.errors import UsageError
from underclock.records import Pass
from underclock.units import (
    format_duration,
    format_mhz,
    format_percent,
    member,
    parse_duration,
    parse_fraction,
    parse_mhz,
)

durations = st.floats(1e-9, 1e9)
SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86400}


@given(st.floats(-1.0, 1.0))
def test_a_fraction_is_read_as_written(value: float) -> None:
    percent = 100.0 * value
    assert parse_fraction(f"{percent}%") == pytest.approx(value)
    assert parse_fraction(f" {percent} % ") == parse_fraction(f"{percent}%")
    if abs(value) <= 0.2:
        assert parse_fraction(str(value)) == value
        assert parse_fraction(f" {value} ") == value


@given(st.floats(0.2, 1e6, exclude_min=True), st.sampled_from([1, -1]))
def test_a_bare_number_that_may_be_meant_in_percent_asks_back(value: float, sign: int) -> None:
    with pytest.raises(UsageError) as caught:
        parse_fraction(str(sign * value))

    assert f"did you mean {sign * value}%?" in caught.value.hint


@pytest.mark.parametrize("text", ["101%", "10000%", "-200%"])
def test_no_fraction_is_above_the_whole(text: str) -> None:
    with pytest.raises(UsageError, match="more than the whole"):
        parse_fraction(text)


@pytest.mark.parametrize(
    "text", ["", "%", "one", "1%%", "1 percent", "nan", "inf", "-inf%", "1e999"]
)
def test_what_is_no_fraction_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="as a fraction") as caught:
        parse_fraction(text)

    assert repr(text) in str(caught.value)
    assert "1%" in caught.value.hint


@given(st.floats(0.0, 1e6), st.sampled_from(sorted(SECONDS)), st.sampled_from(["", " ", "  "]))
def test_a_duration_is_read_in_any_unit(value: float, unit: str, space: str) -> None:
    text = f"{value}{space}{unit}".replace("e+", "e")
    assume(unit or value == 0)

    assert parse_duration(text) == pytest.approx(value * SECONDS[unit])
    assert parse_duration(text.upper()) == parse_duration(text)


@given(st.integers(1, 10**6))
def test_a_bare_number_is_no_duration_but_0(value: int) -> None:
    assert parse_duration("0") == 0
    assert parse_duration(f"{value}s") == value
    with pytest.raises(UsageError, match="it has no unit") as caught:
        parse_duration(str(value))

    assert f"did you mean {value}ms, {value}s" in caught.value.hint


@pytest.mark.parametrize(
    "text",
    ["", "s", "fast", "-1s", "1 year", "1s 2s", "1,5s", "nan", "inf", "1e999", "1e999d", "٣s"],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="as a duration") as caught:
        parse_duration(text)

    assert repr(text) in str(caught.value)
    assert all(unit in caught.value.hint for unit in SECONDS)


@given(durations)
def test_a_duration_that_is_shown_can_be_typed(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=0.005)


@given(st.none() | st.integers(1, 999_999))
def test_a_clock_that_is_shown_can_be_typed(mhz: int | None) -> None:
    assert parse_mhz(format_mhz(mhz)) == mhz
    assert parse_mhz(f"  {format_mhz(mhz).upper()} ") == mhz


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "1.5", "1500 MHz", "fast", "1e3", "٣", "²", "9" * 5000, "autos"]
)
def test_what_is_no_clock_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="as a clock") as caught:
        parse_mhz(text)

    assert "auto" in caught.value.hint


@given(st.floats(-10.0, 10.0), st.integers(0, 4))
def test_a_percentage_has_its_sign_and_its_digits(fraction: float, digits: int) -> None:
    text = format_percent(fraction, digits=digits)

    number = text.removesuffix(" %")
    assert text == f"{number} %"
    assert number[0] in "+-"
    assert float(number) == pytest.approx(100.0 * fraction, abs=0.51 * 10.0**-digits)
    assert len(number.partition(".")[2]) == digits


def test_a_member_of_a_closed_set_is_found_by_its_text() -> None:
    assert member(Pass, "forward", "pass") is Pass.FORWARD
    assert member(Pass, Pass.BACKWARD, "pass") is Pass.BACKWARD
    with pytest.raises(ValueError, match="unknown pass 'foward'; did you mean 'forward'"):
        member(Pass, "foward", "pass")
