"""A server of one simulated GPU, step by step: continuous batching, clocks that change, energy.

Requests come as a trace has them. A prompt is read whole before anything else is done, and tokens
of all that were read are made together, one a step. A step takes what the simulated GPU's physics
says at the clocks that run, and where these change within it, parts of it do. The power cap is met
step by step: one that would draw more runs at the highest clock at which it does not.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from underclock.arrays import Floats
from underclock.gpus.models import gpu_model
from underclock.physics.costs import busy_w, duration_s, idle_w
from underclock.records import Kind, Pass, Step
from underclock.runtime.trainer.pace import Pace
from underclock.workloads import workload

TEMPERATURE_C = 55.0  # of a GPU that serves, at any clocks: heat is left out
EACH_MHZ = 30  # between clocks that are tried; two bins
LEAST = 0.4  # of the highest core clock: lower saves nothing
BATCHES, CONTEXTS = (1, 2, 4, 8, 16, 32, 64, 128), (256, 1024, 4096, 16384)
PROMPTS = (64, 256, 512, 1024, 2048, 4096, 8192, 16384)
MOST_BATCH = BATCHES[-1]
CONTEXT_EACH = 256
_BELOW_LIMIT_W = 3.0  # where a power loop settles


class Request(NamedTuple):
    """What somebody asks for."""

    at_s: float
    prompt: int  # tokens
    tokens: int  # to make


@dataclass(frozen=True, kw_only=True)
class Board:
    """What steps cost on a simulated GPU at core clocks, auto's memory clock.

    Attributes:
        name: Of the GPU.
        model: What it serves.
        sizes: That differ from the model's own.
        core_mhz: Clocks, ascending; auto is the last. Shape (C,).
        idle_w: Shape (C,).
        decode_s, decode_j: By batch from 0, context in parts of 256, clock. Shape (B, K, C).
        prefill_s, prefill_j: By prompt in parts of 64 tokens and clock. Shape (T, C).
    """

    name: str
    model: str
    sizes: dict[str, int]
    core_mhz: Floats
    idle_w: list[float]
    decode_s: list[list[list[float]]]
    decode_j: list[list[list[float]]]
    prefill_s: list[list[float]]
    prefill_j: list[list[float]]

    @classmethod
    def of(cls, name: str, model: str, sizes: dict[str, int], *, limit_w: float) -> "Board":
        """Ask the physics of a simulated GPU under a power limit."""
        gpu = gpu_model(name)
        top, least = max(gpu.core_mhz), LEAST * max(gpu.core_mhz)
        core = np.arange(top, least, -EACH_MHZ, dtype=float)[::-1]
        mem_mhz = float(max(gpu.mem_mhz))

        def costs(phase: Pass, batch: int, context: int) -> tuple[Floats, Floats]:
            asked = {**sizes, "batch": batch, "context": context}
            return _costs(name, workload(f"{model}-{phase}", asked), core, limit_w)

        decode = np.array([[costs(Pass.DECODE, b, c) for c in CONTEXTS] for b in BATCHES])
        prefill = np.array([costs(Pass.PREFILL, 1, c) for c in PROMPTS])  # (T, 2, C)
        batches = range(MOST_BATCH + 1)
        contexts = range(0, CONTEXTS[-1] + 1, CONTEXT_EACH)
        fine = _along(_along(decode, 0, BATCHES, batches), 1, CONTEXTS, contexts)
        prompts = _along(prefill, 0, PROMPTS, range(0, PROMPTS[-1] + 1, PROMPTS[0]))
        decode_s, decode_j = np.moveaxis(fine, 2, 0)
        prefill_s, prefill_j = np.moveaxis(prompts, 1, 0)
        idle = [float(idle_w(gpu.constants, f, mem_mhz, TEMPERATURE_C)) for f in core]
        return cls(
            name=name, model=model, sizes=sizes, core_mhz=core, idle_w=idle,
            decode_s=decode_s.tolist(), decode_j=decode_j.tolist(),
            prefill_s=prefill_s.tolist(), prefill_j=prefill_j.tolist(),
        )  # fmt: skip

    def index(self, core_mhz: float | None) -> int:
        """Return which clock is the one asked for; auto is the highest."""
        if core_mhz is None:
            return len(self.core_mhz) - 1
        return int(np.searchsorted(self.core_mhz, core_mhz + 0.5)) - 1


def _costs(name: str, step: Step, core_mhz: Floats, limit_w: float) -> tuple[Floats, Floats]:
    """Return time in s and energy in J of a step at each clock that is asked for, under a cap."""
    gpu = gpu_model(name)
    if gpu.throughput is None:
        raise ValueError(f"nothing says what a kernel takes on {name}")
    mem_mhz = np.full_like(core_mhz, max(gpu.mem_mhz))
    time_s, energy_j = np.zeros_like(core_mhz), np.zeros_like(core_mhz)
    for kernel in step.kernels:
        own = gpu.throughput.kernel(
            flops=kernel.flops or 0.0,
            bytes_moved=kernel.bytes_moved or 0.0,
            tensor=kernel.kind is Kind.GEMM,
        )
        each_s = duration_s(gpu.constants, own, core_mhz, mem_mhz)
        power_w = busy_w(gpu.constants, own, core_mhz, mem_mhz, TEMPERATURE_C)
        time_s, energy_j = (
            time_s + kernel.count * each_s,
            energy_j + kernel.count * each_s * power_w,
        )
    below = np.flatnonzero(energy_j / time_s <= limit_w - _BELOW_LIMIT_W)
    capped = np.minimum(np.arange(len(core_mhz)), below[-1] if len(below) else 0)
    return time_s[capped], energy_j[capped]


def _along(values: Floats, axis: int, at: Sequence[int], wanted: range) -> Floats:
    """Interpolate along one axis; what lies beyond is that of the end."""
    moved = np.moveaxis(values, axis, 0)
    flat = moved.reshape(len(at), -1)
    fine = np.array([np.interp(wanted, at, column) for column in flat.T]).T
    return np.moveaxis(fine.reshape(len(wanted), *moved.shape[1:]), 0, axis)


class Clocking(Protocol):
    """Whoever decides clocks, as a server and a GPU meet it. Clocks are indices of a board's."""

    def begin(self, now_s: float, step: "Begun") -> None:
        """Hear that a step begins, or with batch 0 that the GPU idles."""

    def comes(self, now_s: float, prompt: int, within_s: float | None) -> None:
        """Hear that a request came while a step runs, and how long its prompt may take."""

    def running(self, now_s: float) -> int:
        """Return the clock that runs."""

    def changes_s(self, now_s: float) -> float:
        """Return when another may run, unless something begins before."""


class Begun(NamedTuple):
    """A step that begins."""

    phase: Pass
    batch: int
    context: int
    waiting: int  # requests whose prompt nobody has read yet
    within_s: float | None = None  # in which all its requests are in time, by the server's pace


@dataclass(kw_only=True)
class Served:
    """What became of a trace.

    Attributes:
        ttft_s: Time to the first token, of each request.
        tpot_s: Time per output token after it, of each request of more than one.
        energy_j: Of all, idling included.
        tokens: Made.
        busy_s, wall_s: Time with a step running, and all of it.
    """

    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    energy_j: float = 0.0
    tokens: int = 0
    busy_s: float = 0.0
    wall_s: float = 0.0


def serve(
    requests: Sequence[Request],
    board: Board,
    clocking: Clocking,
    pace: Pace | None = None,
    *,
    counted_s: float = 0.0,
) -> Served:
    """Serve a trace.

    Args:
        requests: In the order in which they come.
        pace: That the server keeps; it tells of every step how long that may take.
        counted_s: From when on energy, and requests that come, are counted: before, it warms up.
    """
    return _Server(requests, board, clocking, pace, counted_s).served()


class _Server:
    """One run through a trace."""

    def __init__(
        self,
        requests: Sequence[Request],
        board: Board,
        clocking: Clocking,
        pace: Pace | None,
        counted_s: float,
    ) -> None:
        self._board, self._clocking, self._pace = board, clocking, pace
        self._counted_s, self._now_s, self._steps, self._number = counted_s, 0.0, 0, 0
        self._coming, self._waiting = deque(requests), deque[Request]()
        # By the step that makes the last token; when the first one was made, and a number.
        self._ends: list[tuple[int, float, int, Request]] = []
        self._context = 0  # tokens of all that are being served
        self._served = Served()

    def served(self) -> Served:
        """Serve all."""
        served = self._served
        while self._coming or self._waiting or self._ends:
            if self._now_s < self._counted_s:
                served.energy_j, served.tokens, served.busy_s = 0.0, 0, 0.0
            self._take()
            if self._waiting and len(self._ends) < MOST_BATCH:
                self._prefill(self._waiting.popleft())
            elif self._ends:
                self._decode()
            else:
                self._idle(self._coming[0].at_s)
        served.wall_s = self._now_s - self._counted_s
        return served

    def _take(self) -> None:
        """Take in the requests that have come."""
        while self._coming and self._coming[0].at_s <= self._now_s:
            self._waiting.append(self._coming.popleft())

    def _prefill(self, request: Request) -> None:
        """Read a prompt, which makes the first token."""
        board = self._board
        at = min(request.prompt // PROMPTS[0] + 1, len(board.prefill_s) - 1)
        pace, waiting, began_s = self._pace, len(self._waiting), self._now_s
        waited_s = began_s - request.at_s
        within_s = pace.first_within_s(began_s, waited_s, waiting) if pace else None
        step = Begun(Pass.PREFILL, 1, request.prompt, waiting, within_s)
        self._run(board.prefill_s[at], board.prefill_j[at], step)
        now_s = self._now_s
        self._served.tokens += 1
        if request.at_s >= self._counted_s:
            self._served.ttft_s.append(now_s - request.at_s)
        if request.tokens > 1:
            self._number += 1
            end = self._steps + request.tokens - 1, now_s, self._number, request
            heapq.heappush(self._ends, end)
            self._context += request.prompt
            if self._pace:
                self._pace.began(self._number, now_s, now_s - request.at_s)

    def _decode(self) -> None:
        """Make one token of every request that has its first."""
        board, batch, pace = self._board, len(self._ends), self._pace
        each = self._context // batch
        at = min(each // CONTEXT_EACH + 1, len(board.decode_s[0]) - 1)
        within_s = pace.within_s(self._now_s) if pace else None
        step = Begun(Pass.DECODE, batch, each, len(self._waiting), within_s)
        self._run(board.decode_s[batch][at], board.decode_j[batch][at], step)
        self._steps += 1
        self._served.tokens += batch
        self._context += batch
        if pace:
            pace.stepped()
        while self._ends and self._ends[0][0] <= self._steps:
            _, first_s, number, request = heapq.heappop(self._ends)
            if pace:
                pace.ended(number, self._now_s)
            if request.at_s >= self._counted_s:
                self._served.tpot_s.append((self._now_s - first_s) / (request.tokens - 1))
            self._context -= request.prompt + request.tokens - 1

    def _run(self, times: list[float], joules: list[float], step: Begun) -> None:
        """Let one step pass, by the clocks that run meanwhile."""
        clocking, coming, began_s = self._clocking, self._coming, self._now_s
        clocking.begin(began_s, step)
        now_s, left = began_s, 1.0
        while True:
            clock, until_s = clocking.running(now_s), clocking.changes_s(now_s)
            if coming:
                until_s = min(until_s, coming[0].at_s)
            if now_s + left * times[clock] <= until_s:
                break
            part = max(0.0, until_s - now_s) / times[clock]
            self._served.energy_j += part * joules[clock]
            left, now_s = left - part, max(now_s, until_s)
            while coming and coming[0].at_s <= now_s:
                # It waits for that step, so that a pace has no time to give away.
                clocking.comes(now_s, coming[0].prompt, 0.0 if self._pace else None)
                self._waiting.append(coming.popleft())
        self._served.energy_j += left * joules[clock]
        self._now_s = now_s + left * times[clock]
        self._served.busy_s += self._now_s - began_s

    def _idle(self, until_s: float) -> None:
        """Wait for the next request."""
        clocking, now_s = self._clocking, self._now_s
        within_s = self._pace.rise_s() if self._pace else None
        clocking.begin(now_s, Begun(Pass.DECODE, 0, 0, 0, within_s))
        while now_s < until_s:
            clock = clocking.running(now_s)
            next_s = min(until_s, max(clocking.changes_s(now_s), now_s))
            self._served.energy_j += self._board.idle_w[clock] * (next_s - now_s)
            now_s = next_s
        self._now_s = until_s
