"""Kernels that share a setting cost what they cost together."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.core.costs.groups import grouped
from underclock.core.costs.table import CostTable
from underclock.records import Clocks, Granularity, Kernel, Pass

granularities = st.sampled_from(Granularity)


@st.composite
def cost_tables(draw: st.DrawFn, *, holes: bool = False) -> CostTable:
    kernels, count = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    missing = random.random((kernels, count)) < (0.3 if holes else 0.0)
    return CostTable(
        kernels=tuple(
            Kernel(name=f"k{k}", pass_=draw(st.sampled_from(Pass))) for k in range(kernels)
        ),
        settings=tuple(Clocks(core_mhz=100 * (s + 1)) for s in range(count)),
        time_s=np.where(missing, math.inf, random.uniform(1.0, 2.0, (kernels, count))),
        energy_j=np.where(missing, math.inf, random.uniform(1.0, 2.0, (kernels, count))),
        baseline=0,
    )


@given(cost_tables(), granularities)
def test_grouping_conserves_time_and_energy(table: CostTable, granularity: Granularity) -> None:
    groups = grouped(table, granularity)

    assert groups.time_s.sum(axis=0) == pytest.approx(table.time_s.sum(axis=0))
    assert groups.energy_j.sum(axis=0) == pytest.approx(table.energy_j.sum(axis=0))


@given(cost_tables(), granularities, st.data())
def test_a_choice_per_group_costs_the_same_spread_over_its_kernels(
    table: CostTable, granularity: Granularity, data: st.DataObject
) -> None:
    groups = grouped(table, granularity)
    settings = st.integers(0, len(table.settings) - 1)
    choice = tuple(data.draw(st.tuples(*[settings] * len(groups.time_s))))

    spread = groups.spread(choice)

    rows = np.arange(len(table.kernels))
    assert table.time_s[rows, spread].sum() == pytest.approx(
        groups.time_s[np.arange(len(choice)), choice].sum()
    )


@given(cost_tables(holes=True), granularities)
def test_a_group_has_a_setting_only_where_every_member_was_measured(
    table: CostTable, granularity: Granularity
) -> None:
    groups = grouped(table, granularity)

    for group in range(len(groups.time_s)):
        members = groups.member == group
        known = np.isfinite(table.time_s[members]).all(axis=0)
        assert (np.isfinite(groups.time_s[group]) == known).all()
        assert (np.isfinite(groups.energy_j[group]) == known).all()


@given(cost_tables())
def test_kernels_of_one_pass_share_a_group_and_of_two_passes_do_not(table: CostTable) -> None:
    member = grouped(table, Granularity.PASS).member

    for k, one in enumerate(table.kernels):
        for j, other in enumerate(table.kernels):
            assert (member[k] == member[j]) == (one.pass_ is other.pass_)


@given(cost_tables())
def test_by_kernel_every_kernel_is_a_group_and_by_step_all_are_one(table: CostTable) -> None:
    kernels = len(table.kernels)

    assert grouped(table, Granularity.KERNEL).member.tolist() == list(range(kernels))
    assert grouped(table, Granularity.STEP).member.tolist() == [0] * kernels
