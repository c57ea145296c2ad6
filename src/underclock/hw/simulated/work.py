"""What a virtual GPU has to do, and what goes wrong with it.

Work is a loop of this process, launches of its neighbours, or what other processes put in a row:
launches of their steps, and writes between. Launches of several processes run in the order in which
they were put there, as if the GPU switched between processes at every launch for nothing.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from underclock.arrays import Floats
from underclock.hw.base import Turn
from underclock.physics.constants import KernelConstants
from underclock.records import Clocks, ThrottleReason


class FaultKind(StrEnum):
    """What can go wrong."""

    PERMISSION_REVOKED = "every setter is refused"
    MEMORY_REFUSED = "memory locks fail, so a lock of both clocks stops half-way"
    GPU_LOST = "the GPU falls off the bus"
    COUNTER_RESTARTS = "the energy counter begins again at zero"
    COUNTER_STUCK = "the energy counter stands still, and goes on from there"
    SOFT_SLOWDOWN = "the driver lowers the clocks against heat"
    HARD_SLOWDOWN = "the hardware halves the clocks against heat"
    SETTER_HANGS = "every setter takes as long as a GPU's `hangs_s` before it does anything"
    LOCKS_IGNORED = "locks are accepted, and the clocks do not follow them"
    MARKS_STUCK = "what a stream writes does not arrive"
    MARKS_BACKWARDS = "what a stream writes counts down"


REASON_SOFT_SLOWDOWN = ThrottleReason.SW_THERMAL_SLOWDOWN
REASON_HARD_SLOWDOWN = ThrottleReason.HW_THERMAL_SLOWDOWN | ThrottleReason.HW_SLOWDOWN
_SLOWDOWNS = {  # reason, and the part of the highest clock that is left; the part is assumed
    FaultKind.SOFT_SLOWDOWN: (REASON_SOFT_SLOWDOWN, 0.75),
    FaultKind.HARD_SLOWDOWN: (REASON_HARD_SLOWDOWN, 0.5),
}
LASTING = frozenset(FaultKind) - {FaultKind.COUNTER_RESTARTS}
POWER_LIMIT_CHANGED = "power_limit_changed"
NAMES = {kind.name.lower(): kind for kind in FaultKind}
FAULT_NAMES = (*NAMES, POWER_LIMIT_CHANGED)
"""What can go wrong on demand."""
WITH_VALUE = {FaultKind.SETTER_HANGS.name.lower(), POWER_LIMIT_CHANGED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong."""

    at_s: float  # in virtual time
    kind: FaultKind
    for_s: float = math.inf  # a restarted counter is over at once
    gpu: int | None = None  # index of the GPU it befalls; None for all of them


def slowdown(faults: Sequence[FaultKind]) -> tuple[ThrottleReason, float]:
    """Return the throttle reasons of the slowdowns there are, and what they leave of the clock."""
    slowdowns = [_SLOWDOWNS[kind] for kind in faults if kind in _SLOWDOWNS]
    reasons = ThrottleReason.NONE
    for bits, _ in slowdowns:
        reasons |= bits
    return reasons, min((left for _, left in slowdowns), default=1.0)


_ROUND_S = 0.004  # every process has had its turn; time slices are about 2 ms
_ROUNDING_S = 1e-9
_ROUNDING = 1e-9  # of a launch
BEYOND_S = 1e-12
"""A little more than a turn lasts, so that it surely ends."""


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
    position: int = 0  # whose turn it is
    share: float = 0.0  # launches of the turn that are done; the last of them in part
    launches: int = 0  # whole rounds completed
    elapsed_s: float = 0.0  # since the loop began
    completed_s: float = 0.0  # of which until the last completion
    turn: Turn = field(init=False)
    took_s: list[float] = field(init=False)  # in each place, waiting inside launches included
    done: list[float] = field(init=False)  # launches of each place; the last of them in part
    many: bool = field(init=False)  # whether turns may pass together, being short
    _passed: Floats | None = field(init=False, default=None)  # by turn: time, and how often
    pids: tuple[int, ...] = field(init=False, default=())  # whose launches; none if this process's
    idle: bool = field(init=False, default=False)  # only a loop that is fed from outside runs out
    single: bool = field(init=False)  # nothing takes turns

    def __post_init__(self) -> None:
        """Look once; it is asked at every stride."""
        self.turns = self.turns or tuple(Turn(place, 1) for place in range(len(self.kernels)))
        self.turn = self.turns[self.position]
        self.single = len(self.kernels) == 1
        self.many = type(self) is LaunchLoop and not self.clocks
        self.hunts = self.hunts or not self.single
        places = 1 + max(turn.place for turn in self.turns)
        self.took_s, self.done = [0.0] * places, [0.0] * places

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
            self.launches += whole // turn.times
            self.completed_s = before_s + (whole - share) * launch_s
            self.share = max(0.0, reached - whole)
        else:
            self._end_turn()

    def pass_rounds(self, rounds: int, each_s: Sequence[float]) -> None:
        """Count whole rounds, whose turns take so long."""
        for turn, turn_s in zip(self.turns, each_s, strict=True):
            self.took_s[turn.place] += rounds * turn_s
            self.done[turn.place] += rounds * turn.times
        self.completed_s = self.elapsed_s = self.elapsed_s + rounds * math.fsum(each_s)
        self.launches += rounds

    def pass_turns(self, end: int, each_s: Floats) -> None:
        """Count whole turns up to that position, none begun, which take so long each."""
        if self._passed is None:
            self._passed = np.zeros((2, len(self.turns)))
        self._passed[:, self.position : end] += each_s, np.ones(len(each_s))
        self.elapsed_s += float(each_s.sum())
        self.position = end - 1
        self._end_turn()

    def counted(self) -> list[tuple[float, float]]:
        """Return time spent in each place and launches done, the last of them in part."""
        if self._passed is not None:
            for turn, (took_s, passed) in zip(self.turns, self._passed.T.tolist(), strict=True):
                self.took_s[turn.place] += took_s
                self.done[turn.place] += passed * turn.times
            self._passed = None
        return list(zip(self.took_s, self.done, strict=True))

    def _end_turn(self) -> None:
        self.share = 0.0
        position = self.position + 1
        self.position = position = 0 if position == len(self.turns) else position
        self.turn = self.turns[position]
        if position == 0:
            self.launches += 1
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


def turn(neighbours: Sequence[Neighbour], now_s: float) -> tuple[Neighbour | None, float]:
    """Return whose turn it is, ``None`` for this process, and for how many s longer."""
    phase_s = (now_s + _ROUNDING_S) % _ROUND_S
    end_s = 0.0
    for neighbour in neighbours:
        end_s += neighbour.share * _ROUND_S
        if phase_s < end_s:
            return neighbour, end_s - phase_s + _ROUNDING_S
    return None, _ROUND_S - phase_s + _ROUNDING_S


@dataclass(slots=True)
class Entry:
    """Launches next to one another, or something done when everything before has ended."""

    stream: Any  # the process's own, of which `waiting` launches have not ended
    position: int = 0  # of the next launch
    end: int = 0  # after the last
    action: Callable[[], None] | None = None  # None for launches


@dataclass(slots=True, kw_only=True)
class StreamLoop(LaunchLoop):
    """A loop that runs what is put in a row, once, and then waits for more."""

    row: deque[Entry] = field(default_factory=deque)  # the launch that runs belongs to the first
    lasted_s: list[float] = field(default_factory=list)  # each launch, lately; nan if it never ran

    def add(self, kernels: Sequence[KernelConstants]) -> int:
        """Learn another process's step; return the position of its first launch."""
        first = len(self.kernels)
        self.kernels = (*self.kernels, *kernels)
        self._learn(first)
        return first

    def _learn(self, first: int) -> None:
        places = range(first, len(self.kernels))
        self.turns = (*self.turns[:first], *(Turn(place, 1) for place in places))
        self.took_s += [0.0] * (len(self.kernels) - len(self.took_s))
        self.done += [0.0] * (len(self.kernels) - len(self.done))
        self.lasted_s += [math.nan] * (len(self.kernels) - len(self.lasted_s))

    def __post_init__(self) -> None:
        """Wait for something to do."""
        LaunchLoop.__post_init__(self)
        self._learn(0)
        self.single, self.hunts, self.idle = False, True, True

    def put(self, entry: Entry) -> None:
        """Put something in the row."""
        self.row.append(entry)
        if self.idle:
            self._next()

    def drop(self, stream: object) -> None:
        """Forget what a process had put there; its launch that runs ends here."""
        runs = not self.idle and bool(self.row) and self.row[0].stream is stream
        self.row = deque(entry for entry in self.row if entry.stream is not stream)
        if runs:
            self.share = 0.0
            self._next()

    def until_action_s(self) -> float:
        """Return when something other than launches, or a launch that never ran, is due, in s."""
        left_s = 0.0
        for entry in self.row:
            if entry.action is not None:
                return left_s
            for position in range(entry.position, entry.end):
                lasts_s = self.lasted_s[position]
                if math.isnan(lasts_s):
                    return left_s
                left_s += lasts_s
                if position == self.position and entry is self.row[0]:
                    left_s -= self.share * lasts_s
        return math.inf

    def wait(self, stride_s: float) -> None:
        """Let time pass in which something else executes, or nothing."""
        if self.idle:
            self.elapsed_s += stride_s
        else:
            LaunchLoop.wait(self, stride_s)

    def progress(self, stride_s: float, launch_s: float) -> None:
        """Count what a stride completed."""
        self.lasted_s[self.position] = launch_s
        LaunchLoop.progress(self, stride_s, launch_s)

    def _end_turn(self) -> None:
        self.share = 0.0
        self.launches += 1
        self.completed_s = self.elapsed_s
        entry = self.row[0]
        entry.position += 1
        entry.stream.waiting -= 1
        self._next()

    def _next(self) -> None:
        while self.row:
            entry = self.row[0]
            if entry.action is None and entry.position < entry.end:
                self.position = entry.position
                self.turn = self.turns[self.position]
                self.idle = False
                return
            self.row.popleft()
            if entry.action is not None:
                entry.action()
        self.idle = True
