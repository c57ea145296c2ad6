"""The object that takes the place of NVML's C library, and simulated GPUs set up whole.

It answers the calls nvidia-ml-py makes, with their C arguments and return codes, so every program
on nvidia-ml-py sees the virtual GPUs as it would see real ones: the code that reads and locks a
real GPU is the code that runs here. A call that it does not have is not found, as in an old
library.
"""

import ctypes
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import pynvml

from underclock.gpus.models import GpuModel, gpu_model
from underclock.hw.base import Loop
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import MAY_SET, installed, nvml_session
from underclock.hw.simulated import calls
from underclock.hw.simulated.calls import (
    INVALID_ARGUMENT,
    NOT_FOUND,
    OK,
    CArgument,
    DeviceCall,
    DriverClock,
    bus_of,
    put,
    put_handle,
    put_text,
    uuid_of,
)
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.launcher import VirtualClock, VirtualLauncher
from underclock.hw.simulated.work import LASTING, Fault, Neighbour
from underclock.records import Kernel

_UNINITIALIZED = int(pynvml.NVML_ERROR_UNINITIALIZED)
_GPU_IS_LOST = int(pynvml.NVML_ERROR_GPU_IS_LOST)
_CUDA_VERSION = 13_000


class SimulatedDriver:
    """NVML over virtual GPUs. Functions are found by name, as in a loaded library.

    Only root may set anything; ``read_only`` closes this process's own gate (`hw.nvml_calls`).
    """

    def __init__(
        self,
        gpus: Sequence[VirtualGpu],
        *,
        root: bool = True,
        read_only: bool = False,
        clock: DriverClock | None = None,
        caller_lives: Callable[[], bool] = lambda: True,
    ) -> None:
        self.gpus = tuple(gpus)
        self.clock = clock or VirtualClock(self.gpus)
        self.root = root
        self.caller_lives = caller_lives
        self.simulated = True
        self.simulated_read_only = read_only
        self._sessions = 0
        self._functions: dict[str, Callable[..., object]] = {
            "nvmlInitWithFlags": self._init,
            "nvmlInit_v2": self._init,
            "nvmlShutdown": self._shutdown,
            MAY_SET: lambda: OK if self.root else int(pynvml.NVML_ERROR_NO_PERMISSION),
            "nvmlErrorString": lambda code: f"simulated error {code}".encode(),
        }
        version = self.gpus[0].model.driver
        library: dict[str, Callable[..., int]] = {
            "nvmlSystemGetDriverVersion": lambda buffer, _size: put_text(buffer, version),
            "nvmlSystemGetNVMLVersion": lambda buffer, _size: put_text(buffer, f"13.{version}"),
            "nvmlSystemGetCudaDriverVersion": lambda out: put(out, _CUDA_VERSION),
            "nvmlSystemGetCudaDriverVersion_v2": lambda out: put(out, _CUDA_VERSION),
            "nvmlDeviceGetCount_v2": lambda count: put(count, len(self.gpus)),
            "nvmlDeviceGetHandleByIndex_v2": lambda index, handle: (
                put_handle(handle, index.value)
                if index.value < len(self.gpus)
                else INVALID_ARGUMENT
            ),
            "nvmlDeviceGetHandleByUUID": functools.partial(
                self._by_text, lambda index: uuid_of(self.gpus[index])
            ),
            "nvmlDeviceGetHandleByPciBusId_v2": functools.partial(self._by_text, bus_of),
        }
        for name, function in library.items():
            self._functions[name] = functools.partial(self._answer, function)
        for name, call in (calls.READS | calls.WRITES).items():
            on_gpu = functools.partial(self._answer_for, call)
            self._functions[name] = functools.partial(self._answer, on_gpu)

    def functions(self) -> list[str]:
        """Return the names of all functions it has."""
        return list(self._functions)

    def __getattr__(self, name: str) -> Callable[..., object]:
        """Return a C function; nvidia-ml-py sets attributes on it, so it keeps its identity."""
        functions = self.__dict__.get("_functions", {})
        if name not in functions:
            raise AttributeError(name)
        function: Callable[..., object] = functions[name]
        return function

    def _answer(self, function: Callable[..., int], *arguments: CArgument) -> int:
        with self.clock.lock:  # one at a time, whichever GPU it is for
            return function(*arguments) if self._sessions else _UNINITIALIZED

    def _answer_for(self, call: DeviceCall, handle: CArgument, *arguments: CArgument) -> int:
        address = ctypes.cast(handle, ctypes.c_void_p).value  # as `put_handle` makes it
        if address is None or address > len(self.gpus):
            return INVALID_ARGUMENT
        gpu = self.gpus[address - 1]
        code = call(self, gpu, *arguments)
        return _GPU_IS_LOST if gpu.lost else code  # before the call, or while it blocked

    def _init(self, _flags: CArgument = None) -> int:
        self._sessions += 1
        return OK

    def _shutdown(self) -> int:
        if self._sessions == 0:
            return _UNINITIALIZED
        self._sessions -= 1
        return OK

    def _by_text(self, naming: Callable[[int], str], text: CArgument, handle: CArgument) -> int:
        names = [naming(i).encode() for i in range(len(self.gpus))]
        return put_handle(handle, names.index(text.value)) if text.value in names else NOT_FOUND


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
    faults: Sequence[Fault] = (),
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
    for fault in faults:
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
    faults: Sequence[Fault] = (),
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
        launcher = VirtualLauncher(device, machine.clock)
        yield Rig(device, NvmlGpu(), launcher, machine.clock)
