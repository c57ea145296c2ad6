"""What NVML says of a GPU's counters, name, partition and processes, on the simulated driver."""

import os

import pynvml
import pytest

from underclock.errors import DeviceError
from underclock.hw.measurer import GpuMeasurer
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.hw.simulated.rig import Rig
from underclock.records import Evidence, Kernel, MeasurementSettings
from underclock.testing import Fault, FaultKind, FaultScript, simulated_driver


def test_a_gpu_without_counters_says_nothing_rather_than_idle(rig: Rig, gemm: Kernel) -> None:
    with rig.launcher.loop([gemm]):
        end = rig.gpu.utilisation()
        rig.clock.sleep_s(1.0)

        assert end() is None


def test_a_measurement_goes_on_without_counters(rig: Rig, gemm: Kernel) -> None:
    measurer = GpuMeasurer(
        rig.gpu,
        rig.launcher,
        rig.clock,
        evidence=Evidence.SIMULATED,
        measuring=MeasurementSettings(kernel_warm_s=1.0, window_s=1.0),
        notes=("take care",),
    )

    assert measurer.measure([gemm]).utilisation is None
    assert measurer.notes() == ("take care",)


def test_every_gpu_of_a_machine_has_a_name_of_its_own() -> None:
    with simulated_driver("rtx3080ti", count=3), nvml_session():
        names = [NvmlGpu(index).uuid() for index in range(3)]

        assert len(set(names)) == 3
        assert all(name.startswith("GPU-") for name in names)
        assert names[1] == pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(1))


@pytest.mark.parametrize("model", ["rtx3080ti", "a100"], ids=["no MIG there", "MIG is off"])
def test_a_gpu_in_one_piece_is_not_partitioned(model: str) -> None:
    with simulated_driver(model), nvml_session():
        assert NvmlGpu().is_partitioned() is False


def test_a_gpu_at_rest_has_no_neighbours(rig: Rig) -> None:
    assert rig.gpu.neighbours() == {}


def test_every_process_is_told_with_its_share(gemm: Kernel) -> None:
    with simulated_driver("rtx3080ti", count=2) as machine, nvml_session():
        with machine.shared(gemm, pid=1234, share=0.25), machine.run(gemm):
            machine.clock.sleep_s(1.0)

            assert NvmlGpu(0).neighbours() == {1234: 0.25, os.getpid(): 0.75}
            assert NvmlGpu(1).neighbours() == {}
        assert NvmlGpu(0).neighbours() == {}


def test_a_share_that_was_not_sampled_yet_is_unknown_not_zero(gemm: Kernel) -> None:
    with (
        simulated_driver("rtx3080ti") as machine,
        nvml_session(),
        machine.shared(gemm, pid=1234, share=0.25),
    ):
        assert NvmlGpu().neighbours() == {1234: None}


def test_a_lost_gpu_has_no_list_of_neighbours() -> None:
    faults = FaultScript([Fault(at_s=1.0, kind=FaultKind.GPU_LOST)])
    with simulated_driver("rtx3080ti", faults=faults) as machine, nvml_session():
        gpu = NvmlGpu()
        machine.clock.sleep_s(2.0)

        with pytest.raises(DeviceError, match="could not read the processes"):
            gpu.neighbours()
        with pytest.raises(DeviceError, match="could not read the MIG mode"):
            gpu.is_partitioned()
        assert gpu.utilisation()() is None
