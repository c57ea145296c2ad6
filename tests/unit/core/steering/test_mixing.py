"""Which mix brings a kernel to a clock, and which heaters a step has."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steered_gpu import (
    GPU,
    HOT,
    KERNELS,
    MEM_MHZ,
    ORDER,
    SHAPE,
    WARM_C,
    Synthetic,
    takes_s,
)
from underclock.core.design import Wanted
from underclock.core.steering import IDLING, SteeringAgenda
from underclock.core.steering.coload import CoLoad
from underclock.core.steering.mixing import (
    METER_S,
    DrawAtClock,
    MixConditions,
    launch_clocks,
    mix_at,
    next_thinned,
    spin_mhz,
    spread_out,
    thinned,
)
from underclock.physics.constants import KernelConstants
from underclock.physics.costs import busy_w, duration_s
from underclock.records import ALONE, Clocks, Mix, SampleSet, ThrottleReason


def _bench(gpu: Synthetic, **more: object) -> MixConditions:
    coload, heater = gpu.coload(0.001, 0.003, 0.006), tuple(_drawn(HOT, 1450.0, 1980.0))
    bench = MixConditions(coload, heater, limit_w=698.0, boost_mhz=1980.0, temperature_c=55.0)
    return replace(bench, **more)  # type: ignore[arg-type]


def _seen(name: str, *core_mhz: float) -> list[DrawAtClock]:
    return _drawn(KERNELS[name], *core_mhz)


def _drawn(part: KernelConstants, *core_mhz: float) -> list[DrawAtClock]:
    return [
        DrawAtClock(
            mhz,
            float(busy_w(GPU, part, mhz, MEM_MHZ, WARM_C)),
            duration_s(GPU, part, mhz, MEM_MHZ),
        )
        for mhz in core_mhz
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["product", "softmax", "copy", "tiny"])
@pytest.mark.parametrize("core_mhz", [1650.0, 1800.0, 1980.0])
@pytest.mark.parametrize("seen_mhz", [(1980.0,), (1600.0, 1980.0)])
def test_a_mix_runs_where_it_was_meant_to(
    name: str, core_mhz: float, seen_mhz: Sequence[float]
) -> None:
    gpu = Synthetic(noise=0.0)
    mix = mix_at(core_mhz, _seen(name, *seen_mhz), _bench(gpu))

    assert mix is not None
    read_mhz = gpu.run(Wanted(name, mix)).core_mhz
    assert read_mhz == pytest.approx(core_mhz, abs=60.0 if len(seen_mhz) > 1 else 150.0)


def test_no_mix_is_named_where_none_would_do() -> None:
    bench = _bench(Synthetic(noise=0.0))
    hot, cold = _seen("product", 1500.0), _seen("copy", 1980.0)

    assert mix_at(1200.0, cold, bench) is None  # the heater itself is too cold there
    assert mix_at(1600.0, cold, replace(bench, heater=())) is None
    assert mix_at(1980.0, (), replace(bench, limit_w=5000.0)) is None
    assert mix_at(1600.0, (), replace(bench, limit_w=5000.0)) is None
    assert mix_at(1980.0, hot, replace(bench, limit_w=80.0)) is None  # idling is too hot
    nobody = CoLoad.of([], SHAPE, 1.0)
    assert mix_at(1980.0, hot, replace(bench, coload=nobody)) is None
    # Almost nothing but idling; and a step of seconds, with as long a heater.
    assert mix_at(1980.0, hot, replace(bench, limit_w=165.0)) is None
    assert mix_at(1600.0, [DrawAtClock(1980.0, 500.0, 2.0)], bench) is None


def test_a_kernel_at_a_lock_is_thinned_out_below_the_cap() -> None:
    gpu = Synthetic(noise=0.0)
    capped = _seen("product", 1580.0)[0]
    idle = gpu.run(Wanted("", IDLING), asked=Clocks(core_mhz=1900))
    idle_w_ = idle.energy_j / idle.time_s
    mix = thinned(1900.0, capped, idle_w_, 698.0)

    assert mix is not None
    assert gpu.run(Wanted("product", mix), asked=Clocks(core_mhz=1900)).core_mhz == 1900.0
    assert thinned(1900.0, capped, 690.0, 698.0) is None
    # Within a launch of a second the cap acts, however long the GPU idled before it.
    assert thinned(1900.0, capped._replace(time_s=1.0), idle_w_, 698.0) is None


def test_a_capped_kernel_idles_longer_until_it_holds_its_clock_or_hardly_runs() -> None:
    gpu, lock = Synthetic(noise=0.0), Clocks(core_mhz=1900)
    alone, idle = (gpu.run(Wanted(*what), asked=lock) for what in (("product",), ("", IDLING)))
    own = DrawAtClock(0.85 * 1900.0, alone.power_w, alone.time_s)
    for observed, at_mhz in ((None, own.core_mhz), (Clocks(core_mhz=1575), 1575.0)):
        mix = thinned(1900.0, own._replace(core_mhz=at_mhz), idle.power_w, alone.power_w)
        assert mix is not None
        assert next_thinned(msgspec.structs.replace(alone, observed=observed), idle, []) == mix
    short, long = (Mix(launches=4, idle_s=times * alone.time_s) for times in (0.1, 13.0))
    tried = gpu.run(Wanted("product", short), asked=lock)
    assert next_thinned(alone, idle, [tried]) == Mix(launches=4, idle_s=2.0 * short.idle_s)
    for done in ({"mix": long}, {"throttle_reasons": ThrottleReason.NONE}):
        assert next_thinned(alone, idle, [msgspec.structs.replace(tried, **done)]) is None


def _slow(steered: SampleSet, times: float) -> SampleSet:
    """Return the first looks at a step that takes so many times longer, and co-load."""
    slow = tuple(
        msgspec.structs.replace(
            s,
            time_s=s.time_s * times,
            energy_j=s.energy_j * times,
            kernel_s=tuple(each_s * times for each_s in s.kernel_s),
        )
        for s in steered.mixed
        if not s.kernel and s.mix == ALONE
    )
    rest = tuple(s for s in steered.mixed if s.kernel or not s.mix.launches)
    return msgspec.structs.replace(steered, windows=(*slow, *rest))


def test_a_step_of_seconds_has_no_heaters(steered: SampleSet) -> None:
    samples = _slow(steered, 1e3)
    metered = next(s for s in samples.mixed if not s.kernel and s.mix == ALONE)
    for _ in range(2):
        wanted = SteeringAgenda.of(samples, SHAPE).next(takes_s, 0.003)
        assert wanted is not None
        sample = msgspec.structs.replace(metered, mix=wanted.mix, idle_s=wanted.mix.idle_s)
        samples = msgspec.structs.replace(samples, windows=(*samples.windows, sample))
    wanted = SteeringAgenda.of(samples, SHAPE).next(takes_s, 0.003)

    assert wanted is not None
    assert not wanted.kernel
    assert (wanted.mix.hot, wanted.mix.idle_s > 0) == (0, True)


@pytest.mark.untraced
def test_a_long_step_has_its_coload_between_launches(steered: SampleSet) -> None:
    samples = _slow(steered, 0.2 / steered.mixed[0].time_s)
    taken: list[Mix] = []
    for _ in range(3):
        wanted = SteeringAgenda.of(samples, SHAPE).next(takes_s, 0.003)
        assert wanted is not None
        taken.append(wanted.mix)
        sample = msgspec.structs.replace(
            samples.mixed[0], mix=wanted.mix, repeat=len(taken), idle_s=wanted.mix.idle_s
        )
        samples = msgspec.structs.replace(samples, windows=(*samples.windows, sample))

    assert {mix.hot > 0 for mix in taken} == {False, True}
    for mix in taken:
        assert mix.launches == 1
        assert 1 < mix.pieces <= len(ORDER)
        assert mix.idle_s >= mix.pieces * METER_S


def _periods_s(mix: Mix, launches_s: list[float], hot_s: float) -> list[float]:
    """Return how long a piece of co-load and the launches before it take."""
    piece_s = (mix.hot * hot_s + mix.idle_s) / mix.pieces
    return [
        sum(launches_s[begin:end]) + piece_s for begin, end in itertools.pairwise((0, *mix.after))
    ]


@pytest.mark.untraced
@given(
    st.lists(st.floats(1e-6, 5e-3), min_size=60, max_size=300),
    st.integers(0, 200),
    st.floats(0.0, 0.3),
)
def test_coload_is_even_in_time_and_hardly_more_or_less(
    launches_s: list[float], hot: int, idle_s: float
) -> None:
    if not (hot or idle_s):
        return
    mix = spread_out(Mix(hot=hot, idle_s=idle_s), launches_s, 1.6e-3)
    if mix.pieces == 1:
        return

    assert abs(mix.hot - hot) <= mix.pieces / 2
    assert mix.idle_s >= max(idle_s, mix.pieces * METER_S)
    assert mix.after[-1] == len(launches_s)
    periods_s = _periods_s(mix, launches_s, 1.6e-3)
    mean_s = sum(periods_s) / len(periods_s)
    assert max(abs(period_s - mean_s) for period_s in periods_s) <= 2 * max(launches_s)
    assert mean_s < 0.012 or len(mix.after) == len(launches_s) or max(launches_s) > 2e-3


def test_each_launch_runs_at_the_clock_of_the_idling_around_it() -> None:
    mix = Mix(idle_s=3 * METER_S, after=(2, 4, 5))
    late_s = 9e-7
    took_s = [METER_S * 2000.0 / mhz + late_s for mhz in (1500.0, 1600.0, 1800.0)]

    clocks = launch_clocks(mix, took_s, 2000.0, 6)
    assert clocks == pytest.approx((1650.0, 1650.0, 1550.0, 1550.0, 1700.0, 1650.0))
    mean_mhz = spin_mhz(mix, sum(took_s), 2000.0)
    assert mean_mhz == pytest.approx(3 / sum(1 / mhz for mhz in (1500.0, 1600.0, 1800.0)))
    short = Mix(idle_s=METER_S, after=(2, 4, 5))
    assert launch_clocks(short, [METER_S / 3] * 3, 2000.0, 6) == ()
    assert spin_mhz(short, METER_S, 2000.0) is None
