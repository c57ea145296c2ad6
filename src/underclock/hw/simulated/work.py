"""What a virtual GPU has to do: the kernels of this process, and of its neighbours."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from underclock.hw.rounds import Turn
from underclock.physics.constants import KernelConstants
from underclock.records import Clocks

_ROUND_S = 0.004  # every process has had its turn; time slices are about 2 ms
_ROUNDING_S = 1e-9
_ROUNDING = 1e-9  # of a launch
BEYOND_S = 1e-12


@dataclass(slots=True)
class LaunchLoop:
    """Rounds of kernels, one after the other."""

    kernels: tuple[KernelConstants, ...]  # what runs in a round, in turn
    time_noise: float  # relative, of durations and of power, drawn once per loop
    power_noise: float
    # How often each is launched in a row, and whose launches these are; by default once, and a
    # place each.
    turns: tuple[Turn, ...] = ()
    hunts: bool = False  # the power loop never settles over it; several kernels do not let it
    clocks: tuple[Clocks, ...] = ()  # of each launch, changed for nothing; none where locks decide
    rounds: int = 1  # that the turns are
    position: int = 0  # whose turn it is
    share: float = 0.0  # launches of the turn that are done; the last of them in part
    launches: int = 0  # whole rounds completed
    elapsed_s: float = 0.0  # since the loop began
    completed_s: float = 0.0  # of which until the last completion
    turn: Turn = field(init=False)
    took_s: list[float] = field(init=False)  # in each place, waiting inside launches included
    done: list[float] = field(init=False)  # launches of each place; the last of them in part
    pids: tuple[int, ...] = field(init=False, default=())  # whose launches; none if this process's
    idle: bool = field(init=False, default=False)  # only a loop that is fed from outside runs out
    single: bool = field(init=False)  # nothing takes turns

    def __post_init__(self) -> None:
        """Look once; it is asked at every stride."""
        self.turns = self.turns or tuple(Turn(place, 1) for place in range(len(self.kernels)))
        self.turn = self.turns[self.position]
        self.single = len(self.kernels) == 1
        self.hunts = self.hunts or not self.single
        places = 1 + max(turn.place for turn in self.turns)
        self.took_s, self.done = [0.0] * places, [0.0] * places

    def left_s(self, launch_s: float) -> float:
        """Return how long the turn lasts from now, and a little more, so that it surely ends."""
        return launch_s * (self.turn.times - self.share) + BEYOND_S

    def progress(self, stride_s: float, launch_s: float) -> None:
        """Count what a stride completed, which ends with the turn or before, if turns change."""
        turn, share, before_s = self.turn, self.share, self.elapsed_s
        launched = stride_s / launch_s
        self.took_s[turn.place] += stride_s
        self.done[turn.place] += launched
        self.elapsed_s = before_s + stride_s
        self.share = reached = share + launched
        if reached < turn.times - _ROUNDING:
            return
        if self.single:
            whole = int((reached + _ROUNDING) / turn.times) * turn.times
            self.launches += whole // turn.times * self.rounds
            self.completed_s = before_s + (whole - share) * launch_s
            self.share = max(0.0, reached - whole)
        else:
            self._end_turn()

    def _end_turn(self) -> None:
        self.share = 0.0
        position = self.position + 1
        self.position = position = 0 if position == len(self.turns) else position
        self.turn = self.turns[position]
        if position == 0:
            self.launches += self.rounds
            self.completed_s = self.elapsed_s

    def wait(self, stride_s: float) -> None:
        """Let time pass in which something else executes, or nothing."""
        self.took_s[self.turn.place] += stride_s
        self.elapsed_s += stride_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """Another process that computes on the GPU, in turns with this one."""

    pid: int
    kernel: KernelConstants
    share: float  # of the GPU's time
    memory_mib: int = 2048  # that it holds

    def __post_init__(self) -> None:
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
