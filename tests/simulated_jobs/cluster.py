"""Simulated boards that work together in one virtual time, and the links between them.

Each board is a virtual GPU with an agenda and heat of its own. Whoever makes them wait for one
another advances each as far as it is known to get; they are at one time only where that is asked.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from underclock.gpus.models import GpuModel
from underclock.hw.simulated.costs import Piece, Work
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.work import LaunchLoop
from underclock.physics.constants import KernelConstants
from underclock.records import Kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What moves data between two boards."""

    bytes_per_s: float
    latency_s: float = 0.0

    def takes_s(self, size_bytes: float) -> float:
        """Return what a transfer takes in s."""
        return self.latency_s + size_bytes / self.bytes_per_s


def piece_of(model: GpuModel, kernels: Sequence[Kernel], launches: Mapping[str, float]) -> Piece:
    """Return kernels of a step as one piece of work.

    Args:
        model: That runs them.
        kernels: Of the step.
        launches: Of each kernel of a section of the step; other sections are left out.
    """
    some = [kernel for kernel in kernels if launches.get(kernel.section or "")]
    return Piece(tuple((model.kernel(each), launches[each.section or ""]) for each in some))


@dataclass(slots=True, kw_only=True)
class _Errands(LaunchLoop):
    """A loop that is given one piece of work at a time, and waits between them."""

    def __post_init__(self) -> None:
        """Wait for the first."""
        LaunchLoop.__post_init__(self)
        self.single, self.hunts, self.idle = False, True, True

    def give(self, work: Work) -> None:
        """Begin a piece of work."""
        self.kernels, self.share, self.idle = (work,), 0.0, False

    def _end_turn(self) -> None:
        """Wait for the next."""
        self.share, self.idle = 0.0, True
        self.launches += 1
        self.completed_s = self.elapsed_s


class Board:
    """One board that runs what it is given and waits between, with its clocks up.

    Args:
        slowness: What it takes longer than its model at equal clocks, as a factor.

    Attributes:
        capped: Whether its power limit held it down at the end of what it ran last.
    """

    def __init__(self, gpu: VirtualGpu, *, slowness: float = 1.0) -> None:
        if not slowness > 0:
            raise ValueError(f"a board cannot be {slowness} times as slow as others")
        self.gpu = gpu
        self.slowness = slowness
        self.capped = False
        self._errands = _Errands(
            kernels=(KernelConstants(fixed_s=1.0),), time_noise=1.0, power_noise=1.0
        )
        self.draw_noise()
        gpu.run(self._errands)

    def draw_noise(self) -> None:
        """Draw anew by how much it is off what it usually takes and draws."""
        time_noise, self._errands.power_noise = self.gpu.draw_noise()
        self._errands.time_noise = time_noise * self.slowness

    @property
    def now_s(self) -> float:
        """How far it got, in virtual time."""
        return self.gpu.now_s

    @property
    def counted_j(self) -> float:
        """What its counter would show of its energy, were it read without end: gain included."""
        return self.gpu.unit.gain * self.gpu.energy_j

    def wait_until(self, at_s: float) -> None:
        """Wait, which takes no time where that has passed."""
        if at_s > self.now_s:
            self.gpu.advance(at_s - self.now_s)

    def run(self, work: Work, until_s: float = math.inf) -> bool:
        """Run a piece of work to its end, or until a time; say whether it ended."""
        self._errands.give(work)
        ended = self.gpu.work_off(until_s)
        self.capped = self.gpu.capped
        self._errands.idle = True
        return ended

    def warm_air(self, by_c: float) -> None:
        """Let the air that cools it be warmer than it was."""
        constants = self.gpu.constants
        self.gpu.constants = dataclasses.replace(constants, ambient_c=constants.ambient_c + by_c)

    def settle_heat(self, power_w: float) -> None:
        """Have it as warm as a mean power makes it."""
        constants = self.gpu.constants
        self.gpu.temperature_c = constants.ambient_c + constants.c_per_w * power_w


def boards_of(
    model: GpuModel, count: int, *, seed: int, spread: float = 0.0, units: Sequence[int] = ()
) -> tuple[Board, ...]:
    """Return boards of one model that differ.

    Args:
        seed: Of the draw of boards, and of their noise.
        spread: Standard deviation of their speeds at equal clocks, as a fraction.
        units: Which units of the model they are; by default the model itself where boards do not
            spread, else one after another from a number that is drawn.
    """
    random = np.random.default_rng([seed, count])
    first = int(random.integers(1, 2**31)) if spread else 0
    numbers = units or [first + i if spread else 0 for i in range(count)]
    return tuple(
        Board(
            VirtualGpu(model, seed=seed * count + at, unit=number),
            slowness=math.exp(spread * float(random.standard_normal())),
        )
        for at, number in enumerate(numbers)
    )
