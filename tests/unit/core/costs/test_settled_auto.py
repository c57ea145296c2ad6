"""What auto costs where kernels are known at one pair of clocks only: the step as it ran."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.arrays import Bools
from underclock.core.costs.settled_auto import settle_auto
from underclock.core.costs.table import CostTable
from underclock.errors import DataError
from underclock.records import AUTO, Clocks, Kernel, Sample

LOW = Clocks(core_mhz=600, mem_mhz=5001)
quantities = st.floats(1e-6, 1e3)


def step(time_s: float, energy_j: float) -> Sample:
    return Sample(kernel="step", time_s=time_s, energy_j=energy_j)


def table_of(*costs: tuple[float, float]) -> CostTable:
    """Return a table of kernels with these times and energies, at a low clock and at auto."""
    both = np.array(costs)
    return CostTable(
        kernels=tuple(Kernel(name=f"k{k}") for k in range(len(costs))),
        settings=(LOW, AUTO),
        time_s=both[:, [0, 0]],
        energy_j=both[:, [1, 1]],
        baseline=1,
    )


@st.composite
def settled(draw: st.DrawFn) -> tuple[CostTable, CostTable, tuple[Sample, ...], Bools]:
    """Draw kernels alone and the step, and settle: alone, settled, runs, which were at the cap."""
    costs = draw(st.lists(st.tuples(quantities, quantities), min_size=1, max_size=6))
    alone = table_of(*costs)
    capped = np.array(draw(st.lists(st.booleans(), min_size=len(costs), max_size=len(costs))))
    # A step that took longer than all its kernels is always possible, whichever were at the cap.
    factor = draw(st.floats(1.0, 1.5))
    whole_s, whole_j = factor * alone.auto_time_s, factor * alone.auto_energy_j
    runs = (step(0.99 * whole_s, 0.98 * whole_j), step(1.03 * whole_s, 1.04 * whole_j))
    return alone, settle_auto(alone, runs, capped), runs, capped


@given(settled())
def test_auto_adds_up_to_the_step_as_it_ran(
    drawn: tuple[CostTable, CostTable, tuple[Sample, ...], Bools],
) -> None:
    alone, table, runs, _ = drawn

    assert table.auto_time_s == pytest.approx(math.fsum(run.time_s for run in runs) / 2)
    assert table.auto_energy_j == pytest.approx(math.fsum(run.energy_j for run in runs) / 2)
    assert table.closure is not None
    assert table.closure.time * table.auto_time_s == pytest.approx(alone.auto_time_s)
    assert table.closure.energy * table.auto_energy_j == pytest.approx(alone.auto_energy_j)


@given(settled())
def test_only_kernels_at_the_cap_move_and_all_by_one_factor(
    drawn: tuple[CostTable, CostTable, tuple[Sample, ...], Bools],
) -> None:
    alone, table, _, capped = drawn
    movable = capped if capped.any() else ~capped

    for after, before in ((table.time_s, alone.time_s), (table.energy_j, alone.energy_j)):
        factor = after[:, 1] / before[:, 1]
        assert factor[movable] == pytest.approx(factor[movable][0])
        assert (factor[~movable] == 1.0).all()
        assert (after[:, 0] == before[:, 0]).all()


@pytest.mark.parametrize(("time_s", "energy_j"), [(3.0, 900.0), (9.0, 300.0)])
def test_a_step_cheaper_than_its_kernels_away_from_the_cap_is_an_error(
    time_s: float, energy_j: float
) -> None:
    alone = table_of((4.0, 400.0), (4.0, 440.0))

    with pytest.raises(DataError, match="less than its kernels did one by one") as caught:
        settle_auto(alone, (step(time_s, energy_j),), np.array([False, True]))

    assert "measure again" in caught.value.hint


def test_where_none_was_at_the_cap_all_move() -> None:
    alone = table_of((1.0, 100.0), (3.0, 100.0))

    table = settle_auto(alone, (step(8.0, 100.0),), np.array([False, False]))

    assert table.time_s[:, 1].tolist() == [2.0, 6.0]
