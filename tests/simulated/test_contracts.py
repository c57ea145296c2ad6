from collections.abc import Iterator

import pytest

from underclock.hw.base import Bench, Gpu
from underclock.hw.bench import GpuBench, Protocol
from underclock.hw.replay import ReplayBench
from underclock.hw.simulated.rig import Rig
from underclock.records import Clocks, Evidence, GpuInfo, Kernel, Profile, Sample
from underclock.testing import BenchContract, GpuContract


class TestSimulatedGpu(GpuContract):
    @pytest.fixture
    def gpu(self, rig: Rig, elementwise: Kernel) -> Iterator[Gpu]:
        with rig.launcher.loop([elementwise]):
            rig.clock.sleep_s(1.0)
            yield rig.gpu


class TestGpuBench(BenchContract):
    @pytest.fixture
    def bench(self, rig: Rig) -> Bench:
        return GpuBench(
            rig.gpu, rig.launcher, rig.clock, evidence=Evidence.SIMULATED, protocol=Protocol()
        )

    @pytest.fixture
    def kernel(self, gemm: Kernel) -> Kernel:
        return gemm


class TestReplayBench(BenchContract):
    @pytest.fixture
    def kernel(self) -> Kernel:
        return Kernel(name="copy")

    @pytest.fixture
    def bench(self, kernel: Kernel) -> Bench:
        rows = (
            Sample(kernel=kernel.name, time_s=1e-3, energy_j=0.1),
            Sample(kernel=kernel.name, asked=Clocks(core_mhz=900), time_s=2e-3, energy_j=0.1),
        )
        return ReplayBench(
            Profile(
                evidence=Evidence.REPLAYED,
                gpu=GpuInfo(name="some GPU"),
                workload="table",
                kernels=(kernel,),
                samples=rows,
            )
        )
