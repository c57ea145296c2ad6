"""What a virtual GPU has to do: the kernels of this process, and of its neighbours."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from underclock.physics.constants import KernelConstants
from underclock.records import Clocks

_ROUND_S = 0.004  # every process has had its turn; time slices are about 2 ms
_ROUNDING_S = 1e-9


@dataclass(slots=True)
class LaunchLoop:
    """Kernels launched over and over.

    Attributes:
        kernels: The sequence.
        single: Whether it is one kernel that repeats.
        time_noise: Relative noise of durations, drawn once per loop.
        power_noise: Relative noise of power, drawn once per loop.
        clocks: Of each launch, changed for nothing as it begins; none where locks decide.
        position: Which kernel runs.
        share: How much of it is done, 0 to 1.
        launches: Whole sequences completed.
        elapsed_s: Since the loop began.
        completed_s: Of which until the last completion.
    """

    kernels: tuple[KernelConstants, ...]
    time_noise: float
    power_noise: float
    clocks: tuple[Clocks, ...] = ()
    position: int = 0
    share: float = 0.0
    launches: int = 0
    elapsed_s: float = 0.0
    completed_s: float = 0.0
    single: bool = field(init=False)

    def __post_init__(self) -> None:
        """Look once; it is asked at every stride."""
        self.single = len(self.kernels) == 1

    @property
    def own_clocks(self) -> Clocks | None:
        """Those of the launch that runs; ``None`` where locks decide."""
        return self.clocks[self.position] if self.clocks else None

    def progress(self, stride_s: float, kernel_s: float) -> None:
        """Count what a stride completed.

        Args:
            stride_s: Ends with the kernel that runs, or before; a single kernel may complete
                any number of times.
            kernel_s: Duration of the kernel that runs.
        """
        done = self.share + stride_s / kernel_s
        if self.single:
            whole = int(done + 1e-9)
            if whole:
                self.launches += whole
                self.completed_s = self.elapsed_s + (whole - self.share) * kernel_s
            self.share = max(0.0, done - whole)
        elif done >= 1.0 - 1e-9:
            self.share = 0.0
            self.position = (self.position + 1) % len(self.kernels)
            if self.position == 0:
                self.launches += 1
                self.completed_s = self.elapsed_s + stride_s
        else:
            self.share = done
        self.elapsed_s += stride_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """Another process that computes on the GPU, in turns with this one.

    Attributes:
        pid: Its process.
        kernel: What it runs.
        share: Of the GPU's time that it takes.
        memory_mib: Device memory that it holds.
    """

    pid: int
    kernel: KernelConstants
    share: float
    memory_mib: int = 2048

    def __post_init__(self) -> None:
        """Reject shares that leave nothing, or are nothing."""
        if not 0 < self.share < 1:
            raise ValueError(f"a share lies between 0 and 1, got {self.share}")


def turn(neighbours: Sequence[Neighbour], now_s: float) -> tuple[Neighbour | None, float]:
    """Return whose turn it is, ``None`` for this process, and for how many s longer."""
    phase_s = (now_s + _ROUNDING_S) % _ROUND_S
    end_s = 0.0
    for neighbour in neighbours:
        end_s += neighbour.share * _ROUND_S
        if phase_s < end_s:
            return neighbour, end_s - phase_s + _ROUNDING_S
    return None, _ROUND_S - phase_s + _ROUNDING_S
