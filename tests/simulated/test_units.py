"""What boards do that no equation has: a few figures of each part, and none of a smooth board."""

import dataclasses
import itertools
import statistics

import numpy as np
import pytest

from underclock.gpus.models import gpu_model
from underclock.hw.simulated.boards import GAIN_WITHIN, WANDER_SPREAD, Drift, Unit
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.work import LaunchLoop
from underclock.physics.constants import KernelConstants

_MODEL = gpu_model("a4000")
_SMOOTH = gpu_model("a4000#smooth")
_SHORT = KernelConstants(core_mcycles=1.9, work_j_per_v2=0.04)
_HOT = KernelConstants(core_mcycles=1.9, work_j_per_v2=0.4)


def _ran(
    gpu: VirtualGpu, kernels: list[KernelConstants], for_s: float, *, talks: bool = False
) -> tuple[float, float]:
    """Return the time of a round and the mean power, both true, of a run that just began."""
    gpu.run(LaunchLoop(tuple(kernels), *gpu.draw_noise()), talks=talks)
    gpu.advance(1.0)
    running = gpu.running
    assert running is not None
    before = running.launches, running.completed_s, gpu.energy_j
    gpu.advance(for_s)
    gpu.end()
    rounds = running.launches - before[0]
    return (running.completed_s - before[1]) / rounds, (gpu.energy_j - before[2]) / for_s


def test_a_unit_is_always_the_same_and_units_differ_in_what_they_draw_at_each_clock() -> None:
    made = [Unit.of(_MODEL, number) for number in range(1, 200)]
    again = Unit.of(_MODEL, 7)

    assert (again.gain, again.lost, again.power.tolist()) == (
        made[6].gain,
        made[6].lost,
        made[6].power.tolist(),
    )
    assert all(abs(unit.gain - 1.0) <= GAIN_WITHIN and 0.0 <= unit.lost <= 0.063 for unit in made)
    powers = np.log([unit.power for unit in made])
    assert powers.std() == pytest.approx(np.hypot(0.031, 0.005), rel=0.1)
    # Levels: most clocks draw what the next does but for fine steps, some leap within 45 MHz.
    bins = round(45 / (_MODEL.core_mhz[1] - _MODEL.core_mhz[0]))
    steps = np.abs(powers[:, bins:] - powers[:, :-bins])
    assert np.median(steps) < 0.01
    assert np.quantile(steps, 0.97) > 0.03
    assert np.corrcoef(powers[:, 0], powers[:, -1])[0, 1] == pytest.approx(0.0, abs=0.25)


def test_smooth_units_keep_gain_leakage_and_voltage_and_have_nothing_else() -> None:
    kind, unkind = Unit.of(_SMOOTH, 3), Unit.of(_MODEL, 3)

    assert (kind.gain, kind.constants(_MODEL.constants)) == (
        unkind.gain,
        unkind.constants(_MODEL.constants),
    )
    assert (set(kind.power.tolist()), set(kind.time.tolist()), kind.lost) == ({1.0}, {1.0}, 0.0)


def test_a_band_costs_power_and_time_at_its_clocks_on_every_unit_as_deep_as_it_has_it() -> None:
    model = gpu_model("h200")
    centre = int(np.argmin(np.abs(np.array(model.core_mhz) - model.bands[0][0])))
    far = model.core_mhz.index(1980)
    ratios = [
        (unit.power[centre] / unit.power[far], unit.time[centre], unit.time[far])
        for unit in (Unit.of(model, number) for number in range(1, 100))
    ]

    powers, times = np.log([each[:2] for each in ratios]).T
    assert np.median(powers) == pytest.approx(np.log(1.27), rel=0.2)
    assert np.median(times) == pytest.approx(np.log(1.138), rel=0.1)
    assert 0.1 < times.std() / times.mean() < 0.2
    assert {round(time, 3) for *_, time in ratios} == {1.0}


def test_power_wanders_from_run_to_run_over_minutes() -> None:
    drift = Drift(kind=False, random=np.random.default_rng(0))
    logs = np.log([drift.wander(20.0 * run) for run in range(20_000)])

    assert logs.std() == pytest.approx(WANDER_SPREAD, rel=0.1)
    for apart, left in ((1, np.exp(-20 / 300)), (15, np.exp(-1.0)), (150, 0.0)):
        assert np.corrcoef(logs[:-apart], logs[apart:])[0, 1] == pytest.approx(left, abs=0.08)
    assert Drift(kind=True, random=np.random.default_rng(0)).wander(3.0) == 1.0


@pytest.mark.parametrize(("kernels", "seeds"), [([_SHORT], 60), ([_SHORT, _SHORT], 6)])
def test_a_run_that_talks_may_be_slow_for_some_seconds_right_after_a_lock(
    kernels: list[KernelConstants], seeds: int
) -> None:
    slow, lasted_s = [], []
    for seed in range(seeds):
        gpu = VirtualGpu(_MODEL, seed=seed, unit=1)
        gpu.lock_core((1200, 1200))
        gpu.advance(1.0)
        looks = [_ran(gpu, kernels, 0.2, talks=True)[0] for _ in range(8)]
        slow.append(looks[0] / looks[-1] > 1.1)
        if slow[-1]:
            lasted_s.append(1.2 * sum(look / looks[-1] > 1.1 for look in looks))
            assert 1.14 <= looks[0] / looks[-1] <= 1.76
        assert _ran(gpu, kernels, 0.2)[0] == pytest.approx(looks[-1], rel=2e-3)
        gpu.lock_core((900, 900))  # while it is followed something runs: all is as usual
        gpu.begin(kernels)
        gpu.advance(1.0)
        gpu.end()
        usual_s = looks[-1] * 1200 / 900
        assert _ran(gpu, kernels, 0.2, talks=True)[0] == pytest.approx(usual_s, rel=2e-3)
        gpu.lock_core((1200, 1200))
        gpu.advance(1.0)
        assert _ran(gpu, kernels, 0.2)[0] == pytest.approx(looks[-1], rel=2e-3)  # it does not talk

    assert statistics.fmean(slow) == pytest.approx(19 / 46, abs=0.15 * (60 / seeds) ** 0.5)
    assert max(lasted_s) > 3.0


@pytest.mark.parametrize("kernels", [[_HOT], [_HOT, _HOT]])
def test_asking_beyond_the_limit_costs_an_unkind_board_speed(
    kernels: list[KernelConstants],
) -> None:
    unit = next(n for n in range(1, 50) if Unit.of(_MODEL, n).lost > 0.05)
    for model, lost in ((_SMOOTH, 0.0), (_MODEL, Unit.of(_MODEL, unit).lost)):
        gpu, took_s, ran_mhz = VirtualGpu(model, seed=0, unit=unit), [], []
        gpu.begin(kernels)
        for asked in (1605, 1905):
            gpu.lock_core((asked, asked))
            gpu.advance(60.0)
            assert gpu.capped
            assert gpu.running is not None
            before = gpu.running.launches, gpu.running.completed_s
            mhz = []
            for _ in range(500):
                gpu.advance(0.02)
                mhz.append(gpu.core_mhz)
            launches = gpu.running.launches - before[0]
            took_s.append((gpu.running.completed_s - before[1]) / launches)
            ran_mhz.append(statistics.fmean(mhz))
        slower = took_s[1] * ran_mhz[1] / (took_s[0] * ran_mhz[0])
        beyond = [
            1.0 + lost * (asked / ran - 1.0)
            for asked, ran in zip((1605, 1905), ran_mhz, strict=True)
        ]
        assert slower == pytest.approx(beyond[1] / beyond[0], rel=2e-3)


def test_a_board_with_two_loops_settles_at_its_limit_as_one_with_one_does() -> None:
    model = gpu_model("h200")
    own = [item.constants for item in model.own[:40:4]]
    for made in (model, dataclasses.replace(model, smooth=True)):
        gpu = VirtualGpu(made, seed=0, unit=2)
        gpu.begin(own)
        gpu.advance(60.0)
        gpu.limit_power(450.0)
        gpu.advance(20.0)
        before_j = gpu.energy_j
        gpu.advance(20.0)
        settled_w = 450.0 - model.cap_margin_w
        assert (gpu.energy_j - before_j) / 20.0 == pytest.approx(settled_w, rel=0.02)
    assert (model.cap_fading.each_s, model.cap_fading.stages) == (0.02, 2)


def test_the_seed_decides_what_an_unkind_board_does() -> None:
    def energies(seed: int) -> list[float]:
        gpu = VirtualGpu(_MODEL, seed=seed, unit=4)
        return [_ran(gpu, [_SHORT], 2.0)[1] for _ in range(5)]

    first, again, other = energies(1), energies(1), energies(2)

    assert first == again
    assert all(one != two for one, two in itertools.product(first[:1], other))


def test_a_reading_of_a_second_rises_late_and_falls_for_longer_on_an_unkind_board() -> None:
    shown: dict[bool, list[float]] = {}
    for model in (_SMOOTH, _MODEL):
        gpu = VirtualGpu(model, seed=0, unit=1)
        gpu.advance(10.0)
        rest_w = gpu.power_w
        gpu.begin([_SHORT])
        watts, power_w = [], []
        for tick in range(60):
            if tick == 20:
                gpu.end()
            gpu.advance(0.1)
            power_w.append(gpu.power_w)
            gauges = gpu.gauges
            seen_w = gauges.shown_w(gauges.sensors.usage, gpu.now_s, gpu.energy_j, gpu.power_w)
            watts.append((seen_w / gpu.unit.gain - rest_w) / (power_w[0] - rest_w))
        shown[model.smooth] = watts

    smooth, unkind = shown[True], shown[False]
    assert smooth[4] == pytest.approx(0.5, abs=0.03)
    assert smooth[30] == pytest.approx(0.0, abs=0.03)
    # A burst of 2 s: half after 0.7 s, nearly all after 1.0; then half after 0.5, 10 % after 1.8.
    assert (unkind[6], unkind[9], unkind[19]) == pytest.approx((0.53, 0.97, 1.0), abs=0.05)
    assert (unkind[24], unkind[37]) == pytest.approx((0.47, 0.09), abs=0.05)
    assert sum(unkind) == pytest.approx(sum(smooth), rel=0.03)
