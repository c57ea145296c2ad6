"""Simulated GPUs set up whole: devices, driver in NVML's place, launchers, clock."""

import functools
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from underclock.gpus.models import GpuModel, gpu_model
from underclock.hw.base import Loop
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import installed, nvml_session
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.driver import SimulatedDriver
from underclock.hw.simulated.faults import LASTING, FaultScript
from underclock.hw.simulated.launcher import VirtualClock, VirtualLauncher
from underclock.hw.simulated.work import Neighbour
from underclock.records import Kernel


@dataclass(frozen=True, slots=True)
class SimulatedMachine:
    """A machine with simulated GPUs, as one sees it who may look behind the driver."""

    gpus: tuple[VirtualGpu, ...]  # the truth behind the driver, in index order
    driver: SimulatedDriver  # what nvidia-ml-py talks to
    clock: VirtualClock  # sleeping on it is what makes the GPUs run

    def run(
        self, kernels: Kernel | Sequence[Kernel], *, gpu: int = 0
    ) -> AbstractContextManager[Loop]:
        """Keep launching kernels on a GPU from entry to exit.

        Raises:
            UsageError: A kernel does not say what it does.
        """
        sequence = (kernels,) if isinstance(kernels, Kernel) else kernels
        return VirtualLauncher(self.gpus[gpu], self.clock).loop(sequence)

    @contextmanager
    def shared(self, kernel: Kernel, *, pid: int, share: float) -> Iterator[None]:
        """Let another process take a share of the first GPU's time from entry to exit."""
        device = self.gpus[0]
        device.join(Neighbour(pid=pid, kernel=device.model.kernel(kernel), share=share))
        try:
            yield
        finally:
            device.leave(pid)


@contextmanager
def simulated_driver(
    model: str | GpuModel,
    *,
    count: int = 1,
    seed: int = 0,
    root: bool = True,
    read_only: bool = False,
    faults: FaultScript | None = None,
    unit: int = 0,
) -> Iterator[SimulatedMachine]:
    """Put simulated GPUs in NVML's place for every program in this process, for a block.

    A program that keeps a session of its own must close it inside the block. GPU 0 is a unit of the
    model, of which 0 is the model itself; the next GPUs are the next units.
    """
    if count < 1:
        raise ValueError(f"a machine needs at least one GPU, got {count}")
    made = gpu_model(model) if isinstance(model, str) else model
    gpus = tuple(VirtualGpu(made, seed=seed, unit=unit + i) for i in range(count))
    for fault in () if faults is None else faults.faults:
        if fault.gpu is not None and not 0 <= fault.gpu < len(gpus):
            raise ValueError(f"there is no GPU {fault.gpu} to fail, only {len(gpus)}")
        for gpu in gpus if fault.gpu is None else (gpus[fault.gpu],):
            gpu.agenda.add(fault.at_s, functools.partial(gpu.fail, fault.kind))
            if fault.kind in LASTING and fault.for_s < math.inf:
                end_s = fault.at_s + fault.for_s
                gpu.agenda.add(end_s, functools.partial(gpu.mend, fault.kind))
    clock = VirtualClock(gpus)
    driver = SimulatedDriver(gpus, root=root, read_only=read_only, clock=clock)
    with installed(driver):
        yield SimulatedMachine(gpus, driver, clock)


@dataclass(frozen=True, slots=True)
class Rig:
    """One simulated GPU, and what runs kernels on it."""

    device: VirtualGpu  # the truth behind the driver
    driver: SimulatedDriver  # what nvidia-ml-py talks to
    gpu: NvmlGpu  # the GPU through NVML
    launcher: VirtualLauncher
    clock: VirtualClock


@contextmanager
def simulated_rig(
    model: str | GpuModel,
    *,
    seed: int = 0,
    root: bool = True,
    read_only: bool = False,
    faults: FaultScript | None = None,
    unit: int = 0,
) -> Iterator[Rig]:
    """Simulate one GPU for the length of a block, with an NVML session open."""
    with (
        simulated_driver(
            model, seed=seed, root=root, read_only=read_only, faults=faults, unit=unit
        ) as machine,
        nvml_session(),
    ):
        device = machine.gpus[0]
        yield Rig(
            device, machine.driver, NvmlGpu(), VirtualLauncher(device, machine.clock), machine.clock
        )
