"""The time and the energy of a script's steps, read off the GPU that PyTorch runs on."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.hw.simulated.faults import Fault, FaultKind, FaultScript
from underclock.hw.simulated.rig import SimulatedMachine, simulated_driver
from underclock.records import Kernel, Kind
from underclock.runtime.trainer.step_meter import StepMeter

_PRODUCT = Kernel(name="gemm", kind=Kind.GEMM, flops=6e12, bytes_moved=2e9)


def torch_on(uuid: str) -> SimpleNamespace:
    """Return what is asked of PyTorch, whose current GPU has this UUID, as PyTorch writes it."""
    return SimpleNamespace(
        cuda=SimpleNamespace(
            current_device=lambda: 0,
            synchronize=lambda _device: None,
            get_device_properties=lambda _device: SimpleNamespace(uuid=uuid.removeprefix("GPU-")),
        )
    )


@pytest.fixture
def machine() -> Iterator[SimulatedMachine]:
    with simulated_driver("h200", count=2) as machine:
        yield machine


def meter_of(machine: SimulatedMachine, gpu: int) -> StepMeter:
    with nvml_session():
        return StepMeter(torch_on(NvmlGpu(gpu).uuid()), machine.clock)


def test_steps_have_the_mean_of_the_time_and_energy_of_their_own_gpu(
    machine: SimulatedMachine,
) -> None:
    with machine.run(_PRODUCT, gpu=1):
        machine.clock.sleep_s(2.0)
        meters = [meter_of(machine, gpu) for gpu in (0, 1)]
        machine.clock.sleep_s(4.0)
        idle, busy = (meter.window(20) for meter in meters)

    assert idle is not None
    assert busy is not None
    assert busy.is_step
    for window in (idle, busy):
        assert window.time_s == pytest.approx(0.2, rel=0.02)
    assert idle.power_w < 200.0
    assert busy.power_w > 500.0
    assert busy.core_mhz is not None
    assert busy.core_mhz > 1000.0


@pytest.mark.parametrize("kind", [FaultKind.COUNTER_RESTARTS, FaultKind.COUNTER_STUCK])
def test_a_counter_that_falls_or_stands_still_tells_no_energy(kind: FaultKind) -> None:
    faults = FaultScript(
        (Fault(at_s=3.0 if kind is FaultKind.COUNTER_RESTARTS else 0.5, kind=kind),)
    )
    with simulated_driver("h200", faults=faults) as machine:
        machine.clock.sleep_s(2.0)
        meter = meter_of(machine, 0)
        machine.clock.sleep_s(2.0)
        assert meter.window(20) is None


def test_a_gpu_that_the_driver_does_not_list_has_no_energy(machine: SimulatedMachine) -> None:
    meter = StepMeter(torch_on("GPU-none"), machine.clock)
    machine.clock.sleep_s(4.0)
    assert meter.window(20) is None
