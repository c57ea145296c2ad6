"""Timing launches inside a loop, with a profiler that is made up."""

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import pytest

from underclock.errors import DeviceError, MeasurementError, NotSupportedError
from underclock.hw.base import Durations, Progress
from underclock.hw.cuda.durations import GraphLaunch, mean_durations
from underclock.hw.cuda.feed import CudaLoop, Feed
from underclock.hw.rounds import Round
from underclock.records import Mix
from underclock.records.work import Node, NodeKind

_GRAPH = GraphLaunch(
    nodes=(
        Node(kind=NodeKind.MEMSET),
        Node(kind=NodeKind.KERNEL, function="mm"),
        Node(kind=NodeKind.KERNEL, function="spin"),
    ),
    places=(0, 0, 2),
    times={0: 1, 2: 1},
)
_CUDA, _HOST = "cuda", "cpu"


@dataclass
class FakeEvent:
    """One event of Kineto's, as PyTorch 2.8 to 2.13 show it."""

    text: str
    start: int
    took: int
    launch: int
    device: str = _CUDA
    annotation: bool = False

    def name(self) -> str:
        return self.text

    def device_type(self) -> str:
        return self.device

    def is_user_annotation(self) -> bool:
        return self.annotation

    def start_ns(self) -> int:
        return self.start

    def duration_ns(self) -> int:
        return self.took

    def correlation_id(self) -> int:
        return self.launch


@dataclass
class FakeProfile:
    """A profiler that shows what it is given; Kineto's results are not in order."""

    events_: Sequence[FakeEvent]
    fails: str = ""
    detaches: str | None = None

    @property
    def profiler(self) -> Any:
        shown = SimpleNamespace(events=lambda: list(reversed(self.events_)))
        return SimpleNamespace(kineto_results=shown)

    def __enter__(self) -> Self:
        if self.fails:
            raise RuntimeError(self.fails)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.detaches = os.environ.get("TEARDOWN_CUPTI")


@dataclass
class FakeTorch:
    """As much of PyTorch as profiling needs."""

    profiles: list[FakeProfile]
    profiled: bool = False

    @property
    def autograd(self) -> Any:
        return SimpleNamespace(
            DeviceType=SimpleNamespace(CUDA=_CUDA), _profiler_enabled=lambda: self.profiled
        )

    @property
    def profiler(self) -> Any:
        def profile(*, activities: list[str], acc_events: bool) -> FakeProfile:
            assert activities == ["gpu"]
            assert acc_events  # or PyTorch warns that there is more than one look
            return self.profiles.pop(0)

        return SimpleNamespace(
            profile=profile, ProfilerActivity=SimpleNamespace(CUDA="gpu", CPU="host")
        )


@dataclass
class FakeFeed(Feed):
    launches: int = 100
    error: str = ""

    def progress(self) -> Progress:
        if self.error:
            raise DeviceError(self.error)
        return Progress(launches=self.launches, elapsed_s=self.launches * 2e-3)

    def run_out(self) -> None:
        raise AssertionError("nobody leads here")


@dataclass
class FakeClock:
    slept_s: list[float] = field(default_factory=list)

    def now_s(self) -> float:
        return sum(self.slept_s)

    def sleep_s(self, duration_s: float) -> None:
        self.slept_s.append(duration_s)


_BEGUN_NS = 1_700_000_000_000_000_000  # as a profiler's clock counts


def _round_events(launch: int, at_s: float = 0.5) -> list[FakeEvent]:
    """Return what is seen of a round, so long after the profiler began."""
    at_ns = _BEGUN_NS + round(at_s * 1e9)
    return [
        FakeEvent("Memset (Device)", at_ns, 1_000, launch),
        FakeEvent("mm", at_ns + 2_000, 100_000, launch),
        FakeEvent("spin", at_ns + 110_000, 50_000, launch),
    ]


def _rounds() -> list[FakeEvent]:
    return [*_round_events(1, 0.0), *_round_events(2)]


def _loop(
    profiles: list[FakeProfile],
    *,
    feed: FakeFeed | None = None,
    clock: FakeClock | None = None,
    events: int = 3,
) -> CudaLoop:
    return CudaLoop(
        torch=FakeTorch(profiles),
        clock=clock or FakeClock(),
        feed=feed or FakeFeed(),
        round=Round.of(1, Mix(idle_s=5e-5)),
        means=functools.partial(mean_durations, runs=((_GRAPH,),)),
        rounds=10,
        events=events,
    )


def test_events_become_durations_by_launch_whatever_else_was_seen() -> None:
    events = [
        FakeEvent("aten::mm", 0, 9_000_000, 1, device=_HOST),
        FakeEvent("cudaGraphLaunch", 0, 9_000, 5, device=_HOST),
        FakeEvent("a module", 0, 9_000_000, 5, annotation=True),
        *_round_events(4, 0.0)[1:],  # under way as the profiler began
        *_round_events(5, 0.5),
        *_round_events(6, 0.501),
        *_round_events(7, 0.502)[:1],
    ]
    durations = _loop([FakeProfile(events)]).durations(0.5)

    assert durations.kernel_s == pytest.approx((101e-6,))
    assert durations.idle_s == pytest.approx(50e-6)
    assert durations.hot_s is None


def test_it_looks_on_for_some_launches_at_least_and_not_for_millions_of_events() -> None:
    # A launch takes 20 ms here: 10 rounds of 2 ms.
    seen = []
    for for_s, events in ((0.5, 30), (1e-3, 30), (0.5, 30_000)):
        clock = FakeClock()
        _loop([FakeProfile(_rounds())], clock=clock, events=events).durations(for_s)
        seen += clock.slept_s
    assert seen == pytest.approx([0.3 + 0.5, 0.3 + 0.12, 0.008 + 0.12])


def test_what_is_seen_in_part_only_is_looked_at_again_for_longer() -> None:
    clock = FakeClock()
    part = FakeProfile([*_round_events(1, 0.0), *_round_events(2)[1:]])
    profiles = [part, FakeProfile(_rounds())]
    assert isinstance(_loop(profiles, clock=clock).durations(0.5), Durations)
    assert clock.slept_s == [0.3 + 0.5, 0.3 + 1.0]


def test_graphs_that_are_never_seen_whole_are_an_error() -> None:
    part = FakeProfile([*_round_events(1, 0.0), *_round_events(2)[1:]])
    with pytest.raises(MeasurementError, match=r"in 2\.0 s the profiler saw 2 launches") as caught:
        _loop([part] * 3).durations(0.5)
    assert "another program" in caught.value.hint


def test_where_the_timestamps_are_taken_that_is_said() -> None:
    host = FakeEvent("cudaGraphLaunch", 0, 9_000, 5, device=_HOST)
    with pytest.raises(NotSupportedError, match="saw nothing that ran on the GPU") as caught:
        _loop([FakeProfile([host])]).durations(0.5)
    assert "another profiler" in caught.value.hint


@pytest.mark.parametrize(("said", "used"), [(None, "0"), ("1", "1")])
def test_the_profiler_stays_attached_unless_the_user_says_otherwise(
    said: str | None, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEARDOWN_CUPTI", raising=False)
    if said is not None:
        monkeypatch.setenv("TEARDOWN_CUPTI", said)
    profile = FakeProfile(_rounds())
    _loop([profile]).durations(0.5)

    assert profile.detaches == used
    assert os.environ.get("TEARDOWN_CUPTI") == said


def test_a_profiler_of_ones_own_is_not_ended() -> None:
    loop = _loop([FakeProfile(_rounds())])
    loop.torch.profiled = True
    with pytest.raises(NotSupportedError, match="of this process is looking on"):
        loop.durations(0.5)


def test_a_profiler_that_cannot_start_is_a_sentence() -> None:
    taken = FakeProfile([], fails="Profiler is already enabled on this thread")
    with pytest.raises(NotSupportedError, match="already enabled on this thread") as caught:
        _loop([taken]).durations(0.5)
    assert "another profiler" in caught.value.hint


def test_a_gpu_lost_meanwhile_is_no_matter_of_profilers() -> None:
    feed = FakeFeed()

    class Lost(FakeProfile):
        def __exit__(self, *_: object) -> None:
            feed.error = "a launch failed: the GPU fell off the bus"
            raise RuntimeError("CUDA error: unspecified launch failure")

    for profile in (Lost([]), Lost(_rounds())):
        feed.error = ""
        with pytest.raises(DeviceError, match="fell off the bus"):
            _loop([profile], feed=feed).durations(0.5)
