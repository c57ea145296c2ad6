"""Steering campaigns on a GPU made of physics alone."""

import math

import msgspec
import numpy as np
import pytest

from made_up_mixes import made_point
from steered_gpu import (
    BOOST_MHZ,
    GPU,
    KERNELS,
    MEM_MHZ,
    SHAPE,
    WARM_C,
    Synthetic,
    campaign,
    takes_s,
)
from underclock.core.design import Wanted
from underclock.core.model.estimate import estimate
from underclock.core.model.sample_rows import rows_of
from underclock.core.steering import (
    SteeringAgenda,
    clock_range,
    steering_notes,
)
from underclock.core.steering.mixing import METER_S
from underclock.core.steering.power_peak import (
    HeaterAtBoost,
    below_peak,
    peak_seen_w,
)
from underclock.core.steering.subtract import step_draws, subtract_coload
from underclock.physics.costs import busy_w, duration_s
from underclock.records import ALONE, Mix, SampleSet


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_steered_is_what_would_be_measured_at_held_clocks(seed: int) -> None:
    samples = campaign(Synthetic(seed=seed))
    fit = estimate(samples)
    reach = clock_range(samples)

    assert reach is not None
    assert reach[0] < 1600.0
    assert reach[1] == BOOST_MHZ
    core_mhz = np.array([float(clocks.core_mhz or 0) for clocks in fit.posterior.settings])
    assert core_mhz.min() == pytest.approx(reach[0], abs=15.0)
    assert core_mhz.max() == BOOST_MHZ
    assert fit.can.any(axis=1).all()
    spread = np.sqrt(fit.posterior.variance(1.0, 1.0))
    off = []
    for k, kernel in enumerate(samples.kernels):
        part = KERNELS[kernel.name]
        time_s = duration_s(GPU, part, core_mhz, np.full_like(core_mhz, MEM_MHZ))
        power_w = busy_w(GPU, part, core_mhz, np.full_like(core_mhz, MEM_MHZ), WARM_C)
        at = fit.can[k] & (power_w < 695.0)  # above its cap a kernel does not run there alone
        assert fit.posterior.log_s[k, at] == pytest.approx(np.log(time_s[at]), abs=0.005)
        energy = fit.posterior.log_s[k] + fit.posterior.log_w[k]
        off.append((energy - np.log(time_s * power_w))[at])
        assert (np.abs(off[-1]) < 4 * spread[k, at] + 0.005).all()
    # A few kernels leave it open how power follows the clock; docs/evidence/steering has a step.
    assert np.median(np.abs(np.concatenate(off))) < 0.03


@pytest.mark.slow
def test_a_campaign_ends_when_it_is_sure(steered: SampleSet) -> None:
    few, many = (campaign(Synthetic(seed=1), goal=goal) for goal in (0.05, 0.004))

    assert len(few.mixed) < len(many.mixed) <= len(steered.mixed)
    assert SteeringAgenda.of(few, SHAPE).error <= 0.05
    assert SteeringAgenda.of(many, SHAPE).error < SteeringAgenda.of(few, SHAPE).error


@pytest.mark.slow
def test_what_comes_next_follows_from_what_is_on_file() -> None:
    whole = campaign(Synthetic(seed=3, noise=0.0))
    for cut in (0, 3, 6, 12, len(whole.mixed) - 1):
        part = msgspec.structs.replace(whole, windows=whole.mixed[:cut])
        wanted = SteeringAgenda.of(part, SHAPE).next(takes_s, 0.003)
        assert wanted is not None
        assert (wanted.kernel, wanted.mix) == (whole.mixed[cut].kernel, whole.mixed[cut].mix)


@pytest.mark.slow
def test_a_gpu_that_never_reaches_its_cap_is_measured_at_boost() -> None:
    samples = campaign(Synthetic(limit_w=5000.0))
    fit = estimate(samples)

    assert {s.core_mhz for s in samples.mixed} == {BOOST_MHZ}
    assert [c.core_mhz for c in fit.posterior.settings] == [1980]
    (sentence,) = steering_notes(samples)
    assert "nothing steers this GPU" in sentence
    assert "power limit (5000 W)" in sentence
    assert sentence in fit.costs.table.warnings


@pytest.mark.parametrize("drift", [0.0, 0.01])
def test_a_clock_that_moves_before_launches_are_timed_spoils_nothing(drift: float) -> None:
    gpu = Synthetic(noise=0.0, drift=drift, seed=4)
    coload, kernels = gpu.coload(0.001, 0.003, 0.006, 0.01), gpu.samples().kernels
    for mix in (Mix(launches=2, idle_s=METER_S), Mix(launches=4, hot=1, idle_s=METER_S)):
        sample = gpu.run(Wanted("product", mix))
        timed, drawn = subtract_coload([sample], kernels, coload)
        for one, told_s in ((timed, timed.time_s), (drawn, drawn.time_s)):
            true_s = float(duration_s(GPU, KERNELS["product"], one.core_mhz, MEM_MHZ))
            assert told_s == pytest.approx(true_s, rel=2e-3)
        true_w = float(busy_w(GPU, KERNELS["product"], drawn.core_mhz, MEM_MHZ, WARM_C))
        assert drawn.power_w == pytest.approx(true_w, rel=5e-3)
        assert (timed.power_windows, drawn.time_windows) == (0.0, 0.0)
    (draw,) = step_draws([gpu.run(Wanted("", Mix(launches=2, idle_s=METER_S)))], kernels, coload)
    step_s, step_j = gpu.drawn("", ALONE, draw.core_mhz)
    assert draw.power_w == pytest.approx(step_j / step_s, rel=5e-3)
    assert draw.spread_w < 0.02 * draw.power_w


@pytest.mark.slow
def test_a_peak_of_power_that_no_clock_shows_is_seen_and_left_out() -> None:
    samples = campaign(Synthetic(seed=7, peak_w=950.0))
    rows = rows_of(samples)

    assert rows.peak_w == pytest.approx(950.0, rel=0.01)
    drawn = rows.windows[1] > 0.0
    assert np.exp(rows.log[1, drawn]).max() < 0.98 * 950.0
    for k, kernel in enumerate(samples.kernels):
        told = (rows.kernel == k) & (rows.windows[0] > 0.0) & (rows.core_mhz < 1700.0)
        true_s = duration_s(GPU, KERNELS[kernel.name], rows.core_mhz[told], MEM_MHZ)
        assert rows.log[0, told] == pytest.approx(np.log(true_s), abs=0.005)


def test_readers_are_told_what_steering_cannot_see(steered: SampleSet) -> None:
    lowest = min(s.at_mhz for s in steered.mixed if s.kernel_s)
    (sentence,) = steering_notes(steered)

    assert f"from {lowest:.0f} to 1980 MHz" in sentence
    assert "memory clocks" in sentence
    assert steering_notes(msgspec.structs.replace(steered, windows=())) == ()


_STUCK, _FREE = 0.1, 0.8  # exponents


@pytest.mark.parametrize(
    ("piled_w", "heater", "peak_w"),
    [
        (970.0, None, 970.0),
        (math.inf, HeaterAtBoost(960.0, _STUCK), 960.0),
        (970.0, HeaterAtBoost(960.0, _STUCK), 960.0),
        (950.0, HeaterAtBoost(960.0, _STUCK), 950.0),
        (920.0, HeaterAtBoost(960.0, _STUCK), 960.0),  # kernels that are alike below the peak
        (
            970.0,
            HeaterAtBoost(960.0, _FREE, 0.85),
            math.inf,
        ),  # alike, and nothing holds the heater
        (970.0, HeaterAtBoost(960.0, 0.45, 0.85), 970.0),  # held on the way from the last rung
        (970.0, HeaterAtBoost(960.0, _FREE), 970.0),  # nobody knows how it follows the clock else
        (970.0, HeaterAtBoost(800.0, _FREE, 0.85), 970.0),  # too cool to be held
        (970.0, HeaterAtBoost(720.0, _STUCK), 970.0),  # the cap's own
    ],
)
def test_a_peak_is_one_for_kernels_and_heater(
    piled_w: float, heater: HeaterAtBoost | None, peak_w: float
) -> None:
    assert peak_seen_w(piled_w, heater, 700.0) == peak_w


def test_what_a_peak_held_is_left_out_and_what_ran_below_it_stays() -> None:
    cool, hot = made_point("cool", 400.0), made_point("a", 965.0)
    below, timed = made_point("a", 800.0, core_mhz=1700.0), made_point("a", None, core_mhz=1700.0)
    fast = made_point("a", None, core_mhz=1950.0)  # timed where power goes beyond the peak
    unseen = made_point("b", 970.0), made_point("b", None, core_mhz=1500.0)  # never seen below it

    assert below_peak([cool, hot, below, timed, fast, *unseen], 970.0) == (cool, below, timed)
