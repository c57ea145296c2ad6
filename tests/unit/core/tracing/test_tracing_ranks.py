"""DDP and FSDP2 on two H200s, as a study recorded them (docs/evidence/h200/parallel.md)."""

from functools import cache
from pathlib import Path

import pytest

from rank_steps import RankStep, steps_s
from recorded import Recording, read
from underclock.core.tracing.captured import PlainRun, kernel_means_s, profiled_step
from underclock.core.tracing.host import bytes_of
from underclock.core.tracing.profile import activities, stream_waits
from underclock.core.tracing.streams import streams
from underclock.records import Kind, Pass
from underclock.records.work import TracedActivity

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
    return activities(_recording(name, rank).trace)


@cache
def _rank(name: str, number: int) -> RankStep:
    seen = _seen(name, number)
    return RankStep(
        streams=streams(seen, stream_waits(_recording(name, number).trace)),
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
    plain = PlainRun.of(_recording("ddp", 0).trace)
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
