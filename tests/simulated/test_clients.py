"""Other people's NVML clients, unmodified, look at simulated GPUs in one process."""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pynvml
import pytest

from underclock.records import Kernel
from underclock.testing import SimulatedMachine, simulated_driver


@pytest.fixture
def client() -> Iterator[Callable[[str], Any]]:
    """Import a client anew; take it, and what it changes in nvidia-ml-py, out again."""
    untouched = dict(vars(pynvml))
    yield pytest.importorskip
    for module in [name for name in sys.modules if name.split(".")[0] == "nvitop"]:
        del sys.modules[module]
    for name, value in untouched.items():
        setattr(pynvml, name, value)


@contextlib.contextmanager
def _nvitop(client: Callable[[str], Any], machine: SimulatedMachine) -> Iterator[Any]:
    """Load nvitop for one machine; it keeps a session, so close it before the machine goes."""
    assert pynvml.nvmlLib is machine.driver
    nvitop = client("nvitop")
    try:
        yield nvitop
    finally:
        importlib.import_module("nvitop.api.libnvml").nvmlShutdown()


def test_nvitop_reads_every_gpu(client: Callable[[str], Any], gemm: Kernel) -> None:
    with (
        simulated_driver("rtx3080ti", count=2) as machine,
        machine.run(gemm, gpu=1),
        _nvitop(client, machine) as nvitop,
    ):
        machine.clock.sleep_s(60.0)
        idle, busy = nvitop.Device.all()
        truth = machine.gpus[1]

        assert [device.name() for device in (idle, busy)] == ["NVIDIA GeForce RTX 3080 Ti"] * 2
        assert [device.index for device in (idle, busy)] == [0, 1]
        assert idle.uuid() != busy.uuid()
        assert busy.bus_id() == "00000000:02:00.0"
        assert abs(busy.sm_clock() - truth.core_mhz) <= 15
        assert (busy.memory_clock(), idle.memory_clock()) == (truth.mem_mhz, 405)
        assert (busy.max_sm_clock(), busy.max_memory_clock()) == (2115, 9501)
        assert busy.power_usage() / 1e3 == pytest.approx(truth.power_w, rel=0.02)
        assert (busy.power_limit(), idle.power_limit()) == (350_000, 350_000)
        assert busy.temperature() == pytest.approx(truth.temperature_c, abs=1)
        assert (busy.gpu_utilization(), idle.gpu_utilization()) == (100, 0)
        assert 0 < busy.memory_utilization() <= 100
        assert busy.memory_total() == 12 << 30
        assert 30 <= busy.fan_speed() <= 100
        assert busy.performance_state() == f"P{truth.performance_state}" != "P8"
        assert idle.performance_state() == "P8"
        assert (busy.persistence_mode(), busy.compute_mode()) == ("Disabled", "Default")
        assert busy.cuda_compute_capability() == (8, 6)
        assert busy.mig_mode() == nvitop.NA
        assert busy.total_volatile_uncorrected_ecc_errors() == nvitop.NA
        assert list(busy.processes()) == [os.getpid()]
        assert list(idle.processes()) == []
