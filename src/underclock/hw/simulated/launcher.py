"""Runs kernels on a virtual GPU, in virtual time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from underclock.hw.base import Loop, Progress
from underclock.hw.simulated.device import VirtualGpu
from underclock.records import Kernel


@dataclass(frozen=True, slots=True)
class VirtualClock:
    """The virtual GPUs' time; sleeping is what makes them run."""

    gpus: tuple[VirtualGpu, ...]

    def now_s(self) -> float:
        """Return virtual time in s."""
        return self.gpus[0].now_s

    def sleep_s(self, duration_s: float) -> None:
        """Let virtual time pass on every GPU."""
        for gpu in self.gpus:
            gpu.advance(duration_s)


@dataclass(frozen=True, slots=True)
class _VirtualLoop:
    gpu: VirtualGpu

    def progress(self) -> Progress:
        activity = self.gpu.activity
        if activity is None:
            return Progress(launches=0, elapsed_s=0.0)
        return Progress(launches=activity.launches, elapsed_s=activity.completed_s)


@dataclass(frozen=True, slots=True)
class VirtualLauncher:
    """Launches kernels by what their FLOPs and bytes cost on the GPU's model."""

    gpu: VirtualGpu

    @contextmanager
    def loop(self, kernels: Sequence[Kernel]) -> Iterator[Loop]:
        """Keep launching a sequence from entry to exit.

        Raises:
            UsageError: A kernel does not say what it does.
        """
        constants = {kernel.name: self.gpu.model.kernel(kernel) for kernel in kernels}
        self.gpu.begin([constants[kernel.name] for kernel in kernels])
        try:
            yield _VirtualLoop(self.gpu)
        finally:
            self.gpu.end()
