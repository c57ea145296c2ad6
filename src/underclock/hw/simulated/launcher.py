"""Runs kernels on a virtual GPU, in virtual time."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from underclock.errors import DeviceError
from underclock.hw.base import Loop, Progress
from underclock.hw.simulated.device import VirtualGpu
from underclock.records import Clocks, Kernel, Kind


@dataclass(frozen=True, slots=True)
class VirtualClock:
    """The virtual GPUs' time; sleeping is what makes them run.

    Attributes:
        gpus: They all keep one time.
        lock: Held while time passes and while a driver's call is answered: a driver answers one
            call at a time, so calls to several GPUs take their time one after another.
    """

    gpus: tuple[VirtualGpu, ...]
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    def now_s(self) -> float:
        """Return virtual time in s."""
        return self.gpus[0].now_s

    def sleep_s(self, duration_s: float) -> None:
        """Let virtual time pass on every GPU."""
        with self.lock:
            for gpu in self.gpus:
                gpu.advance(duration_s)


@dataclass(frozen=True, slots=True)
class _VirtualLoop:
    gpu: VirtualGpu

    def progress(self) -> Progress:
        """Return how far it is.

        Raises:
            DeviceError: The GPU fell off the bus.
        """
        _check(self.gpu)
        running = self.gpu.running
        if running is None:
            return Progress(launches=0, elapsed_s=0.0)
        return Progress(launches=running.launches, elapsed_s=running.completed_s)


@dataclass(frozen=True, slots=True)
class VirtualLauncher:
    """Launches kernels by what they cost on the GPU's model.

    Attributes:
        gpu: On which.
        clocks: Of each launch of the one sequence that it will run, as if changes were free; by
            default locks decide.
    """

    gpu: VirtualGpu
    clocks: tuple[Clocks, ...] = ()

    @contextmanager
    def loop(self, kernels: Sequence[Kernel]) -> Iterator[Loop]:
        """Keep launching a sequence from entry to exit.

        Raises:
            UsageError: A kernel does not say what it does.
            DeviceError: The GPU fell off the bus.
        """
        _check(self.gpu)
        constants = {kernel.name: self.gpu.model.kernel(kernel) for kernel in kernels}
        self.gpu.begin(
            [constants[kernel.name] for kernel in kernels],
            tensor=[constants[kernel.name] for kernel in kernels if kernel.kind is Kind.GEMM],
            clocks=self.clocks,
        )
        try:
            yield _VirtualLoop(self.gpu)
        finally:
            self.gpu.end()

    def notes(self) -> tuple[str, ...]:
        """Return nothing: a model's kernels are what they are."""
        return ()


def _check(gpu: VirtualGpu) -> None:
    if gpu.lost:
        raise DeviceError("a launch failed: the GPU fell off the bus", hint="reboot the machine")
