"""Which launch took how long, of what a profiler saw, inside a loop."""

import functools
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.errors import DeviceError, MeasurementError, NotSupportedError
from underclock.hw.base import Progress, Round
from underclock.hw.cuda.durations import (
    MARKS,
    EagerRound,
    GraphLaunch,
    eager_durations,
    mean_durations,
)
from underclock.hw.cuda.feed import CudaLoop, Feed
from underclock.records import Mix
from underclock.records.work import Node, NodeKind, TracedActivity

_MEMSET = Node(kind=NodeKind.MEMSET)
_EVENT = Node(kind=NodeKind.OTHER)


def _kernel(name: str) -> Node:
    return Node(kind=NodeKind.KERNEL, function=name)


def _ran(nodes: Sequence[Node], took_s: Sequence[float]) -> list[TracedActivity]:
    """Return what a profiler sees of nodes that run one after the other."""
    starts_s = itertools.accumulate(took_s, initial=0.0)
    return [
        TracedActivity(kind=node.kind, function=node.function, start_s=at_s, duration_s=each_s)
        for at_s, node, each_s in zip(starts_s, nodes, took_s, strict=False)
    ]


def _in_turn(*launches: list[TracedActivity], gap_s: float = 0.0) -> list[list[TracedActivity]]:
    """Return launches of graphs, one after the other."""
    end_s, seen = 0.0, []
    for launch in launches:
        seen.append([msgspec.structs.replace(one, start_s=one.start_s + end_s) for one in launch])
        end_s = max((one.start_s + one.duration_s for one in seen[-1]), default=end_s) + gap_s
    return seen


# A product with a memset that serves it, twice, then a heater and idling.
_ROUND = GraphLaunch(
    nodes=(_MEMSET, _kernel("mm"), _MEMSET, _kernel("mm"), _kernel("hot"), _kernel("spin")),
    places=(0, 0, 0, 0, 1, 2),
    times={0: 2, 1: 1, 2: 1},
)


def test_a_step_and_its_coload_are_launched_apart_and_both_must_be_seen() -> None:
    step = GraphLaunch(
        nodes=(_kernel("a"), _EVENT, _MEMSET, _kernel("b")),
        places=(0, None, None, 1),
        times={0: 1, 1: 1},
    )
    coload = GraphLaunch(nodes=(_kernel("hot"),) * 2, places=(2, 2), times={2: 2})
    steps = [_ran([step.nodes[i] for i in (0, 2, 3)], (1, 50, 2)) for _ in range(2)]
    hot = _ran(coload.nodes, (30, 40))

    assert mean_durations(_in_turn(*steps, hot), ((step,), (coload,))) == {0: 1.0, 1: 2.0, 2: 35.0}
    assert mean_durations(_in_turn(*steps), ((step,), (coload,))) is None


def test_launches_that_ran_side_by_side_are_told_apart_by_what_they_are() -> None:
    graph = GraphLaunch(
        nodes=(_kernel("a"), _kernel("b"), _kernel("a")), places=(0, 1, 2), times={0: 1, 1: 1, 2: 1}
    )
    seen = _ran([graph.nodes[i] for i in (1, 0, 2)], (20, 10, 30))

    assert mean_durations([seen], ((graph,),)) == {0: 10.0, 1: 20.0, 2: 30.0}


@given(st.lists(st.lists(st.floats(1e-6, 1.0), min_size=6, max_size=6), min_size=1, max_size=8))
def test_means_add_up_to_what_was_seen(rounds: list[list[float]]) -> None:
    seen = _in_turn(*(_ran(_ROUND.nodes, took_s) for took_s in rounds), gap_s=0.5)
    mean_s = mean_durations(seen, ((_ROUND,),))

    assert mean_s is not None
    inside_s = sum(mean_s[place] * times for place, times in _ROUND.times.items())
    assert inside_s == pytest.approx(sum(map(sum, rounds)) / len(rounds))


def _overlapping(*spans_s: tuple[float, float]) -> list[TracedActivity]:
    """Return kernels that begin and last as given."""
    return [
        TracedActivity(kind=NodeKind.KERNEL, function="mm", start_s=start_s, duration_s=each_s)
        for start_s, each_s in spans_s
    ]


_PAIR = GraphLaunch(nodes=(_kernel("mm"),) * 2, places=(0, 1), times={0: 1, 1: 1})


@given(st.lists(st.tuples(st.floats(0.001, 1.0), st.floats(0.0, 1.1)), min_size=6, max_size=6))
def test_launches_in_turn_never_add_up_to_more_than_the_time_they_took(
    spans: list[tuple[float, float]],
) -> None:
    starts_s = itertools.accumulate((until_next_s for until_next_s, _ in spans), initial=0.0)
    lasts_s = [max(until_next_s * share, 1e-6) for until_next_s, share in spans]
    ran = _overlapping(*zip(starts_s, lasts_s, strict=False))
    mean_s = mean_durations([ran[i : i + 2] for i in range(0, len(ran), 2)], ((_PAIR,),))

    assert mean_s is not None
    end_s = max(one.start_s + one.duration_s for one in ran)
    assert 0.0 < sum(mean_s.values()) * len(ran) / 2 <= end_s + 1e-9


_FIRST = GraphLaunch(nodes=(_kernel("mm"), _kernel("add")), places=(0, 1), times={0: 1, 1: 1})
_SECOND = GraphLaunch(nodes=(_kernel("mm"), _kernel("add")), places=(2, 3), times={2: 1, 3: 1})
_THIRD = GraphLaunch(nodes=(_EVENT, _kernel("adamw")), places=(None, 4), times={4: 1})
_STEP = ((_FIRST, _SECOND, _THIRD),)


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_parts_of_a_step_are_told_by_their_turn(cut: int) -> None:
    fill = _ran([_kernel("fill")], [1])
    step = [
        _ran(_FIRST.nodes, (10, 1)),
        fill,
        _ran(_SECOND.nodes, (20, 2)),
        fill,
        _ran(_THIRD.nodes[1:], [5]),
    ]
    seen = _in_turn(*step[2 * cut :], *step, *step, *step[:3])
    assert mean_durations(seen, _STEP) == {0: 10.0, 1: 1.0, 2: 20.0, 3: 2.0, 4: 5.0}


Calls = list[list[TracedActivity]]


def ran(function: str, start_s: float, duration_s: float) -> TracedActivity:
    kind = NodeKind.KERNEL if function else NodeKind.MEMSET
    return TracedActivity(kind=kind, function=function, start_s=start_s, duration_s=duration_s)


def mark(at_s: float) -> list[TracedActivity]:
    return [ran("spin_kernel", at_s + each, 1.0) for each in range(MARKS)]


def calls(*done: tuple[str, float, float]) -> Calls:
    return [[ran(*one)] for one in done]


@pytest.mark.parametrize(
    ("added", "without", "expected"),
    [
        ([("other", 9.5, 0.5)], None, {0: 1.0, 5: 1.0, 9: 1.0}),
        ([], 5, {4: 1.0, 5: 1.0, 6: 1.0}),
        ([], 0, {0: 1.0, 1: 1.0}),
        ([], 9, {8: 1.0, 9: 1.0}),
    ],
    ids=["one more", "one less", "the first less", "the last less"],
)
def test_a_few_launches_may_differ(
    added: Sequence[tuple[str, float, float]], without: int | None, expected: dict[int, float]
) -> None:
    nodes = tuple(Node(kind=NodeKind.KERNEL, function=f"k{n}") for n in range(10))
    round_ = EagerRound(nodes=nodes, places=tuple(range(10)), steps=1)
    own = [(f"k{n}", 3.0 + n, 1.0) for n in range(10) if n != without]
    done = sorted([*own, *added], key=lambda one: one[1])
    found = eager_durations([mark(0.0), *calls(*done), mark(13.0)], round_)

    assert found is not None
    assert sum(found[0].values()) == pytest.approx(10.0)
    assert {place: found[0][place] for place in expected} == pytest.approx(expected)


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
