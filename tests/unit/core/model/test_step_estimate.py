"""Costs of a step as it runs, from noisy samples of kernels and the step at auto."""

import dataclasses
import math

import msgspec
import numpy as np
import pytest

import steered_gpu
from made_boards import GPU, KERNELS, ORDER, made_board, true_costs, true_step
from underclock.core.model.costs import DrawnCosts
from underclock.core.model.estimate import Estimate, estimate
from underclock.core.model.sample_rows import offered_settings
from underclock.core.model.sample_sets import check_values
from underclock.core.steering import clock_range
from underclock.core.step.power_capped_step import settled_step, step_cost
from underclock.errors import DataError
from underclock.records import (
    ALONE,
    AUTO,
    Accounting,
    Clocks,
    Mix,
    SampleSet,
    Window,
)
from windows import having, with_step

_MEM_MHZ, _BOOST_MHZ, _STEADY_C = 9251, 1890, 62.0
_CORES = (900, 1200, 1500, 1680, 1785, _BOOST_MHZ)


@pytest.fixture(scope="module")
def campaign() -> SampleSet:
    return made_board(1, cores=_CORES, mems=[None], listed=_CORES)


@pytest.fixture(scope="module")
def found(campaign: SampleSet) -> Estimate:
    return estimate(campaign)


@pytest.mark.slow
def test_auto_is_told_from_kernels_within_what_is_known_of_them(found: Estimate) -> None:
    table = found.costs.table
    settled = settled_step(table, np.full(len(ORDER), table.baseline))

    assert table.accounting is Accounting.STEP
    assert table.closure is not None
    assert table.closure.time == pytest.approx(1.0, abs=3e-3)
    assert table.closure.energy == pytest.approx(1.0, abs=6e-3)
    assert np.average(settled.core_mhz, weights=settled.time_s) == pytest.approx(1740, abs=15)
    assert (table.auto_time_s, table.auto_energy_j) == pytest.approx(true_step(GPU, 1740), rel=1e-3)


@pytest.mark.parametrize("core_mhz", [900, 1200, 1500, 1680])
def test_a_clock_below_the_cap_changes_the_step_as_physics_says(
    found: Estimate, core_mhz: int
) -> None:
    setting = found.costs.table.settings.index(Clocks(core_mhz=core_mhz))
    change = found.costs.predicted_change(np.full(len(KERNELS), setting))
    auto_s, auto_j = true_step(GPU, 1740)
    time_s, energy_j = true_step(GPU, core_mhz)

    assert abs(change.time_change - (time_s / auto_s - 1.0)) < 3 * change.time_spread
    heat = dataclasses.replace(found.costs.table, heat=None)
    cool = step_cost(heat, np.full(len(ORDER), setting))
    assert abs(cool.energy_change - (energy_j / auto_j - 1.0)) < 3 * change.energy_spread
    assert change.time_spread < 0.006
    # The step draws less than at auto, so it runs cooler than the samples were taken at.
    assert change.energy_change < cool.energy_change


def test_a_schedule_is_judged_as_the_same_choice_per_kernel_is(found: Estimate) -> None:
    setting = np.array([0, 1, 2, 3, 2, 1])
    per_kernel = found.costs.predicted_change(setting)
    schedule = found.costs.predicted_schedule(setting[list(ORDER)])

    assert dataclasses.astuple(schedule) == pytest.approx(dataclasses.astuple(per_kernel))
    mixed = found.costs.predicted_schedule(np.array([*setting, *[found.costs.table.baseline] * 6]))
    assert 0.0 < mixed.time_spread < 0.01


@pytest.mark.slow
def test_what_the_model_misses_of_auto_is_not_promised_of_others(campaign: SampleSet) -> None:
    plain = estimate(campaign)
    off = tuple(
        msgspec.structs.replace(s, time_s=1.05 * s.time_s, energy_j=1.05 * s.energy_j)
        for s in campaign.in_situ
    )
    missed = estimate(having(campaign, in_situ=off))
    slow = np.zeros(len(KERNELS), dtype=np.int64)

    assert max(plain.costs.step_error) < 0.005
    assert missed.costs.step_error[0] == pytest.approx(math.log(1.05), abs=0.02)
    assert missed.costs.predicted_change(slow).time_spread > 0.03


def test_what_the_cap_makes_of_draws_is_as_unsure_as_they_scatter(found: Estimate) -> None:
    table = found.costs.table
    drawn = DrawnCosts.of(table, found.posterior.drawn(64, seed=1))
    costs = dataclasses.replace(found.costs, boards=drawn)
    slow, auto = np.zeros((2, len(KERNELS)), dtype=np.int64)
    auto[:] = table.baseline
    change = costs.predicted_change(slow)
    away = drawn.away(table, slow[list(ORDER)]).std(axis=0)

    assert costs.time_variance(slow) is None
    assert costs.predicted_change(auto).intervals == ((-0.0, 0.0), (-0.0, 0.0))
    assert change.uneven is not None
    errors = (1.0 + change.time_change) * found.costs.step_error[0]
    assert change.time_spread == pytest.approx(math.hypot(away[0], errors), rel=0.25)
    assert change.time_change == found.costs.predicted_change(slow).time_change


def _cut_off(campaign: SampleSet, reached: int) -> SampleSet:
    """Return a campaign that was ended before it reached the last kernels."""
    names = tuple(KERNELS)[:reached]
    at_auto = [true_costs(GPU, name, 1740, _MEM_MHZ)[0] for name in KERNELS]
    step_s, step_j = true_step(GPU, 1740)
    timed = Window(
        kernel="",
        mix=Mix(),
        core_mhz=1740.0,
        core_spread_mhz=0.0,
        time_s=step_s,
        energy_j=step_j,
        kernel_s=tuple(at_auto),
        window_s=1.0,
        temperature_c=_STEADY_C,
    )
    return having(
        campaign, samples=tuple(s for s in campaign.samples if s.kernel in names), mixed=(timed,)
    )


@pytest.mark.slow
@pytest.mark.parametrize("core_mhz", [1200, 1680])
def test_of_kernels_that_were_not_reached_less_is_promised_and_it_is_kept(
    campaign: SampleSet, found: Estimate, core_mhz: int
) -> None:
    cut = estimate(_cut_off(campaign, 4))
    sure, unsure = (
        each.costs.predicted_change(
            np.full(len(KERNELS), each.costs.table.settings.index(Clocks(core_mhz=core_mhz)))
        )
        for each in (found, cut)
    )

    assert cut.costs.table.accounting is Accounting.STEP
    assert any(
        "'k4' and 1 more were never run alone" in words for words in cut.costs.table.warnings
    )
    assert unsure.time_spread > 2 * sure.time_spread
    assert unsure.energy_spread > 2 * sure.energy_spread
    assert abs(unsure.time_change - sure.time_change) < 2 * unsure.time_spread
    assert abs(unsure.energy_change - sure.energy_change) < 2 * unsure.energy_spread


@pytest.fixture(scope="module")
def samples() -> SampleSet:
    return steered_gpu.campaign(steered_gpu.Synthetic(seed=1), most=50)


def test_of_steered_clocks_those_within_reach_are_settings(samples: SampleSet) -> None:
    lowest, highest = clock_range(samples) or (0.0, 0.0)
    outside = (Clocks(core_mhz=int(lowest) - 15), Clocks(core_mhz=int(highest) + 15))
    memory = (Clocks(core_mhz=int(highest), mem_mhz=5001), Clocks(mem_mhz=5001))
    within = Clocks(core_mhz=int(lowest))
    asked = (AUTO, *outside, *memory, within, Clocks(core_mhz=int(highest)))
    offered = offered_settings(msgspec.structs.replace(samples, settings=asked), AUTO)

    assert offered == (within, Clocks(core_mhz=int(highest)))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"kernel": "another"}, "is no kernel of the step"),
        ({"kernel_s": ()}, "has 0 durations instead of 1"),
        ({"kernel": "", "kernel_s": ()}, "the step with co-load has 0 durations instead of 5"),
        ({"energy_j": 1e9}, "W"),
        ({"core_mhz": 1e6}, "MHz"),
    ],
)
def test_measurements_with_coload_that_cannot_be_are_refused(
    samples: SampleSet, changed: dict[str, object], words: str
) -> None:
    beside = next(w for w in samples.mixed if w.kernel and w.mix != ALONE)
    bad = msgspec.structs.replace(beside, **{"spin_mhz": None, **changed})

    with pytest.raises(DataError, match=words):
        check_values(msgspec.structs.replace(samples, windows=(bad,)))


@pytest.mark.parametrize("waited_for", [0.0, 0.5])
def test_what_launches_beside_others_draw_is_the_same_at_all_clocks(
    samples: SampleSet, waited_for: float
) -> None:
    kernels = [
        msgspec.structs.replace(kernel, waited_for=waited_for if kernel.name == "softmax" else 1.0)
        for kernel in samples.kernels
    ]
    table = estimate(with_step(samples, kernels=tuple(kernels))).costs.table
    at = list(steered_gpu.KERNELS).index("softmax")

    assert table.fixed_j[at] > 0.0
    assert (np.delete(table.fixed_j, at) == 0.0).all()
    known = np.isfinite(table.energy_j[at])
    assert (table.energy_j[at, known] > table.fixed_j[at]).all()
    assert (np.ptp(table.time_s[at, known]) == 0.0) == (waited_for == 0.0)
