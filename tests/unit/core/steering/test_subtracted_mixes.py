"""What is left of a mix once its co-load is subtracted, and how sure that is."""

import math

import msgspec
import pytest

from steered_gpu import BOOST_MHZ, GPU, HOT, KERNELS, MEM_MHZ, SHAPE, WARM_C, Synthetic, takes_s
from underclock.core.design import Wanted
from underclock.core.model.sample_rows import CannotFitError, rows_of
from underclock.core.model.sample_sets import check_values
from underclock.core.steering import IDLING, SteeringAgenda, steering_notes
from underclock.core.steering.agenda import PowerLine
from underclock.core.steering.coload import CoLoad
from underclock.core.steering.subtract import subtract_coload
from underclock.physics.costs import busy_w, idle_w
from underclock.records import ALONE, Clocks, Mix, SampleSet, Window


def test_clocks_that_hunt_are_told_and_count_less(steered: SampleSet) -> None:
    wild = msgspec.structs.replace(steered.mixed[-1], core_spread_mhz=80.0)
    of_step = msgspec.structs.replace(steered.mixed[0], core_spread_mhz=60.0)
    samples = msgspec.structs.replace(steered, windows=(of_step, *steered.mixed[1:-1], wild))
    coload = CoLoad.of(samples.mixed, SHAPE, 1.0)
    calm, hunts = (
        subtract_coload([one], samples.kernels, coload)[-1] for one in (steered.mixed[-1], wild)
    )
    (unmetered,) = subtract_coload(
        [msgspec.structs.replace(wild, spin_mhz=None)], samples.kernels, coload
    )

    assert unmetered.time_windows == pytest.approx(0.25)
    assert hunts.power_windows == pytest.approx(0.25 * calm.power_windows)
    assert f"hunted in 2 of {len(samples.mixed)} measurements" in steering_notes(samples)[1]
    assert repr(wild.kernel) in steering_notes(samples)[1]
    assert (
        "of the step by 60 MHz"
        in steering_notes(msgspec.structs.replace(steered, windows=(of_step, *steered.mixed[1:])))[
            1
        ]
    )


def test_what_is_left_of_a_mix_is_the_kernels() -> None:
    gpu = Synthetic(noise=0.0)
    coload, kernels = gpu.coload(0.001, 0.003, 0.006, 0.01), gpu.samples().kernels
    for mix in (ALONE, Mix(launches=2, idle_s=0.002), Mix(launches=4, hot=1)):
        sample = gpu.run(Wanted("softmax", mix))
        left = subtract_coload([sample], kernels, coload)[-1]
        power_w = float(busy_w(GPU, KERNELS["softmax"], sample.at_mhz, MEM_MHZ, WARM_C))

        assert left.time_s == sample.kernel_s[0]
        assert left.power_w == pytest.approx(power_w, rel=0.02)
        assert 0.0 < left.power_windows <= 1.0


def test_idling_below_boost_is_as_sure_as_a_part_of_the_change() -> None:
    gpu = Synthetic(noise=0.0)
    coload = CoLoad.of([gpu.run(Wanted("", IDLING))], SHAPE, 1.0)
    here, below = (coload.idle_w(mhz, 1.0, WARM_C) for mhz in (BOOST_MHZ, 1500.0))

    assert here is not None
    assert below is not None
    assert here.mean_w == pytest.approx(float(idle_w(GPU, BOOST_MHZ, MEM_MHZ, WARM_C)))
    assert below.mean_w < here.mean_w
    assert below.total_w > (here.mean_w - below.mean_w) / 4 > here.total_w
    true_w = float(idle_w(GPU, 1500.0, MEM_MHZ, WARM_C))
    assert abs(below.mean_w - true_w) < 2 * below.total_w


def test_idling_at_held_clocks_is_measured_where_it_is_needed() -> None:
    gpu = Synthetic(noise=0.0)
    held = gpu.run(Wanted("", IDLING), asked=Clocks(core_mhz=1500))
    coload = CoLoad.of([gpu.run(Wanted("", IDLING)), held], SHAPE, 1.0)
    draw = coload.idle_w(1500.0, 1.0, WARM_C)

    assert draw is not None
    assert draw.mean_w == pytest.approx(float(idle_w(GPU, 1500.0, MEM_MHZ, WARM_C)))
    assert draw.total_w == pytest.approx(0.004 * draw.mean_w)


def test_the_heater_is_less_sure_outside_of_where_it_ran() -> None:
    gpu = Synthetic(seed=5)
    coload = gpu.coload(0.001, 0.003, 0.006)
    inside, outside = (coload.heater_w(mhz, 1.0) for mhz in (1600.0, 1300.0))

    assert inside is not None
    assert outside is not None
    assert inside.mean_w == pytest.approx(
        float(busy_w(GPU, HOT, 1600.0, MEM_MHZ, WARM_C)), rel=0.02
    )
    assert outside.spread_w > 5 * inside.spread_w


def test_nothing_is_subtracted_with_coload_that_was_never_measured() -> None:
    gpu = Synthetic()
    nobody = CoLoad.of([], SHAPE, 1.0)
    kernels = gpu.samples().kernels
    for mix in (Mix(launches=2, idle_s=0.002), Mix(launches=4, hot=1)):
        (one,) = subtract_coload([gpu.run(Wanted("copy", mix))], kernels, nobody)
        assert (one.power_w, one.power_windows) == (None, 0.0)
        assert one.time_windows == 1.0
    assert nobody.idle_w(1500.0, 1.0, WARM_C) is None
    # Nor is the heater known where it idled too, and idling is not.
    thinned = gpu.run(Wanted("", Mix(launches=0, hot=1, idle_s=0.01)))
    assert CoLoad.of([thinned], SHAPE, 1.0).heater_w(1900.0, 1.0) is None


def test_a_mix_of_almost_nothing_but_coload_tells_no_power() -> None:
    gpu = Synthetic()
    tiny = gpu.run(Wanted("tiny", Mix(hot=5)))
    (point,) = subtract_coload([tiny], gpu.samples().kernels, gpu.coload())

    assert point.power_w is None


def test_a_power_is_the_less_known_the_further_away_it_was_measured() -> None:
    unseen = PowerLine()
    once = unseen.after(1500.0, 1e-4)
    twice = once.after(1900.0, 1e-4)

    assert once.variance(1500.0) == pytest.approx(1e-4, rel=1e-3)
    assert once.variance(1900.0) > 50 * once.variance(1500.0)
    assert twice.variance(1700.0) < 2e-4
    assert twice.noise == pytest.approx(5e-5)
    assert unseen.variance(1000.0) > 1e6


def test_what_tells_nothing_is_passed_over(steered: SampleSet) -> None:
    # A round that drew less than its co-load does by itself.
    damaged = tuple(
        msgspec.structs.replace(s, energy_j=s.energy_j / 10) if s.mix.idle_s and not s.kernel else s
        for s in steered.mixed
        if s.mix != IDLING
    )
    idle = next(s for s in steered.mixed if s.mix == IDLING)
    agenda = SteeringAgenda.of(msgspec.structs.replace(steered, windows=(idle, *damaged)), SHAPE)

    assert len(agenda.conditions.heater) < len(_hot(steered))
    agenda.next(takes_s, 0.003)


def test_a_step_that_drew_less_than_its_coload_is_passed_over(steered: SampleSet) -> None:
    steps = [s for s in steered.mixed if not s.kernel and s.kernel_s]
    bad = max(steps, key=lambda s: s.mix.idle_s)
    rest = [s for s in steered.mixed if s.kernel or not s.kernel_s or s.mix == ALONE]
    mixed = (*rest, msgspec.structs.replace(bad, energy_j=bad.energy_j / 50))
    wanted = SteeringAgenda.of(msgspec.structs.replace(steered, windows=mixed), SHAPE).next(
        takes_s, 0.003
    )

    assert wanted is not None
    assert not wanted.kernel
    assert wanted.mix.launches


def test_a_step_of_which_a_kernel_never_ran_has_no_known_energy() -> None:
    assert math.isinf(SteeringAgenda.of(Synthetic().samples(), SHAPE).error)


def _hot(samples: SampleSet) -> list[Window]:
    return [s for s in samples.mixed if s.mix.hot and not s.mix.launches]


def test_a_whole_step_tells_times_and_no_powers(steered: SampleSet) -> None:
    rows = rows_of(steered)
    steps = sum(not s.kernel and bool(s.kernel_s) for s in steered.mixed)
    for k, kernel in enumerate(steered.kernels):
        time, power = rows.windows[:, rows.kernel == k]
        metered = sum(s.kernel == kernel.name and s.spin_mhz is not None for s in steered.mixed)
        assert (power == 0.0).sum() == steps + metered
        # Times and powers of the same mix are rows of their own, each at its own clock.
        assert (time == 0.0).sum() == metered
        assert ((time > 0.0) | (power > 0.0)).all()
    assert len(rows.step) == steps


def test_a_step_of_which_no_kernel_ran_tells_none_of_them(steered: SampleSet) -> None:
    only = msgspec.structs.replace(steered, windows=steered.mixed[:1])

    with pytest.raises(CannotFitError, match="all 1 samples ran at the power cap or at unknown"):
        rows_of(only)
    some = tuple(s for s in steered.mixed if s.kernel == "copy")[:1]
    assert "copy" in rows_of(msgspec.structs.replace(only, windows=some)).names


def test_measurements_without_a_temperature_are_taken_as_usually_warm(steered: SampleSet) -> None:
    cold = msgspec.structs.replace(
        steered,
        windows=tuple(msgspec.structs.replace(s, temperature_c=None) for s in steered.mixed),
    )
    bench = SteeringAgenda.of(cold, SHAPE).conditions
    assert bench.temperature_c == 55.0
    assert rows_of(cold).temperature_c.tolist() == [55.0] * len(rows_of(steered).kernel)
    check_values(cold)
