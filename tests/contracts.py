"""The behaviour that every backend must show.

Inherit a contract in a test module and provide the fixtures it names; pytest runs the rest.
"""

import contextlib
from collections.abc import Callable
from typing import ClassVar

from underclock.errors import UnderclockError
from underclock.hw.base import Capability, Clock, Gpu, Launcher, Measurer
from underclock.hw.lease import ClockLeases, check_applied
from underclock.records import AUTO, Clocks, Kernel, Mix

_LONGEST_SWITCH_S = 5.0
_LONGEST_TICK_S = 2.0


class ReadOnlyGpuContract:
    """What any GPU shows without being written to.

    Fixtures: ``gpu`` yields a GPU under steady load, or at rest; ``clock`` is its time.
    """

    def test_it_says_what_it_is(self, gpu: Gpu) -> None:
        info = gpu.info()
        assert info.name
        assert info.power_limit_w is None or info.power_limit_w > 0

    def test_its_clock_tables_ascend(self, gpu: Gpu) -> None:
        for table in (gpu.supported_core_mhz(), gpu.supported_mem_mhz()):
            assert table
            assert list(table) == sorted(set(table))

    def test_every_memory_clock_has_core_clocks(self, gpu: Gpu) -> None:
        every = set(gpu.supported_core_mhz())
        for mem_mhz in gpu.supported_mem_mhz():
            assert set(gpu.supported_core_mhz(mem_mhz)) <= every

    def test_its_energy_counter_never_goes_back(self, gpu: Gpu) -> None:
        before_j = gpu.energy_j()
        assert gpu.energy_j() >= before_j

    def test_its_energy_counter_climbs_as_its_power_says(self, gpu: Gpu, clock: Clock) -> None:
        clock.sleep_s(_LONGEST_TICK_S)  # power may be an average that still looks further back
        started_s, before_j = clock.now_s(), gpu.energy_j()
        clock.sleep_s(_LONGEST_TICK_S)
        power_w = (gpu.energy_j() - before_j) / (clock.now_s() - started_s)
        assert 0.5 < power_w / (gpu.power_w() or 0.0) < 2.0

    def test_its_readings_are_possible(self, gpu: Gpu) -> None:
        assert (gpu.power_w() or 0.0) > 0
        assert gpu.observed().core_mhz
        assert 0 < (gpu.temperature_c() or 0.0) < 120
        assert gpu.throttle_reasons() is not None


class GpuContract(ReadOnlyGpuContract):
    """What a GPU whose clocks may be locked shows.

    Fixtures: ``gpu`` yields a busy GPU; ``clock`` is its time.
    """

    def test_a_lease_takes_and_leaves_nothing_behind(self, gpu: Gpu, clock: Clock) -> None:
        before = gpu.observed()
        low = Clocks(core_mhz=gpu.supported_core_mhz()[0])
        with ClockLeases(gpu).hold(low):
            assert _comes(clock, lambda: gpu.observed().core_mhz == low.core_mhz)
            check_applied(gpu, low)
        assert _comes(clock, lambda: gpu.observed() == before)

    def test_a_lease_survives_an_interrupt(self, gpu: Gpu, clock: Clock) -> None:
        before = gpu.observed()
        low = Clocks(core_mhz=gpu.supported_core_mhz()[0])
        with contextlib.suppress(KeyboardInterrupt), ClockLeases(gpu).hold(low):
            assert _comes(clock, lambda: gpu.observed().core_mhz == low.core_mhz)
            raise KeyboardInterrupt
        assert _comes(clock, lambda: gpu.observed() == before)

    def test_a_lease_survives_a_half_done_write(self, gpu: Gpu, clock: Clock) -> None:
        before = gpu.observed()
        impossible = Clocks(core_mhz=gpu.supported_core_mhz()[0], mem_mhz=1)
        with contextlib.suppress(UnderclockError), ClockLeases(gpu).hold(impossible):
            pass
        assert _settles(clock, lambda: gpu.observed() == before)

    def test_a_lease_inside_another_is_refused(self, gpu: Gpu, clock: Clock) -> None:
        low = Clocks(core_mhz=gpu.supported_core_mhz()[0])
        with ClockLeases(gpu) as leases, leases.hold(low):
            try:
                with leases.hold(low):
                    raise AssertionError("held the same clocks twice")
            except UnderclockError:
                pass
            assert _comes(clock, lambda: gpu.observed().core_mhz == low.core_mhz)

    def test_unlocking_what_is_not_locked_is_harmless(self, gpu: Gpu, clock: Clock) -> None:
        before = gpu.observed()
        gpu.unlock()
        assert _settles(clock, lambda: gpu.observed() == before)


class LauncherContract:
    """What every launcher shows.

    Fixtures: ``launcher``, ``clock`` of its GPU, and ``kernel``, which takes well under a second.
    """

    def test_its_progress_is_counted_when_launches_complete(
        self, launcher: Launcher, clock: Clock, kernel: Kernel
    ) -> None:
        with launcher.loop([kernel]) as loop:
            clock.sleep_s(1.0)
            before = loop.progress()
            clock.sleep_s(1.0)
            after = loop.progress()
        assert 0 < before.launches < after.launches
        rate_s = (after.elapsed_s - before.elapsed_s) / (after.launches - before.launches)
        assert 0 < rate_s < 1
        assert before.elapsed_s <= after.elapsed_s

    def test_a_sequence_is_one_launch(
        self, launcher: Launcher, clock: Clock, kernel: Kernel
    ) -> None:
        per_launch_s = []
        for kernels in ([kernel], [kernel, kernel]):
            with launcher.loop(kernels) as loop:
                clock.sleep_s(2.0)
                progress = loop.progress()
            per_launch_s.append(progress.elapsed_s / progress.launches)
        assert 1.6 < per_launch_s[1] / per_launch_s[0] < 2.4

    durations_within: ClassVar[float] = 0.01
    """Of a round, what its launches may miss together."""

    def test_durations_inside_a_loop_add_up_to_its_rounds(
        self, launcher: Launcher, clock: Clock, kernel: Kernel
    ) -> None:
        mixes = (None, Mix(launches=5, hot=1), Mix(launches=5, hot=2, idle_s=5e-3), Mix(hot=1))
        for mix in mixes:
            kernels = [kernel] if mix is None or mix.launches > 1 else []
            with launcher.loop(kernels, mix) as loop:
                clock.sleep_s(1.0)
                before = loop.progress()
                clock.sleep_s(1.0)
                after = loop.progress()
                durations = loop.durations(0.5)
            round_s = (after.elapsed_s - before.elapsed_s) / (after.launches - before.launches)
            asked = mix or Mix()
            assert len(durations.kernel_s) == len(kernels)
            assert (durations.hot_s is None) == (asked.hot == 0)
            assert (durations.idle_s is None) == (asked.idle_s == 0)
            parts_s = [
                *(asked.launches * each_s for each_s in durations.kernel_s),
                asked.hot * (durations.hot_s or 0.0),
                durations.idle_s or 0.0,
            ]
            assert all(part_s > 0 for part_s in parts_s if part_s)
            assert abs(sum(parts_s) / round_s - 1.0) < self.durations_within

    def test_nothing_at_all_is_refused(self, launcher: Launcher) -> None:
        try:
            with launcher.loop([]):
                pass
        except ValueError:
            return
        raise AssertionError("launched nothing, over and over")


class MeasurerContract:
    """What every measurer shows; fixtures ``measurer``, and ``kernel`` that it measures at auto."""

    def test_it_can_measure_at_auto(self, measurer: Measurer, kernel: Kernel) -> None:
        assert AUTO in measurer.settings()
        assert measurer.can_measure(kernel, AUTO)
        with measurer.hold(AUTO):
            reading = measurer.measure([kernel])
        assert reading.time_s > 0
        assert reading.energy_j > 0

    def test_it_refuses_clocks_it_does_not_list(self, measurer: Measurer, kernel: Kernel) -> None:
        impossible = Clocks(core_mhz=1, mem_mhz=1)
        assert not measurer.can_measure(kernel, impossible)
        try:
            with measurer.hold(impossible):
                measurer.measure([kernel])
        except UnderclockError:
            return
        raise AssertionError("measured at clocks the measurer does not list")

    def test_its_settings_are_distinct(self, measurer: Measurer) -> None:
        settings = measurer.settings()
        assert len(settings) == len(set(settings))


class MixingMeasurerContract(MeasurerContract):
    """What a measurer that runs kernels with co-load shows, where a product reaches the power cap.

    Fixtures: ``measurer``; ``kernel``, which draws less than a large matrix product.
    """

    def test_it_says_that_it_can(self, measurer: Measurer) -> None:
        assert Capability.MIX in measurer.capabilities

    def test_idling_lets_the_clock_of_a_capped_product_rise(self, measurer: Measurer) -> None:
        capped = measurer.measure([], mix=Mix(hot=4), timed=True)
        thinned = measurer.measure([], mix=Mix(hot=4, idle_s=2.0 * capped.time_s), timed=True)
        assert capped.core_mhz is not None
        assert thinned.core_mhz is not None
        assert thinned.core_mhz > capped.core_mhz
        assert thinned.energy_j / thinned.time_s < capped.energy_j / capped.time_s

    def test_a_heater_lowers_the_clock_of_a_cool_kernel(
        self, measurer: Measurer, kernel: Kernel
    ) -> None:
        cool = measurer.measure([kernel], mix=Mix(), timed=True)
        heated = measurer.measure([kernel], mix=Mix(hot=20), timed=True)
        assert cool.core_mhz is not None
        assert heated.core_mhz is not None
        assert heated.core_mhz < cool.core_mhz

    def test_what_it_times_adds_up_to_the_round(self, measurer: Measurer, kernel: Kernel) -> None:
        product = measurer.measure([], mix=Mix(hot=1), timed=True)
        mix = Mix(launches=5, hot=1, idle_s=product.time_s)
        reading = measurer.measure([kernel], mix=mix, timed=True)
        durations = reading.durations
        assert durations is not None
        assert durations.hot_s is not None
        assert durations.idle_s is not None
        inside_s = mix.launches * sum(durations.kernel_s) + mix.hot * durations.hot_s
        assert abs((inside_s + durations.idle_s) / reading.time_s - 1.0) < 0.01


def _comes(clock: Clock, condition: Callable[[], bool]) -> bool:
    """Wait for a condition: clocks follow a lock after a while, not at once."""
    deadline_s = clock.now_s() + _LONGEST_SWITCH_S
    while clock.now_s() < deadline_s:
        if condition():
            return True
        clock.sleep_s(0.01)
    return False


def _settles(clock: Clock, condition: Callable[[], bool]) -> bool:
    """Wait for a condition that a change still under way might yet break."""
    clock.sleep_s(1.0)
    return _comes(clock, condition)
