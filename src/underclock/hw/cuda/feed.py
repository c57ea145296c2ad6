"""Keeps a stream of the GPU fed, and times what runs on it, by CUPTI's timestamps too.

`CudaSmallKernels` runs small kernels of equal work, timed by events around a few of them: for the
core one thread that counts cycles, so that its duration times the clock is constant; for the memory
a copy that no L2 cache holds.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np

from underclock.arrays import Floats
from underclock.errors import DeviceError, MeasurementError, NotSupportedError, StuckError
from underclock.hw.base import SMALL_S, Clock, Durations, Progress, Round, SystemClock
from underclock.hw.cuda.driver import INSTALL_TORCH, STUCK_S, wait_for_gpu
from underclock.hw.cuda.driver import torch as import_torch
from underclock.hw.cuda.torch_step import profiler_detaches
from underclock.hw.lockstep import SILENT_S, RankPace
from underclock.records.work import NodeKind, TracedActivity
from underclock.units import Domain

_HURRIED_S = 4.0  # the same where a signal ends the command
_POLL_S = 1e-4  # between looks at what the GPU does
_JOIN_S = 0.2  # between looks at the thread that launches
IN_FLIGHT = 3
"""Launches queued ahead of the GPU."""
_MOST_EVENTS = 12_000  # each takes some 50 µs to read: of kernels of 10 µs, five times as long
_LEAST_LAUNCHES = IN_FLIGHT + 3  # those under way at both ends are seen in part, if at all
_SETTLE_S = 0.3  # a profiler that starts may hold launches up, and then clocks rise
LOOK_S = 1.5
"""What a look takes besides looking on: to let launches settle, to begin, and to read what was
seen. On H200s campaigns of 36 and of 45 looks took 1.4 s more for each than their windows did on
one GPU, and 1.9 s on two (measured by us)."""
_TRIES = 3
_NOT_KERNELS = (("Memset (", NodeKind.MEMSET), ("Memcpy ", NodeKind.COPY))  # by their names
_LOST = "this process's GPU work is lost; look at the GPU with `nvidia-smi`"
_ALONE = (
    "this process's GPU work is lost. Maybe the kernel waits for what another one of its operator "
    "prepares: have the step compute it otherwise, and report the kernel"
)
_HINT = (
    "another profiler may hold the GPU's timestamps (Nsight, a job's own, DCGM's profiling "
    "counters): end it and measure again; in a container CUPTI may be missing or forbidden"
)


Means = Callable[[Sequence[Sequence[TracedActivity]]], dict[int, float] | None]
"""From what a profiler saw of each call that launches: the mean duration of a launch of each place;
``None`` where no round was seen whole."""


class Feed:
    """Keeps a stream fed from a thread of its own to the end of a block; counts what is done."""

    def __init__(
        self, torch: Any, launch: Callable[[Any], None], per_round: int, pace: RankPace
    ) -> None:
        self._torch, self._launch, self._per_round, self._pace = torch, launch, per_round, pace
        self._device = torch.cuda.current_device()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._done = Progress(launches=0, elapsed_s=0.0)
        self._error: Exception | None = None
        self._moved_s = SystemClock().now_s()  # when it last launched, or saw a launch done
        self._thread = threading.Thread(target=self._run, name="underclock-launches", daemon=True)
        self._thread.start()

    def progress(self) -> Progress:
        """Return how far it is."""
        with self._lock:
            if self._error is not None:
                kind = StuckError if isinstance(self._error, StuckError) else DeviceError
                raise kind(f"a launch failed: {self._error}") from self._error
            return self._done

    def run_out(self) -> None:
        """Wait until its pace lets nothing more be launched, and all that was is done."""
        while self._thread.is_alive():
            self._thread.join(_JOIN_S)
            if SystemClock().now_s() - self._moved_s > SILENT_S + STUCK_S:
                raise _stuck("the launch that the first rank asked for", SILENT_S + STUCK_S)
        self.progress()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(STUCK_S if kind is None or issubclass(kind, Exception) else _HURRIED_S)
        self._pace.end()

    def close(self, longest_s: float = STUCK_S) -> None:
        """Stop launching and wait for what is in flight."""
        self._stop.set()
        self._thread.join(longest_s)
        if self._thread.is_alive():
            raise _stuck("launches in flight", longest_s)

    def _run(self) -> None:
        torch = self._torch
        try:
            torch.cuda.set_device(self._device)
            stream = torch.cuda.Stream()
            begun = torch.cuda.Event(enable_timing=True)
            begun.record(stream)
            flying: list[Any] = []
            while not self._stop.is_set() and self._pace.go():
                self._launch(stream)
                self._moved_s = SystemClock().now_s()
                ended = torch.cuda.Event(enable_timing=True)
                ended.record(stream)
                flying.append(ended)
                if len(flying) < IN_FLIGHT:
                    continue
                ended = flying.pop(0)
                _wait_for(ended)
                self._moved_s = SystemClock().now_s()
                elapsed_s = begun.elapsed_time(ended) * 1e-3
                with self._lock:
                    launches = self._done.launches + self._per_round
                    self._done = Progress(launches=launches, elapsed_s=elapsed_s)
            for ended in flying[-1:]:
                _wait_for(ended)
        except Exception as exc:  # noqa: BLE001 - raised where progress is asked for
            with self._lock:
                self._error = exc


def _wait_for(ended: Any, poll_s: float = _POLL_S, hint: str = _LOST) -> None:
    """Wait until the GPU has come to an event, letting other threads run meanwhile."""
    clock = SystemClock()
    until_s = clock.now_s() + STUCK_S
    while not ended.query():
        if clock.now_s() > until_s:
            raise _stuck("a launch", STUCK_S, hint)
        clock.sleep_s(poll_s)


def _stuck(what: str, longest_s: float, hint: str = _LOST) -> StuckError:
    return StuckError(
        f"{what} did not end in {longest_s:g} s: the GPU hangs, or waits for another rank",
        hint=hint,
    )


def timed(torch: Any, launch: Callable[[Any], None], times: int) -> float:
    """Return the GPU time of some launches, in s."""
    stream = torch.cuda.current_stream()
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record(stream)
    for _ in range(times):
        launch(stream)
    ended.record(stream)
    _wait_for(ended, 0.0, _ALONE)
    return max(1e-9, float(begun.elapsed_time(ended)) * 1e-3)


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaLoop:
    """Rounds being launched over and over."""

    torch: Any  # PyTorch
    clock: Clock  # the host's
    feed: Feed  # launches them
    round: Round  # what a round is made of
    means: Means  # what launches took, from a profile
    rounds: int  # rounds in a launch of the feed
    events: int  # kernels, memsets and copies in a launch of the feed

    def progress(self) -> Progress:
        """Return how far it is."""
        return self.feed.progress()

    def run_out(self) -> None:
        """Wait until its pace lets nothing more be launched."""
        self.feed.run_out()

    def durations(self, for_s: float) -> Durations:
        """Watch launches for a while, at least until some rounds were seen whole."""
        watch_s, settle_s = for_s, _SETTLE_S
        if (done := self.feed.progress()).launches:  # reading what was seen must not take minutes
            launch_s = done.elapsed_s / done.launches * self.rounds
            most_s = _MOST_EVENTS / self.events * launch_s
            watch_s = max(min(for_s, most_s), _LEAST_LAUNCHES * launch_s)
            settle_s = min(_SETTLE_S, most_s)
        for _ in range(_TRIES):
            seen = self._watch(watch_s, settle_s)
            self.feed.progress()  # where nothing runs any more, this says why
            if not seen:
                raise NotSupportedError(
                    "launches cannot be timed: PyTorch's profiler saw nothing that ran on the GPU",
                    hint=_HINT,
                )
            mean_s = self.means([launch for launch in seen if launch])
            if mean_s is not None:
                return self.round.durations(mean_s)
            watch_s *= 2
        raise MeasurementError(
            f"launches cannot be timed: in {watch_s / 2:.1f} s the profiler saw {len(seen)} "
            "launches, but not each of ours whole",
            hint="another program or thread may launch work on this GPU: end it and measure again",
        )

    def _watch(self, for_s: float, settle_s: float) -> list[list[TracedActivity]]:
        if self.torch.autograd._profiler_enabled():  # noqa: SLF001 - a second one would end it
            raise NotSupportedError(
                "launches cannot be timed: a PyTorch profiler of this process is looking on",
                hint="measure outside of it",
            )
        try:
            return watched(self.torch, self.clock, for_s, settle_s)
        except RuntimeError as exc:  # what PyTorch raises, a GPU that fell off the bus included
            self.feed.progress()
            raise NotSupportedError(
                f"launches cannot be timed: PyTorch's profiler says {exc}", hint=_HINT
            ) from exc


def watched(torch: Any, clock: Clock, for_s: float, settle_s: float) -> list[list[TracedActivity]]:
    """Return what the GPU did for each launch of a graph while one looks on, in order.

    Launches that began while a profiler that had just started settled are left out.
    """
    profiler = torch.profiler
    with (
        profiler_detaches(detaches=False),
        profiler.profile(activities=[profiler.ProfilerActivity.CUDA], acc_events=True) as profile,
    ):
        clock.sleep_s(settle_s + for_s)
    on_gpu = torch.autograd.DeviceType.CUDA
    # Not `profile.events()`, which builds objects of its own: that takes minutes.
    events = [
        event
        for event in profile.profiler.kineto_results.events()
        if event.device_type() == on_gpu and not event.is_user_annotation()
    ]
    events.sort(key=lambda event: event.start_ns())
    begun_ns = events[0].start_ns() if events else 0
    by_launch: dict[int, list[TracedActivity]] = defaultdict(list)
    early: set[int] = set()
    for event in events:
        launch = event.correlation_id()
        if event.start_ns() < begun_ns + settle_s * 1e9:
            early.add(launch)
        activities = by_launch[launch]
        if launch not in early:
            name, kind = event.name(), NodeKind.KERNEL
            kind = next((kind for mark, kind in _NOT_KERNELS if name.startswith(mark)), kind)
            name = name if kind is NodeKind.KERNEL else ""
            at_s, lasts_s = (event.start_ns() - begun_ns) * 1e-9, event.duration_ns() * 1e-9
            one = TracedActivity(kind=kind, function=name, start_s=at_s, duration_s=lasts_s)
            activities.append(one)
    return list(by_launch.values())


_IN_A_ROW = 10  # small kernels between two events: 0.2 ms, to which gaps add about 1 %
_SAMPLES = 10  # in a launch of the feed, of which a few wait in the queue: 6 ms ahead
_COPIED = 256 * 2**20  # bytes
_SIDE = 4096  # of the hot product's matrices: 0.2 ms on an H200


class CudaSmallKernels:
    """Small kernels on PyTorch's current device; ``core_mhz`` is its highest core clock."""

    def __init__(self, core_mhz: int, torch: Any = None) -> None:
        try:
            self._torch = torch or import_torch()
        except NotSupportedError as exc:
            raise NotSupportedError(
                f"latency is read from small kernels, which PyTorch with CUDA runs: {exc}",
                hint=INSTALL_TORCH,
            ) from exc
        self._cycles = round(SMALL_S * core_mhz * 1e6)

    def run(self, during: Callable[[], None], domain: Domain, hot_s: float = 0.0) -> Floats:
        """Run them while something is done."""
        torch, clock = self._torch, SystemClock()
        graph, _kept = self._captured(domain)
        product = self._product() if hot_s else None
        anchor = torch.cuda.Event(enable_timing=True)
        begun_s: list[float] = []
        timed: list[tuple[Any, Any, bool]] = []

        def launch(stream: Any) -> None:
            with torch.cuda.stream(stream):
                if not begun_s:
                    anchor.record(stream)
                    anchor.synchronize()
                    begun_s.append(clock.now_s())
                for _ in range(_SAMPLES):
                    hot = product is not None and (clock.now_s() - begun_s[0]) % (2 * hot_s) < hot_s
                    if hot and product is not None:
                        product()
                    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    first.record(stream)
                    graph.replay()
                    last.record(stream)
                    timed.append((first, last, hot))

        with Feed(torch, launch, 1, RankPace()) as feed:
            during()
        feed.progress()  # raises where a launch failed
        rows = [
            (begun_s[0] + 1e-3 * anchor.elapsed_time(a), 1e-3 * a.elapsed_time(b), hot)
            for a, b, hot in timed
        ]
        return np.array(rows, dtype=np.float64).reshape(-1, 3)

    def _captured(self, domain: Domain) -> tuple[Any, object]:
        torch = self._torch
        work: Callable[[], object] = partial(torch.cuda._sleep, self._cycles)  # noqa: SLF001
        times = _IN_A_ROW
        if domain is Domain.MEMORY:
            one, other = (torch.zeros(_COPIED, dtype=torch.uint8, device="cuda") for _ in range(2))
            work, times = partial(one.copy_, other), 1
        graph = torch.cuda.CUDAGraph()
        work()  # loaded before it is captured
        wait_for_gpu(torch)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(times):
                work()
        return graph, work

    def _product(self) -> Callable[[], object]:
        """Return what launches a product on random numbers: zeros would draw far less power."""
        torch = self._torch
        a, b = (torch.randn(_SIDE, _SIDE, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        out = torch.mm(a, b)
        wait_for_gpu(torch)
        return partial(torch.mm, a, b, out=out)
