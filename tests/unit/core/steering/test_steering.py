"""Steering on a GPU made of physics alone: mixes settle where their mean power is the limit."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from underclock.core.model.checks import check_values
from underclock.core.model.estimate import estimate
from underclock.core.model.pooling import joined
from underclock.core.model.rows import CannotFitError, rows_of
from underclock.core.model.start import unknown_gpu
from underclock.core.steering.agenda import (
    ALONE,
    COMPANIONS,
    IDLING,
    SteeringAgenda,
    Wanted,
    first_measurements,
)
from underclock.core.steering.company import Company
from underclock.core.steering.mixing import METER_S, Bench, Seen, mix_at, thinned
from underclock.core.steering.taking_off import at_cap, reach_mhz, step_draws, taken_off, told
from underclock.core.steering.worth import Known, variance_in
from underclock.errors import DataError
from underclock.physics.constants import KernelConstants
from underclock.physics.power import busy_w, idle_w
from underclock.physics.timing import duration_s
from underclock.records import (
    AUTO,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    Mix,
    MixSample,
    Sample,
    SampleSet,
    ThrottleReason,
)

_BOOST_MHZ, _MEM_MHZ, _WARM_C = 1980.0, 3200.0, 55.0
_SHAPE = unknown_gpu([1.0], fastest_mhz=_BOOST_MHZ, most_w=700.0)
_GPU = replace(
    unknown_gpu([_MEM_MHZ], fastest_mhz=_BOOST_MHZ, most_w=700.0),
    board_w=40.0,
    mem_points_w=(25.0,),
    leak_w_per_v3=35.0,
    clock_w_per_ghz_v2=20.0,
    knee_mhz=1300.0,
)
_HOT = KernelConstants(core_mcycles=3.2, fixed_s=2e-6, work_j_per_v2=2.0)
_KERNELS = {
    "product": KernelConstants(
        core_mcycles=3.0, dram_mcycles=0.9, fixed_s=2e-6, work_j_per_v2=1.7, dram_j=0.03
    ),
    "long product": KernelConstants(
        core_mcycles=9.0, dram_mcycles=4.5, work_j_per_v2=4.6, dram_j=0.1
    ),
    "softmax": KernelConstants(
        core_mcycles=0.8, dram_mcycles=0.5, fixed_s=2e-6, work_j_per_v2=0.12, dram_j=0.02
    ),
    "copy": KernelConstants(
        core_mcycles=0.1, dram_mcycles=1.5, fixed_s=2e-6, work_j_per_v2=0.06, dram_j=0.08
    ),
    "tiny": KernelConstants(core_mcycles=0.004, fixed_s=2e-6, work_j_per_v2=0.0007),
}
_ORDER = (0, 1, 0, 2, 3, 4)
_COUNTS = (2, 1, 1, 1, 1)


class _Synthetic:
    """A GPU that is asked for mixes.

    Idling counts cycles. Launches are timed after the window, where ``drift`` is how much a clock
    that hunts has moved by then, as a fraction. ``peak_w`` is what no kernel exceeds, though the
    clock that is read does not show it.
    """

    def __init__(
        self,
        limit_w: float | None = 700.0,
        *,
        seed: int = 0,
        noise: float = 1.0,
        drift: float = 0.0,
        peak_w: float = math.inf,
    ) -> None:
        self.limit_w = limit_w
        self._random = np.random.default_rng(seed)
        self._noise = noise
        self._drift = drift
        self._peak_w = peak_w

    def costs(self, part: KernelConstants | None, core_mhz: float) -> tuple[float, float]:
        """Return time and power of a launch at a clock, or of a second of idling at boost."""
        if part is None:
            return _BOOST_MHZ / core_mhz, float(idle_w(_GPU, core_mhz, _MEM_MHZ, _WARM_C))
        while (power_w := float(busy_w(_GPU, part, core_mhz, _MEM_MHZ, _WARM_C))) > self._peak_w:
            core_mhz -= 1.0
        return float(duration_s(_GPU, part, core_mhz, _MEM_MHZ)), power_w

    def parts(self, kernel: str, mix: Mix) -> list[tuple[KernelConstants | None, float]]:
        """Return what is in a round, and how often; idling in s."""
        parts: list[tuple[KernelConstants | None, float]] = [(None, mix.idle_s), (_HOT, mix.hot)]
        names = [kernel] if kernel else list(_KERNELS)
        counts = [1] if kernel else _COUNTS
        for name, count in zip(names, counts, strict=True):
            parts.append((_KERNELS[name], mix.launches * count))
        return parts

    def drawn(self, kernel: str, mix: Mix, core_mhz: float) -> tuple[float, float]:
        """Return time and energy of a round at a clock."""
        time_s = energy_j = 0.0
        for part, count in self.parts(kernel, mix):
            each_s, power_w = self.costs(part, core_mhz)
            time_s += count * each_s
            energy_j += count * each_s * power_w
        return time_s, energy_j

    def run(self, wanted: Wanted, repeat: int = 0, asked: Clocks = AUTO) -> MixSample:
        """Measure a mix."""
        kernel, mix = wanted.kernel, wanted.mix
        low, high = 300.0, float(asked.core_mhz or _BOOST_MHZ)
        time_s, energy_j = self.drawn(kernel, mix, high)
        limit_w = math.inf if self.limit_w is None else self.limit_w - 2.0
        capped = energy_j / time_s > limit_w
        core_mhz = high
        if capped:
            for _ in range(40):
                core_mhz = (low + high) / 2
                time_s, energy_j = self.drawn(kernel, mix, core_mhz)
                low, high = (low, core_mhz) if energy_j / time_s > limit_w else (core_mhz, high)
        names = [] if not mix.launches else [kernel] if kernel else list(_KERNELS)
        timed = 1.0 + self._noise * 3e-4 * self._random.standard_normal(len(names))
        moved = self._drift * self._random.uniform(-1.0, 1.0) if capped else 0.0
        timed_mhz = core_mhz * (1.0 + moved)
        kernel_s = [self.costs(_KERNELS[name], timed_mhz)[0] for name in names]
        return MixSample(
            kernel=kernel,
            mix=mix,
            asked=asked,
            repeat=repeat,
            core_mhz=core_mhz,
            core_spread_mhz=(10.0 + self._drift * core_mhz) if capped else 0.0,
            round_s=time_s,
            round_j=energy_j * (1.0 + self._noise * 3e-3 * self._random.standard_normal()),
            kernel_s=tuple((np.array(kernel_s) * timed).tolist()),
            hot_s=self.costs(_HOT, timed_mhz)[0] if mix.hot else None,
            idle_s=mix.idle_s * _BOOST_MHZ / timed_mhz or None,
            spin_mhz=timed_mhz if mix.idle_s >= METER_S else None,
            window_s=1.0,
            temperature_c=_WARM_C,
            throttle_reasons=ThrottleReason.SW_POWER_CAP if capped else ThrottleReason.NONE,
        )

    def samples(self, *wanted: Wanted, order: tuple[int, ...] = _ORDER) -> SampleSet:
        """Return a campaign's file."""
        samples = SampleSet(
            evidence=Evidence.SIMULATED,
            gpu=GpuInfo(name="S", power_limit_w=self.limit_w),
            workload="w",
            kernels=tuple(
                Kernel(name=name, count=count)
                for name, count in zip(_KERNELS, _COUNTS, strict=True)
            ),
            settings=(AUTO, *(Clocks(core_mhz=mhz) for mhz in range(1980, 300, -15))),
            order=order,
        )
        for one in wanted:
            samples = self.with_one(samples, one)
        return samples

    def with_one(self, samples: SampleSet, wanted: Wanted) -> SampleSet:
        """Take one more, as the stage does."""
        repeat = sum((s.kernel, s.mix) == (wanted.kernel, wanted.mix) for s in samples.mixed)
        mixed = self.run(wanted, repeat)
        plain = Sample(
            kernel=wanted.kernel or "w",
            repeat=repeat,
            time_s=mixed.round_s,
            energy_j=mixed.round_j,
            observed=Clocks(core_mhz=round(mixed.core_mhz), mem_mhz=round(_MEM_MHZ)),
            temperature_c=_WARM_C,
            throttle_reasons=mixed.throttle_reasons,
        )
        new = msgspec.structs.replace(samples, mixed=(*samples.mixed, mixed))
        if wanted.mix != ALONE:
            return new
        if wanted.kernel:
            return msgspec.structs.replace(new, samples=(*new.samples, plain))
        return msgspec.structs.replace(new, in_situ=(*new.in_situ, plain))


def _takes_s(round_s: float) -> float:
    return 2.0 + round_s


def _campaign(
    gpu: _Synthetic, *, most: int = 80, goal: float = 0.003, order: tuple[int, ...] = _ORDER
) -> SampleSet:
    """Run a campaign to its end."""
    samples = gpu.samples(order=order)
    for _ in range(most):
        wanted = SteeringAgenda.of(samples, _SHAPE).next(_takes_s, goal)
        if wanted is None:
            return samples
        samples = gpu.with_one(samples, wanted)
    return samples


@pytest.fixture(scope="module")
def steered() -> SampleSet:
    return _campaign(_Synthetic(seed=1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_steered_is_what_would_be_measured_at_held_clocks(seed: int) -> None:
    samples = _campaign(_Synthetic(seed=seed))
    fit = estimate(samples)
    reach = reach_mhz(samples)

    assert reach is not None
    assert reach[0] < 1600.0
    assert reach[1] == _BOOST_MHZ
    core_mhz = np.array([float(clocks.core_mhz or 0) for clocks in fit.posterior.settings])
    assert core_mhz.min() == pytest.approx(reach[0], abs=15.0)
    assert core_mhz.max() == _BOOST_MHZ
    assert fit.can.any(axis=1).all()
    spread = np.sqrt(fit.posterior.variance(1.0, 1.0))
    off = []
    for k, kernel in enumerate(samples.kernels):
        part = _KERNELS[kernel.name]
        time_s = duration_s(_GPU, part, core_mhz, np.full_like(core_mhz, _MEM_MHZ))
        power_w = busy_w(_GPU, part, core_mhz, np.full_like(core_mhz, _MEM_MHZ), _WARM_C)
        at = fit.can[k] & (power_w < 695.0)  # above its cap a kernel does not run there alone
        assert fit.posterior.log_s[k, at] == pytest.approx(np.log(time_s[at]), abs=0.005)
        energy = fit.posterior.log_s[k] + fit.posterior.log_w[k]
        off.append((energy - np.log(time_s * power_w))[at])
        assert (np.abs(off[-1]) < 4 * spread[k, at] + 0.005).all()
    # A few kernels leave it open how power follows the clock; docs/evidence/steering has a step.
    assert np.median(np.abs(np.concatenate(off))) < 0.03


@pytest.mark.slow
def test_a_campaign_ends_when_it_is_sure(steered: SampleSet) -> None:
    few, many = (_campaign(_Synthetic(seed=1), goal=goal) for goal in (0.05, 0.004))

    assert len(few.mixed) < len(many.mixed) <= len(steered.mixed)
    assert SteeringAgenda.of(few, _SHAPE).error <= 0.05
    assert SteeringAgenda.of(many, _SHAPE).error < SteeringAgenda.of(few, _SHAPE).error


@pytest.mark.slow
def test_what_comes_next_follows_from_what_is_on_file() -> None:
    whole = _campaign(_Synthetic(seed=3, noise=0.0))
    for cut in (0, 3, 6, 12, len(whole.mixed) - 1):
        part = msgspec.structs.replace(whole, mixed=whole.mixed[:cut])
        wanted = SteeringAgenda.of(part, _SHAPE).next(_takes_s, 0.003)
        assert wanted is not None
        assert (wanted.kernel, wanted.mix) == (whole.mixed[cut].kernel, whole.mixed[cut].mix)


def test_without_a_companion_only_idling_steers() -> None:
    gpu = _Synthetic(seed=1)
    samples = gpu.samples(order=_ORDER)
    for _ in range(20):
        wanted = SteeringAgenda.of(samples, _SHAPE, companion=False).next(_takes_s, 0.003)
        assert wanted is not None
        assert wanted.mix.hot == 0
        samples = gpu.with_one(samples, wanted)


def test_the_step_runs_over_the_whole_reach(steered: SampleSet) -> None:
    steps = sorted(s.core_mhz for s in steered.mixed if not s.kernel and s.kernel_s)

    assert steps[0] < 1620.0
    assert steps[-1] == _BOOST_MHZ
    assert max(b - a for a, b in itertools.pairwise(steps)) < 150.0


def test_a_step_that_never_runs_whole_is_steered_kernel_by_kernel() -> None:
    samples = _campaign(_Synthetic(), order=())

    assert not samples.in_situ
    assert {s.kernel for s in samples.mixed} == {"", *_KERNELS}
    assert not any(s.kernel_s for s in samples.mixed if not s.kernel)
    assert estimate(samples).can.any(axis=1).all()


@pytest.mark.slow
def test_a_gpu_that_never_reaches_its_cap_is_measured_at_boost() -> None:
    samples = _campaign(_Synthetic(limit_w=5000.0))
    fit = estimate(samples)

    assert {s.core_mhz for s in samples.mixed} == {_BOOST_MHZ}
    assert [c.core_mhz for c in fit.posterior.settings] == [1980]
    (sentence,) = told(samples)
    assert "nothing steers this GPU" in sentence
    assert "power limit (5000 W)" in sentence
    assert sentence in fit.table.warnings


def test_a_gpu_without_a_power_limit_is_measured_at_boost() -> None:
    samples = _campaign(_Synthetic(limit_w=None))

    assert "power limit (unknown)" in told(samples)[0]


def test_readers_are_told_what_steering_cannot_see(steered: SampleSet) -> None:
    lowest = min(s.core_mhz for s in steered.mixed if s.kernel_s)
    (sentence,) = told(steered)

    assert f"from {lowest:.0f} to 1980 MHz" in sentence
    assert "memory clocks" in sentence
    assert told(msgspec.structs.replace(steered, mixed=())) == ()


@pytest.mark.slow
def test_samples_at_held_clocks_lift_the_limits_of_steering(steered: SampleSet) -> None:
    held = Sample(kernel="copy", asked=Clocks(core_mhz=900), time_s=7e-4, energy_j=0.2)
    both = msgspec.structs.replace(steered, samples=(*steered.samples, held))

    assert reach_mhz(both) is None
    assert told(both) == ()
    assert Clocks(core_mhz=600) in estimate(both).posterior.settings


def test_clocks_that_hunt_are_told_and_count_less(steered: SampleSet) -> None:
    wild = msgspec.structs.replace(steered.mixed[-1], core_spread_mhz=80.0)
    of_step = msgspec.structs.replace(steered.mixed[0], core_spread_mhz=60.0)
    samples = msgspec.structs.replace(steered, mixed=(of_step, *steered.mixed[1:-1], wild))
    company = Company.of(samples.mixed, _SHAPE, 1.0)
    calm, hunts = (
        taken_off([one], samples.kernels, company)[-1] for one in (steered.mixed[-1], wild)
    )
    (unmetered,) = taken_off(
        [msgspec.structs.replace(wild, spin_mhz=None)], samples.kernels, company
    )

    assert unmetered.time_windows == pytest.approx(0.25)
    assert hunts.power_windows == pytest.approx(0.25 * calm.power_windows)
    assert f"hunted in 2 of {len(samples.mixed)} measurements" in told(samples)[1]
    assert repr(wild.kernel) in told(samples)[1]
    assert (
        "of the step by 60 MHz"
        in told(msgspec.structs.replace(steered, mixed=(of_step, *steered.mixed[1:])))[1]
    )


def test_what_is_left_of_a_mix_is_the_kernels() -> None:
    gpu = _Synthetic(noise=0.0)
    mixes = [Mix(launches=0, hot=4, idle_s=idle_s) for idle_s in (0.001, 0.003, 0.006, 0.01)]
    samples = gpu.samples(
        Wanted("", IDLING), Wanted("", COMPANIONS), *[Wanted("", mix) for mix in mixes]
    )
    company = Company.of(samples.mixed, _SHAPE, 1.0)
    for mix in (ALONE, Mix(launches=2, idle_s=0.002), Mix(launches=4, hot=1)):
        sample = gpu.run(Wanted("softmax", mix))
        left = taken_off([sample], samples.kernels, company)[-1]
        power_w = float(busy_w(_GPU, _KERNELS["softmax"], sample.core_mhz, _MEM_MHZ, _WARM_C))

        assert left.time_s == sample.kernel_s[0]
        assert left.power_w == pytest.approx(power_w, rel=0.02)
        assert 0.0 < left.power_windows <= 1.0


def test_idling_below_boost_is_as_sure_as_a_part_of_the_change() -> None:
    gpu = _Synthetic(noise=0.0)
    company = Company.of([gpu.run(Wanted("", IDLING))], _SHAPE, 1.0)
    here, below = (company.idle_w(mhz, 1.0, _WARM_C) for mhz in (_BOOST_MHZ, 1500.0))

    assert here is not None
    assert below is not None
    assert here.mean_w == pytest.approx(float(idle_w(_GPU, _BOOST_MHZ, _MEM_MHZ, _WARM_C)))
    assert below.mean_w < here.mean_w
    assert below.total_w > (here.mean_w - below.mean_w) / 4 > here.total_w
    true_w = float(idle_w(_GPU, 1500.0, _MEM_MHZ, _WARM_C))
    assert abs(below.mean_w - true_w) < 2 * below.total_w


def test_idling_at_held_clocks_is_measured_where_it_is_needed() -> None:
    gpu = _Synthetic(noise=0.0)
    held = gpu.run(Wanted("", IDLING), asked=Clocks(core_mhz=1500))
    company = Company.of([gpu.run(Wanted("", IDLING)), held], _SHAPE, 1.0)
    draw = company.idle_w(1500.0, 1.0, _WARM_C)

    assert draw is not None
    assert draw.mean_w == pytest.approx(float(idle_w(_GPU, 1500.0, _MEM_MHZ, _WARM_C)))
    assert draw.total_w == pytest.approx(0.004 * draw.mean_w)


def test_the_companion_is_less_sure_outside_of_where_it_ran() -> None:
    gpu = _Synthetic(seed=5)
    mixes = [Mix(launches=0, hot=4, idle_s=idle_s) for idle_s in (0.001, 0.003, 0.006)]
    runs = [gpu.run(Wanted("", mix)) for mix in (IDLING, COMPANIONS, *mixes)]
    company = Company.of(runs, _SHAPE, 1.0)
    inside, outside = (company.hot_w(mhz, 1.0) for mhz in (1600.0, 1300.0))

    assert inside is not None
    assert outside is not None
    assert inside.mean_w == pytest.approx(
        float(busy_w(_GPU, _HOT, 1600.0, _MEM_MHZ, _WARM_C)), rel=0.02
    )
    assert outside.spread_w > 5 * inside.spread_w


def test_nothing_is_taken_off_with_company_that_was_never_measured() -> None:
    gpu = _Synthetic()
    nobody = Company.of([], _SHAPE, 1.0)
    kernels = gpu.samples().kernels
    for mix in (Mix(launches=2, idle_s=0.002), Mix(launches=4, hot=1)):
        (one,) = taken_off([gpu.run(Wanted("copy", mix))], kernels, nobody)
        assert (one.power_w, one.power_windows) == (None, 0.0)
        assert one.time_windows == 1.0
    assert nobody.idle_w(1500.0, 1.0, _WARM_C) is None
    # Nor is the companion known where it idled too, and idling is not.
    thinned = gpu.run(Wanted("", Mix(launches=0, hot=1, idle_s=0.01)))
    assert Company.of([thinned], _SHAPE, 1.0).hot_w(1900.0, 1.0) is None


def test_a_mix_of_almost_nothing_but_company_tells_no_power() -> None:
    gpu = _Synthetic()
    runs = [gpu.run(Wanted("", mix)) for mix in (IDLING, COMPANIONS)]
    company = Company.of(runs, _SHAPE, 1.0)
    (left,) = taken_off([gpu.run(Wanted("tiny", Mix(hot=5)))], gpu.samples().kernels, company)

    assert left.power_w is None


def test_the_cap_is_what_the_driver_says_or_else_the_limit() -> None:
    sample = _Synthetic().run(Wanted("", COMPANIONS))
    unread = msgspec.structs.replace(sample, throttle_reasons=None)

    assert at_cap(sample, 700.0)
    assert not at_cap(msgspec.structs.replace(sample, throttle_reasons=ThrottleReason.NONE), 700.0)
    assert at_cap(unread, 700.0)
    assert not at_cap(unread, 800.0)
    assert not at_cap(unread, None)


def _bench(gpu: _Synthetic, **more: object) -> Bench:
    mixes = [Mix(launches=0, hot=4, idle_s=idle_s) for idle_s in (0.001, 0.003, 0.006)]
    runs = [gpu.run(Wanted("", mix)) for mix in (IDLING, COMPANIONS, *mixes)]
    company = Company.of(runs, _SHAPE, 1.0)
    hot = tuple(
        Seen(mhz, float(busy_w(_GPU, _HOT, mhz, _MEM_MHZ, _WARM_C)), duration_s(_GPU, _HOT, mhz, 1))
        for mhz in (1450.0, 1980.0)
    )
    bench = Bench(company=company, hot=hot, limit_w=698.0, boost_mhz=1980.0, temperature_c=55.0)
    return replace(bench, **more)  # type: ignore[arg-type]


def _seen(name: str, *core_mhz: float) -> list[Seen]:
    part = _KERNELS[name]
    return [
        Seen(
            mhz,
            float(busy_w(_GPU, part, mhz, _MEM_MHZ, _WARM_C)),
            duration_s(_GPU, part, mhz, _MEM_MHZ),
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
    gpu = _Synthetic(noise=0.0)
    mix = mix_at(core_mhz, _seen(name, *seen_mhz), _bench(gpu))

    assert mix is not None
    read_mhz = gpu.run(Wanted(name, mix)).core_mhz
    assert read_mhz == pytest.approx(core_mhz, abs=60.0 if len(seen_mhz) > 1 else 150.0)


def test_no_mix_is_named_where_none_would_do() -> None:
    gpu = _Synthetic(noise=0.0)
    bench = _bench(gpu)
    hot, cold = _seen("product", 1500.0), _seen("copy", 1980.0)

    assert mix_at(1200.0, cold, bench) is None  # the companion itself is too cold there
    assert mix_at(1600.0, cold, replace(bench, hot=())) is None
    assert mix_at(1980.0, (), replace(bench, limit_w=5000.0)) is None
    assert mix_at(1600.0, (), replace(bench, limit_w=5000.0)) is None
    assert mix_at(1980.0, hot, replace(bench, limit_w=80.0)) is None  # idling is too hot
    nobody = Company.of([], _SHAPE, 1.0)
    assert mix_at(1980.0, hot, replace(bench, company=nobody)) is None
    # Almost nothing but idling; and a step of seconds, with as long a companion.
    assert mix_at(1980.0, hot, replace(bench, limit_w=165.0)) is None
    long = [Seen(1980.0, 500.0, 2.0)]
    assert mix_at(1600.0, long, bench) is None


def test_a_kernel_at_a_lock_is_thinned_out_below_the_cap() -> None:
    gpu = _Synthetic(noise=0.0)
    capped = _seen("product", 1580.0)[0]
    idle = gpu.run(Wanted("", IDLING), asked=Clocks(core_mhz=1900))
    idle_w_ = idle.round_j / idle.round_s
    mix = thinned(1900.0, capped, idle_w_, 698.0)

    assert mix is not None
    sample = gpu.run(Wanted("product", mix), asked=Clocks(core_mhz=1900))
    assert sample.core_mhz == 1900.0
    assert thinned(1900.0, capped, 690.0, 698.0) is None
    # Within a launch of a second the cap acts, however long the GPU idled before it.
    assert thinned(1900.0, capped._replace(time_s=1.0), idle_w_, 698.0) is None


def test_a_long_step_has_many_companions() -> None:
    mix = mix_at(1700.0, [Seen(1750.0, 650.0, 0.2)], _bench(_Synthetic()), most_launches=1)

    assert mix is not None
    assert mix.launches == 1
    assert mix.hot > 10


def _slow(steered: SampleSet, times: float) -> SampleSet:
    """Return the first looks at a step that takes so many times longer, and company."""
    slow = tuple(
        msgspec.structs.replace(
            s,
            round_s=s.round_s * times,
            round_j=s.round_j * times,
            kernel_s=tuple(each_s * times for each_s in s.kernel_s),
        )
        for s in steered.mixed
        if not s.kernel and s.mix == ALONE
    )
    rest = tuple(s for s in steered.mixed if s.kernel or not s.mix.launches)
    return msgspec.structs.replace(steered, mixed=(*slow, *rest))


def test_a_long_step_has_its_company_between_launches(steered: SampleSet) -> None:
    samples = _slow(steered, 0.2 / steered.mixed[0].round_s)
    taken: list[Mix] = []
    for _ in range(3):
        wanted = SteeringAgenda.of(samples, _SHAPE).next(_takes_s, 0.003)
        assert wanted is not None
        taken.append(wanted.mix)
        sample = msgspec.structs.replace(
            samples.mixed[0], mix=wanted.mix, repeat=len(taken), idle_s=wanted.mix.idle_s
        )
        samples = msgspec.structs.replace(samples, mixed=(*samples.mixed, sample))

    metered, again, heated = taken
    assert metered == again
    assert (metered.hot, metered.idle_s) == (0, metered.pieces * METER_S)
    assert heated.hot > 0
    for mix in taken:
        assert mix.launches == 1
        assert 1 < mix.pieces <= len(_ORDER)
        assert mix.idle_s >= mix.pieces * METER_S


def test_a_power_is_the_less_known_the_further_away_it_was_measured() -> None:
    unseen = Known()
    once = unseen.after(1500.0, 1e-4)
    twice = once.after(1900.0, 1e-4)

    assert once.variance(1500.0) == pytest.approx(1e-4, rel=1e-3)
    assert once.variance(1900.0) > 50 * once.variance(1500.0)
    assert twice.variance(1700.0) < 2e-4
    assert twice.noise == pytest.approx(5e-5)
    assert unseen.variance(1000.0) > 1e6


def test_company_that_was_never_measured_tells_nothing() -> None:
    bench = _bench(_Synthetic())
    own = _seen("copy", 1700.0)[0]
    mix = Mix(launches=4, hot=1)

    assert variance_in(mix, own, bench) < 0.1
    nobody = Company.of([], _SHAPE, 1.0)
    assert math.isinf(variance_in(mix, own, replace(bench, company=nobody)))


def test_what_tells_nothing_is_passed_over(steered: SampleSet) -> None:
    # A round that drew less than its company does by itself.
    damaged = tuple(
        msgspec.structs.replace(s, round_j=s.round_j / 10) if s.mix.idle_s and not s.kernel else s
        for s in steered.mixed
        if s.mix != IDLING
    )
    idle = next(s for s in steered.mixed if s.mix == IDLING)
    agenda = SteeringAgenda.of(msgspec.structs.replace(steered, mixed=(idle, *damaged)), _SHAPE)

    assert agenda.bench is not None
    assert len(agenda.bench.hot) < len(_hot(steered))
    agenda.next(_takes_s, 0.003)


def test_a_step_that_drew_less_than_its_company_is_passed_over(steered: SampleSet) -> None:
    steps = [s for s in steered.mixed if not s.kernel and s.kernel_s]
    bad = max(steps, key=lambda s: s.mix.idle_s)
    rest = [s for s in steered.mixed if s.kernel or not s.kernel_s or s.mix == ALONE]
    mixed = (*rest, msgspec.structs.replace(bad, round_j=bad.round_j / 50))
    wanted = SteeringAgenda.of(msgspec.structs.replace(steered, mixed=mixed), _SHAPE).next(
        _takes_s, 0.003
    )

    assert wanted is not None
    assert not wanted.kernel
    assert wanted.mix.launches


def test_a_step_of_seconds_has_no_companions(steered: SampleSet) -> None:
    samples = _slow(steered, 1e3)
    metered = next(s for s in samples.mixed if not s.kernel and s.mix == ALONE)
    for _ in range(2):
        wanted = SteeringAgenda.of(samples, _SHAPE).next(_takes_s, 0.003)
        assert wanted is not None
        sample = msgspec.structs.replace(metered, mix=wanted.mix, idle_s=wanted.mix.idle_s)
        samples = msgspec.structs.replace(samples, mixed=(*samples.mixed, sample))
    wanted = SteeringAgenda.of(samples, _SHAPE).next(_takes_s, 0.003)

    assert wanted is not None
    assert not wanted.kernel
    assert (wanted.mix.hot, wanted.mix.idle_s > 0) == (0, True)


def test_what_was_measured_at_held_clocks_steers_nothing(steered: SampleSet) -> None:
    held = _Synthetic().run(Wanted("copy", Mix(idle_s=0.001)), asked=Clocks(core_mhz=2100))
    both = msgspec.structs.replace(steered, mixed=(*steered.mixed, held))

    assert SteeringAgenda.of(both, _SHAPE).error == SteeringAgenda.of(steered, _SHAPE).error


def _hot(samples: SampleSet) -> list[MixSample]:
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


@pytest.mark.parametrize("drift", [0.0, 0.01])
def test_a_clock_that_moves_before_launches_are_timed_spoils_nothing(drift: float) -> None:
    gpu = _Synthetic(noise=0.0, drift=drift, seed=4)
    mixes = [Mix(launches=0, hot=4, idle_s=idle_s) for idle_s in (0.001, 0.003, 0.006, 0.01)]
    samples = gpu.samples(
        Wanted("", IDLING), Wanted("", COMPANIONS), *[Wanted("", mix) for mix in mixes]
    )
    company = Company.of(samples.mixed, _SHAPE, 1.0)
    for mix in (Mix(launches=2, idle_s=METER_S), Mix(launches=4, hot=1, idle_s=METER_S)):
        sample = gpu.run(Wanted("product", mix))
        timed, drawn = taken_off([sample], samples.kernels, company)
        for one, told_s in ((timed, timed.time_s), (drawn, drawn.time_s)):
            true_s = float(duration_s(_GPU, _KERNELS["product"], one.core_mhz, _MEM_MHZ))
            assert told_s == pytest.approx(true_s, rel=2e-3)
        true_w = float(busy_w(_GPU, _KERNELS["product"], drawn.core_mhz, _MEM_MHZ, _WARM_C))
        assert drawn.power_w == pytest.approx(true_w, rel=5e-3)
        assert (timed.power_windows, drawn.time_windows) == (0.0, 0.0)
    (draw,) = step_draws(
        [gpu.run(Wanted("", Mix(launches=2, idle_s=METER_S)))], samples.kernels, company
    )
    step_s, step_j = gpu.drawn("", ALONE, draw.core_mhz)
    assert draw.power_w == pytest.approx(step_j / step_s, rel=5e-3)
    assert draw.spread_w < 0.02 * draw.power_w


@pytest.mark.slow
def test_times_at_a_clock_that_drifts_are_as_right_as_at_one_that_does_not() -> None:
    samples = _campaign(_Synthetic(seed=6, drift=0.01))
    rows = rows_of(samples)
    for k, kernel in enumerate(samples.kernels):
        told = (rows.kernel == k) & (rows.windows[0] > 0.5)
        true_s = duration_s(_GPU, _KERNELS[kernel.name], rows.core_mhz[told], _MEM_MHZ)
        assert rows.log_s[told] == pytest.approx(np.log(true_s), abs=0.005)


@pytest.mark.slow
def test_a_peak_of_power_that_no_clock_shows_is_seen_and_left_out() -> None:
    samples = _campaign(_Synthetic(seed=7, peak_w=950.0))
    rows = rows_of(samples)

    assert rows.peak_w == pytest.approx(950.0, rel=0.01)
    drawn = rows.windows[1] > 0.0
    assert np.exp(rows.log_w[drawn]).max() < 0.98 * 950.0
    for k, kernel in enumerate(samples.kernels):
        told = (rows.kernel == k) & (rows.windows[0] > 0.0) & (rows.core_mhz < 1700.0)
        true_s = duration_s(_GPU, _KERNELS[kernel.name], rows.core_mhz[told], _MEM_MHZ)
        assert rows.log_s[told] == pytest.approx(np.log(true_s), abs=0.005)


def test_kernels_are_not_thinned_out_to_a_peak_that_the_companion_showed() -> None:
    held, free = (
        _campaign(_Synthetic(seed=7, noise=0.0, peak_w=peak_w)) for peak_w in (950.0, math.inf)
    )

    def highest_mhz(samples: SampleSet) -> float:
        return max(s.core_mhz for s in samples.mixed if s.kernel == "product")

    assert highest_mhz(free) == _BOOST_MHZ
    assert highest_mhz(held) < 1800.0
    bench = SteeringAgenda.of(held, _SHAPE).bench
    assert bench is not None
    assert bench.peak_w == pytest.approx(950.0, rel=0.01)


def test_a_step_of_which_no_kernel_ran_tells_none_of_them(steered: SampleSet) -> None:
    only = msgspec.structs.replace(steered, mixed=steered.mixed[:1], samples=(), in_situ=())

    with pytest.raises(CannotFitError, match="all 1 samples ran at the power cap or at unknown"):
        rows_of(only)
    some = tuple(s for s in steered.mixed if s.kernel == "copy")[:1]
    assert "copy" in rows_of(msgspec.structs.replace(only, mixed=some)).names


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"kernel": "another"}, "is no kernel of the step"),
        ({"kernel_s": (1.0, 1.0)}, "has 2 durations instead of 1"),
        ({"kernel": "", "kernel_s": (1.0,)}, "the step in company has 1 durations instead of 5"),
        ({"round_j": 1e9}, "W"),
        ({"core_mhz": 1e6}, "MHz"),
        ({"temperature_c": 1e3}, "°C"),
    ],
)
def test_measurements_in_company_that_cannot_be_are_refused(
    steered: SampleSet, changed: dict[str, object], words: str
) -> None:
    bad = msgspec.structs.replace(steered.mixed[-1], **changed)

    with pytest.raises(DataError, match=words):
        check_values(msgspec.structs.replace(steered, mixed=(bad,)))


def test_files_joined_keep_what_was_measured_in_company(steered: SampleSet) -> None:
    both = joined([steered, steered])
    kept = [s for s in steered.mixed if s.kernel or not s.kernel_s]

    assert both.mixed == (*kept, *kept)


def test_measurements_without_a_temperature_are_taken_as_usually_warm(steered: SampleSet) -> None:
    cold = msgspec.structs.replace(
        steered,
        mixed=tuple(msgspec.structs.replace(s, temperature_c=None) for s in steered.mixed),
    )
    bench = SteeringAgenda.of(cold, _SHAPE).bench
    assert bench is not None
    assert bench.temperature_c == 55.0
    assert rows_of(cold).temperature_c.tolist() == [55.0] * len(rows_of(steered).kernel)
    check_values(cold)


def test_every_kernel_and_the_step_come_before_energy_alone_decides() -> None:
    alone, whole = first_measurements(7, whole=False), first_measurements(7, whole=True)
    assert first_measurements(8, whole=False) == alone + 1
    assert 7 < alone < whole
