"""A step with a collective beside its products: what it costs, and what a plan makes of it.

Truth is physics: all launches draw what they draw, and the step takes as long as what it waits for.
"""

import dataclasses
import math
from functools import cache

import msgspec
import numpy as np
import pytest

from made_boards import GPU
from steps_beside import AUTO_MHZ, MEM_MHZ, ORDER, STEADY_C, campaign_beside, step_beside, taken
from underclock.core.model.costs import Costs
from underclock.core.model.estimate import Estimate, estimate
from underclock.core.planning.best_choice import Goal
from underclock.core.planning.clock_changes import Rules, sequence_problem
from underclock.core.planning.latency_constrained import achieved, as_schedule
from underclock.core.planning.strategies import SolvedStrategies, solve_strategies
from underclock.core.step.cost_table import cost_table
from underclock.core.step.power_capped_step import auto_core_mhz
from underclock.errors import DataError
from underclock.physics.costs import idle_w
from underclock.records import Strategy
from underclock.records.latencies import LatencyTable
from windows import having


@cache
def _estimate(true: float, told: float) -> Estimate:
    return estimate(campaign_beside(true, told))


def _found(true: float, told: float) -> Costs:
    return _estimate(true, told).costs


@pytest.mark.untraced
@pytest.mark.parametrize("share", [0.0, 0.4])
def test_kernels_add_up_to_a_step_that_does_not_wait_for_all_of_them(share: float) -> None:
    closure = _found(share, share).table.closure

    assert closure is not None
    assert closure.time == pytest.approx(1.0, abs=6e-3)
    assert closure.energy == pytest.approx(1.0, abs=6e-3)


@cache
def _solved() -> SolvedStrategies:
    found = _found(0.0, 0.0)
    return solve_strategies(found.table, Goal(max_slowdown=0.02), found)


def test_a_promise_is_kept_and_rests_on_what_is_waited_for() -> None:
    found, setting = _found(0.0, 0.0), _solved().settings[Strategy.KERNEL_GLOBAL]
    change = found.predicted_change(setting)
    time_s = energy_j = 0.0
    for k in ORDER:
        core_mhz = found.table.settings[setting[k]].core_mhz or AUTO_MHZ
        each_s, each_w = taken(k, core_mhz)
        if k == 5:
            each_w -= float(idle_w(GPU, core_mhz, MEM_MHZ, STEADY_C))
        time_s += each_s * (k != 5)
        energy_j += each_s * each_w
    auto_s, auto_j = step_beside(AUTO_MHZ, 0.0)

    assert change.energy_change < -0.05
    assert time_s / auto_s - 1.0 == pytest.approx(change.time_change, abs=3 * change.time_spread)
    # A slower neighbour slows it too, which saves what no plan claims.
    assert -0.01 < energy_j / auto_j - 1.0 - change.energy_change < 0.005
    others = setting.copy()
    others[5] = 0
    assert found.predicted_change(others).energy_change == pytest.approx(change.energy_change)


@pytest.mark.untraced
def test_no_change_of_clocks_is_spent_on_it() -> None:
    found = _found(0.0, 0.0)
    rules = Rules(latencies=LatencyTable.constant(2e-5), max_slowdown=0.02)
    problem = sequence_problem(found.table, ORDER, rules)
    arm, schedule, _ = achieved(found.table, problem, list(_solved().settings.values()), found)
    drawn = as_schedule(
        found.table, problem, schedule, latencies=rules.latencies, wording="a constant one"
    )

    assert np.flatnonzero(problem.blocked).tolist() == [2, 8]
    assert arm.energy_change is not None
    assert arm.energy_change < -0.03
    assert schedule.switches > 2
    assert (schedule.choice[[2, 8]] == schedule.choice[[1, 7]]).all()
    assert math.fsum(drawn.launch_s) == pytest.approx(step_beside(AUTO_MHZ, 0.0)[0], rel=0.03)
    at_auto = dict.fromkeys(range(len(found.table.kernels)), AUTO_MHZ)
    # Noise of power, 0.4 %, alone moves that clock by 5 MHz from one set of samples to another.
    assert auto_core_mhz(found.table) == pytest.approx(at_auto, abs=10.0)
    assert auto_core_mhz(dataclasses.replace(found.table, power_cap=None)) == {}


def test_a_step_that_draws_no_more_than_what_it_does_not_wait_for_is_refused() -> None:
    campaign = campaign_beside(0.0, 0.0)
    little = tuple(msgspec.structs.replace(s, energy_j=0.1) for s in campaign.in_situ)

    with pytest.raises(
        DataError, match=r"cost 0.1 s or J, no more than the 0.\d+ of launches"
    ) as no:
        estimate(having(campaign, in_situ=little))
    assert no.value.hint


def test_a_step_that_waits_for_nothing_is_refused() -> None:
    campaign = campaign_beside(0.0, 0.0)
    none = tuple(msgspec.structs.replace(kernel, waited_for=0.0) for kernel in campaign.kernels)

    with pytest.raises(DataError, match="waits for none of its kernels") as refused:
        cost_table(msgspec.structs.replace(campaign, kernels=none))
    assert refused.value.hint
