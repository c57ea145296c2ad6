"""Times launches inside a loop that runs on, by the GPU's own timestamps (CUPTI, in PyTorch)."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from underclock.errors import MeasurementError, NotSupportedError
from underclock.hw.base import Clock, Durations, Progress
from underclock.hw.cuda.feed import IN_FLIGHT
from underclock.hw.cuda.profiling import profiler_detaches
from underclock.hw.rounds import Round
from underclock.records.launches import NodeKind, TracedActivity

_MOST_EVENTS = 30_000  # more take longer to read than to happen
_LEAST_LAUNCHES = IN_FLIGHT + 3  # those under way at both ends are seen in part, if at all
_SETTLE_S = 0.3  # a profiler that starts may hold launches up, and then clocks rise
LOOK_S = 1.5
"""What a look takes besides looking on: to let launches settle, to begin, and to read what was
seen. On H200s campaigns of 36 and of 45 looks took 1.4 s more for each than their windows did on
one GPU, and 1.9 s on two (measured by us)."""
_TRIES = 3
_NOT_KERNELS = (("Memset (", NodeKind.MEMSET), ("Memcpy ", NodeKind.COPY))  # by their names
_HINT = (
    "another profiler may hold the GPU's timestamps (Nsight, a job's own, DCGM's profiling "
    "counters): end it and measure again; in a container CUPTI may be missing or forbidden"
)


class Fed(Protocol):
    """What is asked of a feed."""

    def progress(self) -> Progress:
        """Return how far it is, or raise what went wrong."""
        ...

    def run_out(self) -> None:
        """Wait until nothing more may be launched, or raise what went wrong."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaLoop:
    """Rounds being launched over and over.

    Attributes:
        torch: PyTorch.
        clock: The host's.
        feed: Launches them.
        round: What a round is made of.
        means: Mean duration of a launch of each place, from what a profiler saw of each call that
            launches; ``None`` where no round was seen whole.
        rounds: Rounds in a launch of the feed.
        events: Kernels, memsets and copies in a launch of the feed.
    """

    torch: Any
    clock: Clock
    feed: Fed
    round: Round
    means: Callable[[Sequence[Sequence[TracedActivity]]], dict[int, float] | None]
    rounds: int
    events: int

    def progress(self) -> Progress:
        """Return how far it is.

        Raises:
            DeviceError: A launch failed.
        """
        return self.feed.progress()

    def run_out(self) -> None:
        """Wait until its pace lets nothing more be launched.

        Raises:
            DeviceError: A launch failed.
        """
        self.feed.run_out()

    def durations(self, for_s: float) -> Durations:
        """Watch launches for a while, at least until some rounds were seen whole.

        Raises:
            NotSupportedError: No profiler may look on, or another one does.
            MeasurementError: No round was seen whole, or others than were launched.
            DeviceError: A launch failed.
        """
        watch_s = self._long_enough_s(for_s)
        for _ in range(_TRIES):
            seen = self._watch(_SETTLE_S + watch_s)
            self.feed.progress()  # where nothing runs any more, this says why
            if not seen:
                raise NotSupportedError(
                    "launches cannot be timed: PyTorch's profiler saw nothing that ran on the GPU",
                    hint=_HINT,
                )
            settled = [launch for launch in seen if launch[0].start_s >= _SETTLE_S]
            mean_s = self.means(settled)
            if mean_s is not None:
                return self.round.durations(mean_s)
            watch_s *= 2
        raise MeasurementError(
            f"launches cannot be timed: in {watch_s / 2:.1f} s the profiler saw {len(seen)} "
            "launches, but not each of ours whole",
            hint="another program or thread may launch work on this GPU: end it and measure again",
        )

    def _long_enough_s(self, for_s: float) -> float:
        """Return how long to look on: not so long that reading what was seen takes minutes."""
        done = self.feed.progress()
        if not done.launches:
            return for_s
        launch_s = done.elapsed_s / done.launches * self.rounds
        most_s = _MOST_EVENTS / self.events * launch_s
        return max(min(for_s, most_s), _LEAST_LAUNCHES * launch_s)

    def _watch(self, for_s: float) -> list[list[TracedActivity]]:
        if self.torch.autograd._profiler_enabled():  # noqa: SLF001 - a second one would end it
            raise NotSupportedError(
                "launches cannot be timed: a PyTorch profiler of this process is looking on",
                hint="measure outside of it",
            )
        try:
            return watched(self.torch, self.clock, for_s)
        except RuntimeError as exc:  # what PyTorch raises, a GPU that fell off the bus included
            self.feed.progress()
            raise NotSupportedError(
                f"launches cannot be timed: PyTorch's profiler says {exc}", hint=_HINT
            ) from exc


def watched(torch: Any, clock: Clock, for_s: float) -> list[list[TracedActivity]]:
    """Return what the GPU did for each launch of a graph while one looks on, in order.

    Raises:
        RuntimeError: PyTorch cannot profile.
    """
    profiler = torch.profiler
    with (
        profiler_detaches(detaches=False),
        profiler.profile(activities=[profiler.ProfilerActivity.CUDA], acc_events=True) as profile,
    ):
        clock.sleep_s(for_s)
    on_gpu = torch.autograd.DeviceType.CUDA
    # Not `profile.events()`, which builds objects of its own: that takes minutes.
    events = [
        event
        for event in profile.profiler.kineto_results.events()
        if event.device_type() == on_gpu and not event.is_user_annotation()
    ]
    events.sort(key=lambda event: event.start_ns())
    by_launch: dict[int, list[TracedActivity]] = defaultdict(list)
    for event in events:
        by_launch[event.correlation_id()].append(_activity(event, events[0].start_ns()))
    return list(by_launch.values())


def _activity(event: Any, begun_ns: int) -> TracedActivity:
    name = event.name()
    kind = next((kind for mark, kind in _NOT_KERNELS if name.startswith(mark)), NodeKind.KERNEL)
    return TracedActivity(
        kind=kind,
        function=name if kind is NodeKind.KERNEL else "",
        start_s=(event.start_ns() - begun_ns) * 1e-9,
        duration_s=event.duration_ns() * 1e-9,
    )
