"""Numbers as text: rounding may not turn a number into a nicer one."""

import math

from hypothesis import given
from hypothesis import strategies as st

from underclock.report.wording import change_text, energy_text, gap_text


@given(st.floats(-0.9, 9.0))
def test_a_change_never_reads_as_minus_zero(fraction: float) -> None:
    assert change_text(fraction) != "-0.00 %"


@given(st.floats(0.0, 1.0))
def test_a_gap_is_never_understated(gap: float) -> None:
    assert float(gap_text(gap).split()[0]) / 100.0 >= gap - 1e-12


@given(st.floats(1e-6, 1e10))
def test_an_energy_keeps_three_digits(energy_j: float) -> None:
    number, unit = energy_text(energy_j).split()
    size = {"MJ": 1e6, "kJ": 1e3, "J": 1.0, "mJ": 1e-3, "µJ": 1e-6}[unit]

    assert math.isclose(float(number) * size, energy_j, rel_tol=0.006)
