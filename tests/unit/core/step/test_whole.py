"""A step that ran whole only, as one kernel, and what its one clock does to its kernels."""

import msgspec
import pytest

from underclock.core.step.whole_step import (
    WHOLE,
    as_one,
    is_only_whole,
    shared_by_time,
    shares,
    time_alone,
    warmed,
    whole_steps,
)
from underclock.records import (
    AUTO,
    Choice,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    Mix,
    Pass,
    SampleSet,
    Step,
    ThrottleReason,
    Window,
)
from windows import gathered

_SLOW, _MIDDLE = Clocks(core_mhz=1000), Clocks(core_mhz=1200)
_KERNELS = (
    Kernel(name="mm", count=2, pass_=Pass.FORWARD),
    Kernel(name="copy", pass_=Pass.OPTIMIZER),
)


def ran(
    asked: Clocks = AUTO,
    mix: Mix | None = None,
    *,
    core_mhz: float | None = None,
    kernel_s: tuple[float, ...] = (2.0, 1.0),
    repeat: int = 0,
) -> Window:
    return Window(
        kernel="",
        mix=mix or Mix(),
        asked=asked,
        repeat=repeat,
        core_mhz=core_mhz or asked.core_mhz or 2000.0,
        core_spread_mhz=1.0,
        time_s=5.0,
        energy_j=500.0,
        kernel_s=kernel_s,
        window_s=20.0,
        temperature_c=50.0,
    )


def samples(*mixed: Window, alone: tuple[Window, ...] = ()) -> SampleSet:
    return SampleSet(
        evidence=Evidence.MEASURED,
        gpu=GpuInfo(name="G"),
        step=Step(name="train", kernels=_KERNELS, order=(0, 0, 1)),
        windows=gathered(
            alone, in_situ=(Window(kernel="train", time_s=5.0, energy_j=500.0),), mixed=mixed
        ),
    )


def choice(clocks: Clocks) -> Choice:
    return Choice(
        clocks=Clocks(core_mhz=clocks.core_mhz, mem_mhz=clocks.mem_mhz),
        time_change=0.1,
        energy_change=-0.2,
        auto_time_s=5.0,
        auto_energy_j=500.0,
    )


class TestWholeSteps:
    def test_runs_at_three_clocks_say_what_one_clock_costs(self) -> None:
        faster = ran(core_mhz=1800.0, repeat=1), ran(core_mhz=1600.0, repeat=2)
        alone = (Window(kernel="mm", time_s=1.0, energy_j=1.0),)
        told = whole_steps(samples(ran(), *faster, alone=alone))
        assert told is not None
        assert is_only_whole(told)
        assert {window.core_mhz for window in told.mixed} == {2000.0, 1800.0, 1600.0}

    def test_steps_that_ran_while_the_gpu_warmed_up_do_not_count(self) -> None:
        def at(mhz: float, celsius: float, repeat: int) -> Window:
            ran_there = ran(core_mhz=mhz, repeat=repeat)
            return msgspec.structs.replace(ran_there, temperature_c=celsius)

        warm = [at(2000.0, 79.0, 1), at(1800.0, 76.0, 2), at(1600.0, 75.0, 3)]
        told = whole_steps(samples(at(2050.0, 64.0, 0), *warm))
        assert told is not None
        assert {window.core_mhz for window in told.mixed} == {2000.0, 1800.0, 1600.0}
        few = samples(at(2050.0, 64.0, 0), *warm[:2])
        assert whole_steps(few) is None
        assert 64.0 not in {window.temperature_c for window in as_one(few).windows}
        only = samples(at(2000.0, 64.0, 0), ran(mix=Mix(hot=1), core_mhz=1600.0, repeat=1))
        cold = msgspec.structs.replace(only.windows[-1], temperature_c=79.0)
        both = msgspec.structs.replace(only, windows=(*only.windows[:-1], cold))
        assert warmed(both) == both  # else there were none at auto

    def test_kernels_alone_count_by_the_time_that_they_take_in_the_step(self) -> None:
        alone = (Window(kernel="mm", time_s=1.0, energy_j=1.0),)
        assert time_alone(samples(ran())) == 0.0
        assert time_alone(samples(ran(), alone=alone)) == pytest.approx(0.8)
        untimed = samples(ran().untimed(), alone=alone)
        assert time_alone(untimed) == 0.0
        both = (*alone, Window(kernel="copy", time_s=1.0, energy_j=1.0))
        assert time_alone(samples(ran().untimed(), alone=both)) == 1.0


class TestAsOne:
    def test_runs_at_locks_are_samples_of_one_kernel(self) -> None:
        given = samples(ran(), ran(_SLOW), ran(_SLOW, repeat=1))
        one = as_one(given)

        assert (one.kernels, one.order) == ((WHOLE,), (0,))
        assert [s.energy_j for s in one.in_situ] == [s.energy_j for s in given.in_situ]
        assert [(s.kernel, s.asked, s.repeat) for s in one.samples] == [
            (WHOLE.name, AUTO, 0),
            (WHOLE.name, _SLOW, 0),
            (WHOLE.name, _SLOW, 1),
        ]
        slow = one.samples[1]
        assert (slow.time_s, slow.energy_j, slow.temperature_c) == (5.0, 500.0, 50.0)

    def test_between_launches_is_part_of_the_step_where_no_cap_holds_it(self) -> None:
        auto = msgspec.structs.replace(ran(kernel_s=(2e-3, 1e-3)), time_s=5.5e-3)
        steered = ran(mix=Mix(hot=2), core_mhz=1500.0, kernel_s=(2.2e-3, 1.1e-3))
        steered = msgspec.structs.replace(steered, time_s=0.01)
        held = msgspec.structs.replace(auto, throttle_reasons=ThrottleReason.SW_POWER_CAP)

        def taken_s(*windows: Window) -> list[float]:
            of = msgspec.structs.replace(samples(), windows=windows)
            return [w.kernel_s[0] for w in as_one(of).windows if w.kernel_s]

        assert taken_s(auto, steered) == pytest.approx([5.5e-3, 6.05e-3])
        assert taken_s(held, steered) == pytest.approx([5.0e-3, 5.5e-3])


class TestShares:
    def test_between_looks_they_go_with_the_clock(self) -> None:
        """A kernel that the core bounds, beside one that it does not."""
        looks = [ran(Clocks(core_mhz=f), kernel_s=(500.0 / f, 1.0)) for f in (1100, 1150, 1250)]
        found = shares(samples(ran(), *looks), _MIDDLE)

        assert found is not None
        assert found.sum() == pytest.approx(1.0)
        assert found[0] / found[1] == pytest.approx(1000.0 / 1200.0, rel=1e-4)


class TestSharedOut:
    def test_times_are_those_in_the_step_and_energies_shares_by_time(self) -> None:
        given = samples(ran(), ran(_SLOW, kernel_s=(2.5, 0.5)))
        by_kernel = shared_by_time(given, choice(_SLOW))

        mm, copy = by_kernel["mm"], by_kernel["copy"]
        assert mm.clocks == copy.clocks == _SLOW
        assert (mm.auto_time_s, copy.auto_time_s) == pytest.approx((4.0, 1.0))
        assert (mm.auto_energy_j, copy.auto_energy_j) == pytest.approx((400.0, 100.0))
        parts = (10.0 / 11.0, 1.0 / 11.0)
        assert mm.time_change == pytest.approx(1.1 * parts[0] / 0.8 - 1.0)
        assert copy.time_change == pytest.approx(1.1 * parts[1] / 0.2 - 1.0)
        whole_j = sum(each.auto_energy_j * (1.0 + each.energy_change) for each in (mm, copy))
        whole_s = sum(each.auto_time_s * (1.0 + each.time_change) for each in (mm, copy))
        assert (whole_s, whole_j) == pytest.approx((5.5, 400.0))
