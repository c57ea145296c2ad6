"""The page of evidence about decode says what its samples say."""

import pytest

import decode_page
from pages import EVIDENCE

PAGE = (EVIDENCE / "decode.md").read_text(encoding="utf-8")


def test_what_was_read_is_on_the_page() -> None:
    sets = {name: decode_page.read(name) for name in decode_page.NAMES}
    assert decode_page.auto_table(sets) in PAGE
    assert decode_page.exponents_table(sets) in PAGE


def test_decode_follows_the_core_clock_a_little_and_prefill_steeply() -> None:
    slopes = {n: decode_page.exponent(decode_page.read(n))[0] for n in decode_page.NAMES}
    assert all(slope > 0.5 for name, slope in slopes.items() if name.startswith("prefill"))
    decode = {name: slope for name, slope in slopes.items() if name.startswith("decode")}
    full = decode.pop("decode-b128-c8192")  # nearly all it reads are keys and values
    assert all(0.15 < slope < 0.3 for slope in decode.values())
    assert full < 0.1


@pytest.mark.slow
def test_a_step_is_predicted_from_its_kernels_as_well_as_the_page_says() -> None:
    found = list(decode_page.predictions(decode_page.read("decode-b32-c1024")))
    assert [round(one.core_mhz) for one in found] == [1556, 1604, 1685]
    for one in found:
        assert abs(one.time_off) <= decode_page.WANTED_TIME
        assert abs(one.energy_by_kernels - one.energy) < 2 * one.energy_error
        shown = decode_page.marked(one.energy_off, decode_page.WANTED_ENERGY)
        row = next(line for line in PAGE.splitlines() if f"| {one.core_mhz:.0f} MHz |" in line)
        assert row.endswith(f"| {shown} |")
