"""Public test helpers: the behaviour every backend must show.

Inherit a contract in a test module and provide the fixture it names; pytest runs the rest.
"""
# ruff: noqa: S101

import contextlib

from underclock.errors import UnderclockError
from underclock.hw.base import Bench, Gpu
from underclock.hw.lease import check_applied, clock_lease
from underclock.records import AUTO, Clocks, Kernel

__all__ = ["BenchContract", "GpuContract", "ReadOnlyGpuContract"]


class ReadOnlyGpuContract:
    """What any GPU shows without being written to; fixture ``gpu`` yields a busy GPU."""

    def test_it_says_what_it_is(self, gpu: Gpu) -> None:
        """Name and limit are there, and a limit is positive."""
        info = gpu.info()
        assert info.name
        assert info.power_limit_w is None or info.power_limit_w > 0

    def test_its_clock_tables_ascend(self, gpu: Gpu) -> None:
        """Every listed clock appears once, lowest first."""
        for table in (gpu.supported_core_mhz(), gpu.supported_mem_mhz()):
            assert table
            assert list(table) == sorted(set(table))

    def test_every_memory_clock_has_core_clocks(self, gpu: Gpu) -> None:
        """The core clocks of a memory clock are among all core clocks."""
        every = set(gpu.supported_core_mhz())
        for mem_mhz in gpu.supported_mem_mhz():
            assert set(gpu.supported_core_mhz(mem_mhz)) <= every

    def test_its_energy_counter_never_goes_back(self, gpu: Gpu) -> None:
        """Two reads in a row do not fall."""
        before_j = gpu.energy_j()
        assert gpu.energy_j() >= before_j

    def test_its_readings_are_possible(self, gpu: Gpu) -> None:
        """A busy GPU draws power, runs at clocks, and is neither frozen nor molten."""
        assert gpu.power_w() > 0
        assert gpu.observed().core_mhz
        assert 0 < gpu.temperature_c() < 120  # noqa: PLR2004 - °C


class GpuContract(ReadOnlyGpuContract):
    """What a GPU whose clocks may be locked shows; fixture ``gpu`` yields a busy GPU."""

    def test_a_lease_takes_and_leaves_nothing_behind(self, gpu: Gpu) -> None:
        """Inside the block the clock is held; after it, it is not."""
        before = gpu.observed()
        low = Clocks(core_mhz=gpu.supported_core_mhz()[0])
        with clock_lease(gpu, low):
            assert check_applied(gpu, low).core_mhz == low.core_mhz
        assert gpu.observed() == before

    def test_a_lease_survives_an_interrupt(self, gpu: Gpu) -> None:
        """Ctrl-C inside the block does not leave the clock locked."""
        before = gpu.observed()
        low = Clocks(core_mhz=gpu.supported_core_mhz()[0])
        with contextlib.suppress(KeyboardInterrupt), clock_lease(gpu, low):
            raise KeyboardInterrupt
        assert gpu.observed() == before

    def test_a_lease_survives_a_half_done_write(self, gpu: Gpu) -> None:
        """A refusal after the first domain was written leaves nothing behind."""
        before = gpu.observed()
        impossible = Clocks(core_mhz=gpu.supported_core_mhz()[0], mem_mhz=1)
        with contextlib.suppress(UnderclockError), clock_lease(gpu, impossible):
            pass
        assert gpu.observed() == before

    def test_unlocking_what_is_not_locked_is_harmless(self, gpu: Gpu) -> None:
        """It changes nothing and raises nothing."""
        before = gpu.observed()
        gpu.unlock()
        assert gpu.observed() == before


class BenchContract:
    """What every bench shows; fixtures ``bench`` and ``kernel``, which it can measure at auto."""

    def test_it_can_measure_at_auto(self, bench: Bench, kernel: Kernel) -> None:
        """Auto is among its settings and gives positive numbers."""
        assert AUTO in bench.settings()
        assert bench.can_measure(kernel, AUTO)
        with bench.hold(AUTO):
            reading = bench.measure([kernel])
        assert reading.time_s > 0
        assert reading.energy_j > 0

    def test_it_refuses_clocks_it_does_not_list(self, bench: Bench, kernel: Kernel) -> None:
        """Nothing is measured at clocks nobody has."""
        impossible = Clocks(core_mhz=1, mem_mhz=1)
        assert not bench.can_measure(kernel, impossible)
        try:
            with bench.hold(impossible):
                bench.measure([kernel])
        except UnderclockError:
            return
        raise AssertionError("measured at clocks the bench does not list")

    def test_its_settings_are_distinct(self, bench: Bench) -> None:
        """Every pair is offered once."""
        settings = bench.settings()
        assert len(settings) == len(set(settings))
