from collections.abc import Iterator

import pytest

from benches import bench
from contracts import (
    GpuContract,
    LauncherContract,
    MeasurerContract,
    MixingMeasurerContract,
    ReadOnlyGpuContract,
)
from underclock.hw.base import Clock, Gpu, Launcher, Measurer
from underclock.hw.measurer import ReplayMeasurer
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.hw.simulated.driver import Rig
from underclock.records import (
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    MeasurementSettings,
    SampleSet,
    Step,
    Window,
)
from underclock.testing import simulated_driver


class TestSimulatedGpu(GpuContract):
    @pytest.fixture
    def gpu(self, rig: Rig, elementwise: Kernel) -> Iterator[Gpu]:
        with rig.launcher.loop([elementwise]):
            rig.clock.sleep_s(1.0)
            yield rig.gpu

    @pytest.fixture
    def clock(self, rig: Rig) -> Clock:
        return rig.clock


class TestSimulatedGpuAtRest(ReadOnlyGpuContract):
    @pytest.fixture
    def gpu(self, rig: Rig) -> Gpu:
        return rig.gpu

    @pytest.fixture
    def clock(self, rig: Rig) -> Clock:
        return rig.clock


class TestAnotherUnitOfAnotherModel(GpuContract):
    """An A100 samples its power for a quarter of the time and takes no memory locks."""

    @pytest.fixture
    def machine(self, elementwise: Kernel) -> Iterator[tuple[Gpu, Clock]]:
        with (
            simulated_driver("a100", count=2, seed=3, unit=5) as machine,
            machine.run(elementwise, gpu=1),
            nvml_session(),
        ):
            machine.clock.sleep_s(1.0)
            yield NvmlGpu(1), machine.clock

    @pytest.fixture
    def gpu(self, machine: tuple[Gpu, Clock]) -> Gpu:
        return machine[0]

    @pytest.fixture
    def clock(self, machine: tuple[Gpu, Clock]) -> Clock:
        return machine[1]


class TestVirtualLauncher(LauncherContract):
    @pytest.fixture
    def launcher(self, rig: Rig) -> Launcher:
        return rig.launcher

    @pytest.fixture
    def clock(self, rig: Rig) -> Clock:
        return rig.clock

    @pytest.fixture
    def kernel(self, elementwise: Kernel) -> Kernel:
        return elementwise


class TestGpuMeasurer(MixingMeasurerContract):
    @pytest.fixture
    def measurer(self, rig: Rig, gemm: Kernel) -> Measurer:
        rig.device.limit_power(300.0)  # cold, it would hardly reach its own
        with rig.launcher.loop([gemm]):
            rig.clock.sleep_s(60.0)
        return bench(rig, MeasurementSettings(kernel_warm_s=1.0, window_s=1.0))

    @pytest.fixture
    def kernel(self, elementwise: Kernel) -> Kernel:
        return elementwise


class TestReplayMeasurer(MeasurerContract):
    @pytest.fixture
    def kernel(self) -> Kernel:
        return Kernel(name="copy")

    @pytest.fixture
    def measurer(self, kernel: Kernel) -> Measurer:
        rows = (
            Window(kernel=kernel.name, time_s=1e-3, energy_j=0.1),
            Window(kernel=kernel.name, asked=Clocks(core_mhz=900), time_s=2e-3, energy_j=0.1),
        )
        return ReplayMeasurer(
            SampleSet(
                evidence=Evidence.REPLAYED,
                gpu=GpuInfo(name="some GPU"),
                step=Step(name="table", kernels=(kernel,)),
                windows=rows,
            )
        )
