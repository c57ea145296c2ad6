"""What a choice of clocks costs, kernel by kernel and of the whole step."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawn_costs import cost_tables
from score import cost_at
from underclock.core.planning.best_choice import Goal, choices
from underclock.core.planning.strategies import compare_strategies
from underclock.core.step.cost_table import CostTable
from underclock.records import AUTO, Clocks, Kernel, Strategy


@given(cost_tables(), st.sampled_from([0.0, 0.01, 0.1, 0.4, 0.9]))
def test_choices_and_their_cost_add_up_to_the_arm(table: CostTable, budget: float) -> None:
    compared = compare_strategies(table, Goal(max_slowdown=budget))
    (arm,) = (arm for arm in compared.arms if arm.name is Strategy.KERNEL_GLOBAL)

    chosen = choices(table, compared.settings[Strategy.KERNEL_GLOBAL])
    again = cost_at(table, {name: choice.clocks for name, choice in chosen.items()})

    assert again == arm.cost
    for k, kernel in enumerate(table.kernels):
        choice = chosen[kernel.name]
        column = table.settings.index(choice.clocks)
        auto_s, auto_j = table.time_s[k, table.baseline], table.energy_j[k, table.baseline]
        assert (choice.auto_time_s, choice.auto_energy_j) == (auto_s, auto_j)
        assert auto_s * (1 + choice.time_change) == pytest.approx(table.time_s[k, column])
        assert auto_j * (1 + choice.energy_change) == pytest.approx(table.energy_j[k, column])
    saved_j = table.auto_energy_j - (arm.energy_j or 0.0)
    assert sum(choice.saved_j for choice in chosen.values()) == pytest.approx(saved_j, abs=1e-9)


def test_clocks_at_which_a_kernel_was_not_measured_cannot_be_costed() -> None:
    low = Clocks(core_mhz=300)
    table = CostTable(
        kernels=(Kernel(name="a"), Kernel(name="b")),
        settings=(low, AUTO),
        time_s=np.array([[1.0, 1.0], [math.inf, 1.0]]),
        energy_j=np.array([[1.0, 1.0], [math.inf, 1.0]]),
        baseline=1,
    )

    for wanted in (
        {"a": low, "b": low},  # b has no row there
        {"a": low, "b": Clocks(core_mhz=1)},  # nobody has
        {"a": low},  # nothing is said of b
    ):
        with pytest.raises(KeyError) as caught:
            cost_at(table, wanted)
        assert caught.value.args == ("b",)
