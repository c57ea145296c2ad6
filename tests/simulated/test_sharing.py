"""Other processes on a GPU: what they take, and how they are seen."""

import os

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.app.launching import others_on_gpus
from underclock.errors import NotSupportedError, UsageError
from underclock.gpus.models import gpu_model
from underclock.hw import nvml
from underclock.hw.nvml import NvmlGpu, shown_by_cuda
from underclock.hw.nvml_calls import nvml_session
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.work import Neighbour
from underclock.physics.constants import KernelConstants
from underclock.records import Kernel
from underclock.testing import simulated_driver

_MODEL = gpu_model("rtx3080ti")
_OURS = KernelConstants(fixed_s=1e-3, work_j_per_v2=0.1)
_THEIRS = KernelConstants(fixed_s=1e-3, work_j_per_v2=0.3)


def _launch_s(gpu: VirtualGpu) -> float:
    gpu.begin([_OURS])
    gpu.advance(20.0)
    assert gpu.running is not None
    return gpu.running.completed_s / gpu.running.launches


@pytest.mark.slow
@settings(max_examples=15)
@given(st.floats(0.05, 0.9))
def test_a_neighbour_takes_its_share_of_the_time(share: float) -> None:
    alone, shared = VirtualGpu(_MODEL, seed=0), VirtualGpu(_MODEL, seed=0)
    shared.join(Neighbour(pid=1234, kernel=_THEIRS, share=share))

    assert _launch_s(shared) == pytest.approx(_launch_s(alone) / (1.0 - share), rel=0.01)


def test_the_driver_lists_the_processes_and_what_they_use(gemm: Kernel) -> None:
    with simulated_driver("rtx3080ti") as machine:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
        free_bytes = pynvml.nvmlDeviceGetMemoryInfo(handle).free
        with machine.run(gemm), machine.shared(gemm, pid=1234, share=0.25):
            machine.clock.sleep_s(1.0)
            found = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
            assert {process.pid for process in found} == {1234, os.getpid()}
            assert all(process.usedGpuMemory > 0 for process in found)
            use = pynvml.nvmlDeviceGetProcessUtilization(handle, 0)
            assert {sample.pid: sample.smUtil for sample in use} == {1234: 25, os.getpid(): 75}
            assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu == 100
            assert pynvml.nvmlDeviceGetMemoryInfo(handle).free < free_bytes
        assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
        assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu == 0
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetProcessUtilization(handle, 0)


def test_units_of_a_model_differ_and_unit_0_is_the_model(gemm: Kernel) -> None:
    def watts(unit: int, seed: int = 0) -> float:
        gpu = VirtualGpu(_MODEL, seed=seed, unit=unit)
        gpu.lock_core((900, 900))
        gpu.begin([_MODEL.kernel(gemm)])
        gpu.advance(60.0)
        return gpu.power_w

    assert VirtualGpu(_MODEL, seed=0).constants == _MODEL.constants
    constants = [VirtualGpu(_MODEL, seed=0, unit=unit).constants for unit in range(8)]
    assert len({gpu.floor_v for gpu in constants}) == 8
    assert len({gpu.leak_w_per_v3 for gpu in constants}) == 8
    assert len({watts(unit) for unit in range(8)}) == 8
    assert all(watts(unit) == pytest.approx(watts(0), rel=0.12) for unit in range(8))


def test_another_job_on_the_gpu_is_named_with_a_traced_step(gemm: Kernel) -> None:
    with simulated_driver("rtx3080ti", count=2) as machine, nvml_session():
        assert others_on_gpus() == ()
        with machine.shared(gemm, pid=os.getppid(), share=0.25):
            (note,) = others_on_gpus()
    assert note.startswith(f"process {os.getppid()} also computes on nvml:0: the step was timed")


@pytest.mark.parametrize(
    ("devices", "shown"),
    [
        (None, (0, 1, 2)),
        ("1", (1,)),
        ("2, 0", (2, 0)),
        ("{2},GPU-none,0", (2,)),
        ("{1:.12}", (1,)),
        ("1,1", (1,)),
    ],
    ids=["not set", "index", "reordered", "UUID", "beginning of a UUID", "twice"],
)
def test_what_cuda_shows_is_found_by_index_and_uuid(
    monkeypatch: pytest.MonkeyPatch, devices: str | None, shown: tuple[int, ...]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with simulated_driver("rtx3080ti", count=3), nvml_session():
        if devices is not None:
            uuids = [NvmlGpu(index).uuid() for index in range(3)]
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices.format(*uuids))
        assert shown_by_cuda() == tuple(f"nvml:{index}" for index in shown)


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ("", "CUDA_VISIBLE_DEVICES is ''"),
        ("-1", "CUDA_VISIBLE_DEVICES is '-1'"),
        ("3", "CUDA_VISIBLE_DEVICES is '3'"),
        ("GPU", "CUDA_VISIBLE_DEVICES is 'GPU'"),
        ("MIG-1-2-3,0", "names MIG-1-2-3, a part of a GPU split into MIG instances"),
    ],
)
def test_where_cuda_shows_no_whole_gpu_nothing_is_taken_for_one(
    monkeypatch: pytest.MonkeyPatch, devices: str, words: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    with (
        simulated_driver("rtx3080ti", count=3),
        pytest.raises((UsageError, NotSupportedError), match=words),
    ):
        shown_by_cuda()


def test_a_machine_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(nvml, "gpu_count", lambda: 0)
    with (
        simulated_driver("rtx3080ti"),
        pytest.raises(UsageError, match="the driver lists none") as caught,
    ):
        shown_by_cuda()
    assert "nvidia-smi -L" in caught.value.hint
