"""What processes put in a row for one virtual GPU: launches of their steps, and writes between.

Launches of several processes run in the order in which they were put there, as if the GPU switched
between processes at every launch for nothing.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from underclock.hw.rounds import Turn
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.work import LaunchLoop
from underclock.physics.constants import KernelConstants
from underclock.records import Step


@dataclass(slots=True)
class _Entry:
    """Launches next to one another, or something done when everything before has ended."""

    stream: "Stream"
    position: int = 0  # of the next launch
    end: int = 0  # after the last
    action: Callable[[], None] | None = None  # None for launches


@dataclass(slots=True, kw_only=True)
class StreamLoop(LaunchLoop):
    """A loop that runs what is put in a row, once, and then waits for more."""

    row: deque[_Entry] = field(default_factory=deque)  # the launch that runs belongs to the first
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

    def put(self, entry: _Entry) -> None:
        """Put something in the row."""
        self.row.append(entry)
        if self.idle:
            self._next()

    def drop(self, stream: "Stream") -> None:
        """Forget what a process had put there; its launch that runs ends here."""
        runs = not self.idle and bool(self.row) and self.row[0].stream is stream
        self.row = deque(entry for entry in self.row if entry.stream is not stream)
        if runs:
            self.share = 0.0
            self._next()

    def until_action_s(self) -> float:
        """Return how long it will be until something other than launches is due.

        Where a launch never ran, until it should be looked at again; infinity where nothing is due.
        """
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


class Stream:
    """One process's launches of a step on one virtual GPU."""

    def __init__(self, gpu: VirtualGpu, step: Step, *, pid: int) -> None:
        kernels = [gpu.model.kernel(step.kernels[index]) for index in step.order]
        self.waiting = 0  # launches that have not ended
        self.launches = len(kernels)
        self.gpu = gpu
        self._pid = pid
        running = gpu.running
        if isinstance(running, StreamLoop):
            self._loop, self._first = running, running.add(kernels)
        elif running is not None:
            raise ValueError("the GPU runs a load of its own: serve it without --load")
        else:
            self._loop, self._first = StreamLoop(tuple(kernels), *gpu.draw_noise()), 0
            gpu.run(self._loop)
        self._loop.pids = (*self._loop.pids, pid)

    @property
    def lost(self) -> bool:
        """Whether nothing will ever run again."""
        return self.gpu.running is not self._loop

    def work(self, first: int, end: int) -> None:
        """Put launches in the row, from one up to another."""
        if not 0 <= first <= end <= self.launches:
            raise ValueError(f"launches {first} to {end} are not in a step of {self.launches}")
        self.waiting += end - first
        self._loop.put(_Entry(self, self._first + first, self._first + end))

    def then(self, action: Callable[[], None]) -> None:
        """Do something when everything put there before has ended."""
        self._loop.put(_Entry(self, action=action))

    def close(self) -> None:
        """End, as when the process does: what has not run never will."""
        self._loop.drop(self)
        pids = list(self._loop.pids)
        pids.remove(self._pid)
        self._loop.pids = tuple(pids)
        if not pids and not self.lost:
            self.gpu.end()
