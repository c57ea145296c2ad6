"""A simulated GPU set up whole: device, driver in NVML's place, NVML session, launcher, clock."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from underclock.hw.nvml import NvmlGpu, nvml_session
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.driver import SimulatedDriver, installed
from underclock.hw.simulated.launcher import VirtualClock, VirtualLauncher
from underclock.hw.simulated.models import gpu_model


@dataclass(frozen=True, slots=True)
class Rig:
    """What a test or a stage may hold on to.

    Attributes:
        device: The truth behind the driver.
        driver: What nvidia-ml-py talks to.
        gpu: The GPU through NVML.
        launcher: Runs kernels on it.
        clock: Its time.
    """

    device: VirtualGpu
    driver: SimulatedDriver
    gpu: NvmlGpu
    launcher: VirtualLauncher
    clock: VirtualClock


@contextmanager
def simulated_rig(name: str, *, seed: int = 0, root: bool = True) -> Iterator[Rig]:
    """Simulate one GPU for the length of a block.

    Args:
        name: Model, as in ``sim:NAME``.
        seed: Of its noise.
        root: Whether the process may lock clocks.

    Raises:
        UsageError: No such model.
    """
    device = VirtualGpu(gpu_model(name), seed=seed)
    driver = SimulatedDriver([device], root=root)
    with installed(driver), nvml_session():
        yield Rig(device, driver, NvmlGpu(), VirtualLauncher(device), driver.clock)
