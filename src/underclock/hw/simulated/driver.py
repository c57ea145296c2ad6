"""The object that takes the place of NVML's C library.

It answers the calls nvidia-ml-py makes, with their C arguments and return codes, so every program
on nvidia-ml-py sees the virtual GPUs as it would see real ones: the code that reads and locks a
real GPU is the code that runs here. A call that it does not have is not found, as in an old
library.
"""

import functools
from collections.abc import Callable, Sequence

import pynvml

from underclock.hw.nvml_calls import MAY_SET
from underclock.hw.simulated import calls
from underclock.hw.simulated.calls import (
    INVALID_ARGUMENT,
    NOT_FOUND,
    OK,
    CArgument,
    DeviceCall,
    DriverClock,
    bus_of,
    index_of,
    put,
    put_handle,
    put_text,
    uuid_of,
)
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.launcher import VirtualClock

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
            self._functions[name] = functools.partial(self._answer_for, call)

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
        with self.clock.lock:
            return function(*arguments) if self._sessions else _UNINITIALIZED

    def _answer_for(self, call: DeviceCall, handle: CArgument, *arguments: CArgument) -> int:
        """Answer a call to a GPU: one at a time, whichever GPU it is for."""
        with self.clock.lock:
            if not self._sessions:
                return _UNINITIALIZED
            index = index_of(handle)
            if index is None or index >= len(self.gpus):
                return INVALID_ARGUMENT
            gpu = self.gpus[index]
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
