"""What waits for what on several streams, and what could take longer for nothing."""

import dataclasses
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rank_steps import RankStep, steps_s
from recorded import Recording, read
from underclock.arrays import Floats
from underclock.core.tracing.captured import PlainRun, kernel_means_s, profiled_step
from underclock.core.tracing.profile import HostTimeline, activities, bytes_of, stream_waits
from underclock.core.tracing.streams import Streams, streams, with_shares
from underclock.records import Kind, Pass
from underclock.records.work import NodeKind, TracedActivity


def _launch(
    start_s: float, end_s: float, stream: int, pass_: Pass = Pass.BACKWARD
) -> TracedActivity:
    return TracedActivity(
        kind=NodeKind.KERNEL,
        start_s=start_s,
        duration_s=end_s - start_s,
        stream=stream,
        pass_=pass_,
    )


_COMPUTE, _NETWORK = 7, 20


@st.composite
def _profiles(draw: st.DrawFn) -> tuple[TracedActivity, ...]:
    """Draw launches on up to three streams, those of one after another."""
    launches = []
    for stream in range(draw(st.integers(1, 3))):
        now_s = draw(st.floats(0.0, 5.0))
        for _ in range(draw(st.integers(1, 6))):
            now_s += draw(st.sampled_from([0.0, 0.0, 0.5, 2.0]))
            end_s = now_s + draw(st.floats(0.1, 3.0))
            launches.append(_launch(now_s, end_s, stream))
            now_s = end_s
    return tuple(draw(st.permutations(launches)))


def _with(found: Streams, place: int, more_s: float) -> float:
    taken_s = found.duration_s.copy()
    taken_s[place] += more_s
    return _taking(found, taken_s)


def _taking(found: Streams, duration_s: Floats) -> float:
    return dataclasses.replace(found, duration_s=duration_s).step_s()


@given(_profiles())
def test_the_longest_path_is_the_step_as_it_was_seen(seen: Sequence[TracedActivity]) -> None:
    found = streams(seen)
    begun_s = min(one.start_s for one in seen)

    assert found.ends_s() == pytest.approx(
        [one.start_s + one.duration_s - begun_s for one in seen], abs=1e-9
    )


@given(_profiles(), st.data())
def test_a_launch_may_take_its_slack_longer_and_no_more(
    seen: Sequence[TracedActivity], data: st.DataObject
) -> None:
    found = streams(seen)
    place = data.draw(st.integers(0, len(seen) - 1))
    slack_s = float(found.slack_s()[place])

    assert slack_s >= 0.0
    assert _with(found, place, slack_s) == pytest.approx(found.step_s(), abs=1e-9)
    assert _with(found, place, slack_s + 1.0) == pytest.approx(found.step_s() + 1.0, abs=1e-9)


def test_a_copy_in_another_stream_counts_for_what_of_it_is_waited_for() -> None:
    """Two beside products, of which the second is waited for half; one among the products."""
    copies = [
        msgspec.structs.replace(_launch(begin, end, stream), kind=NodeKind.COPY)
        for begin, end, stream in ((0.0, 0.9, 13), (1.0, 3.0, 13), (3.0, 3.5, _COMPUTE))
    ]
    short = msgspec.structs.replace(_launch(0.5, 0.50005, 14), kind=NodeKind.COPY)
    seen = (_launch(0.0, 1.0, _COMPUTE), _launch(1.0, 2.0, _COMPUTE), *copies, short)
    shared, said = with_shares(seen)

    assert [one.waited_for for one in shared] == [1.0, 1.0, 0.0, 0.5, 1.0, 1.0]
    words = "copies take 2.9e+03 ms of the step, 1.9e+03 ms of these under other"
    assert (said or "").startswith(words)
    _, both = with_shares((*seen, _launch(0.0, 0.5, _NETWORK, Pass.COMMUNICATION)))
    assert (both or "").startswith("collectives and copies take")


_some = st.lists(st.booleans(), min_size=18, max_size=18)


@given(_profiles(), _some)
def test_what_is_exposed_adds_up_to_what_a_step_without_it_is_shorter_by(
    seen: Sequence[TracedActivity], some: list[bool]
) -> None:
    found, apart = streams(seen), np.array(some[: len(seen)])
    exposed_s = found.exposed_s(apart)
    without_s = _taking(found, np.where(apart, 0.0, found.duration_s))

    assert math.fsum(exposed_s) == pytest.approx(found.step_s() - without_s, abs=1e-9)
    assert (exposed_s >= 0.0).all()
    assert (exposed_s <= found.duration_s + 1e-9).all()
    assert not exposed_s[~apart].any()


def test_waiting_for_another_rank_is_not_what_a_collective_takes() -> None:
    # The second of two alike waits for 2 s, and then outlasts what it runs beside by half of it.
    same = {"operator": "nccl::allreduce", "shapes": "fp32[8] to fp32[8] among 2 ranks"}
    reduced = [
        msgspec.structs.replace(_launch(begin, end, _NETWORK, Pass.COMMUNICATION), **same)
        for begin, end in ((1.0, 2.0), (4.0, 7.0))
    ]
    seen = (
        _launch(0.0, 1.0, _COMPUTE),
        _launch(1.0, 4.0, _COMPUTE),
        _launch(4.0, 4.5, _COMPUTE),
        *reduced,
    )

    assert [one.waited_for for one in with_shares(seen)[0]] == [1.0, 1.0, 1.0, 0.0, 0.5]
    nameless = [msgspec.structs.replace(one, shapes="") for one in seen]
    assert with_shares(nameless)[0][4].waited_for == pytest.approx(2.5 / 3.0, abs=1e-4)


TRACES = Path(__file__).parents[3] / "data" / "traces" / "ranks"
_LAYERS, _HIDDEN, _VOCABULARY, _SEQUENCE = 8, 2048, 50304, 1024
_PARAMETERS = (
    (_VOCABULARY + _SEQUENCE) * _HIDDEN + _LAYERS * (12 * _HIDDEN**2 + 13 * _HIDDEN) + 2 * _HIDDEN
)
_BF16 = 2


@cache
def _recording(name: str, rank: int) -> Recording:
    return read(TRACES / f"{name}.rank{rank}.json.gz")


@cache
def _seen(name: str, rank: int) -> tuple[TracedActivity, ...]:
    return activities(HostTimeline(_recording(name, rank).trace))


@cache
def _rank(name: str, number: int) -> RankStep:
    seen = _seen(name, number)
    return RankStep(
        streams=streams(seen, stream_waits(HostTimeline(_recording(name, number).trace))),
        collectives=tuple(i for i, one in enumerate(seen) if one.pass_ is Pass.COMMUNICATION),
    )


def _moved(name: str, operator: str) -> float:
    """Return the bytes that rank 0 sends in the collectives of one kind."""
    some = [one for one in _seen(name, 0) if one.operator == f"nccl::{operator}"]
    return sum(bytes_of(one.operator, one.shapes) or 0.0 for one in some)


def test_every_gradient_is_averaged_once_by_a_kernel_of_communication() -> None:
    assert _moved("ddp", "allreduce") == _BF16 * _PARAMETERS
    step = _recording("ddp", 0).traced("ddp").step
    averaged = [each for each in step.kernels if "allreduce" in each.name]

    assert averaged
    for kernel in averaged:
        assert (kernel.kind, kernel.pass_) == (Kind.COLLECTIVE, Pass.COMMUNICATION)
        assert "allreduce communication" in kernel.name
        assert "among 2 ranks in group" in kernel.shape


@pytest.mark.parametrize(
    ("operator", "sent"),
    [("allreduce", 1.5), ("all_to_all", 0.75), ("send", 1.0), ("broadcast", 1.0)],
)
def test_a_rank_of_a_ring_sends_what_the_others_need(operator: str, sent: float) -> None:
    shapes = "fp32[64] to fp32[64] among 4 ranks"

    assert bytes_of(f"nccl::{operator}", shapes) == 4 * 64 * sent


def test_launches_that_a_profiler_made_longer_add_up_to_the_step_by_itself() -> None:
    plain = PlainRun(_recording("ddp", 0).trace)
    traced = profiled_step("ddp", plain)
    took_s = kernel_means_s(traced, plain, 1e9)
    counts = [kernel.count for kernel in traced.step.kernels]
    waited = [kernel.waited_count for kernel in traced.step.kernels]
    waited_s = sum(each * count for each, count in zip(took_s, waited, strict=True))

    seen_s = sum(one.duration_s for one in plain.seen)
    assert sum(s * n for s, n in zip(took_s, counts, strict=True)) == pytest.approx(seen_s)
    halved = kernel_means_s(traced, plain, 0.5 * waited_s)
    assert halved == pytest.approx([0.5 * each for each in took_s])


def test_sharded_weights_are_gathered_and_their_gradients_scattered() -> None:
    # Half is sent and all received, or the other way round; blocks are gathered once more for the
    # backward pass, and what belongs to none is not.
    blocks = _LAYERS * (12 * _HIDDEN**2 + 13 * _HIDDEN)
    assert _moved("fsdp", "_reduce_scatter_base") == 0.5 * _BF16 * _PARAMETERS
    assert _moved("fsdp", "_allgather_base") == 0.5 * _BF16 * (_PARAMETERS + blocks)


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_a_step_takes_what_its_launches_streams_and_collectives_say(name: str) -> None:
    predicted_s = steps_s([_rank(name, 0), _rank(name, 1)])

    for number in (0, 1):
        assert predicted_s[number] == pytest.approx(_recording(name, number).step_s, rel=0.03)


@pytest.mark.untraced
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("name", "waited"),
    [
        # The buffers' broadcast before everything, and the reduction after the backward pass.
        ("ddp", [(1, 1.0), (8, 0.0), (8, 0.0), (8, 0.0), (1, 1.0)]),
        # The first gather, that of the first block, and the last scattering.
        ("fsdp", [(1, 1.0), (16, 1.0 / 16.0), (8, 0.0), (1, 1.0)]),
    ],
)
def test_a_step_waits_for_few_of_its_collectives(
    name: str, number: int, waited: list[tuple[int, float]]
) -> None:
    step = _recording(name, number).traced(name).step
    some = [kernel for kernel in step.kernels if kernel.pass_ is Pass.COMMUNICATION]
    others = [kernel for kernel in step.kernels if kernel.pass_ is not Pass.COMMUNICATION]

    assert [(kernel.count, kernel.waited_for) for kernel in some] == waited
    assert {kernel.waited_for for kernel in others} == {1.0}
