"""The first real GPU of this machine, through the same contract as a simulated one; never written.

Deselected unless asked for: `make gpu`.
"""

import contextlib
import os
from collections.abc import Iterator

import pytest

from contracts import ReadOnlyGpuContract
from underclock.app.latency import measure_latency
from underclock.errors import DeviceError, NotPermittedError
from underclock.hw.base import Clock, Gpu, SystemClock
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import READ_ONLY, gpu_count, nvml_session
from underclock.records import Clocks
from underclock.records.latencies import DriverMoves

pytestmark = pytest.mark.gpu


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(nvml_session())
        except DeviceError as exc:
            pytest.skip(f"no NVIDIA driver here: {exc}")
        if gpu_count() == 0:
            pytest.skip("the driver lists no GPU")
        assert os.environ[READ_ONLY] == "1"
        yield NvmlGpu()
        assert os.environ[READ_ONLY] == "1"


@pytest.fixture
def clock() -> Clock:
    return SystemClock()


class TestRealGpu(ReadOnlyGpuContract):
    """Whatever it runs now."""


def test_every_setter_is_refused_before_it_reaches_the_driver(gpu: Gpu) -> None:
    highest = Clocks(core_mhz=gpu.supported_core_mhz()[-1], mem_mhz=gpu.supported_mem_mhz()[-1])
    with pytest.raises(NotPermittedError, match=READ_ONLY):
        gpu.lock(highest)
    with pytest.raises(NotPermittedError, match=READ_ONLY):
        gpu.unlock()


def test_small_kernels_are_timed_and_the_driver_alone_moves_the_clock(gpu: Gpu) -> None:
    pytest.importorskip("torch")
    found = measure_latency("nvml:0", watch_s=4.0)

    assert isinstance(found, DriverMoves)
    assert found.gpu == gpu.info()
    for seen in (*found.up, *found.down):
        assert seen.every_s < 1e-3
        assert 0.0 <= seen.transition.median_s < 1.0
