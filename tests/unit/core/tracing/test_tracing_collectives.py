"""Collectives in a profile. These traces are written by hand, after what Kineto writes of NCCL.

Recorded ones: `test_tracing_ranks`.
"""

from typing import Any

import pytest

from underclock.core.tracing.captured import PlainRun, captured_step, kernel_means_s, profiled_step
from underclock.core.tracing.host import bytes_of, is_collective
from underclock.core.tracing.profile import activities, stream_waits
from underclock.core.tracing.step import nodes_of, traced_step
from underclock.records import Kind, Pass

_COMPUTE, _NETWORK = 7, 20
_ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_BACKWARD = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def _event(cat: str, name: str, at_us: float, dur: float, **more: Any) -> dict[str, Any]:
    event = {"ph": "X", "cat": cat, "name": name, "tid": 1, "ts": at_us, "dur": dur}
    return event | {"args": more.pop("args", {})} | more


def _facts(name: str, sent: int, received: int, **more: Any) -> dict[str, Any]:
    return {
        "Collective name": name,
        "dtype": "Float",
        "In msg nelems": sent,
        "Out msg nelems": received,
        "Group size": 2,
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": "[0, 1]",
    } | more


def _launched(
    number: int, called_us: float, begins_us: float, ends_us: float, **kernel: Any
) -> list[dict[str, Any]]:
    """Return a call on the host, and the kernel that it launched."""
    stream, name, facts = kernel["stream"], kernel["name"], kernel.get("facts", {})
    args = {"correlation": number, "device": 0, "stream": stream, **facts}
    shape = {"grid": [24, 1, 1], "block": [512, 1, 1]}
    return [
        _event("cuda_runtime", "cudaLaunchKernelExC", called_us, 1.0, args={"correlation": number}),
        _event("kernel", name, begins_us, ends_us - begins_us, tid=stream, args=args | shape),
    ]


def _ddp(*, facts_on_kernel: bool = True) -> dict[str, Any]:
    """Return the end of a DDP step: two products of the backward pass, a reduction beside the last.

    Its hook asks for the reduction from inside autograd, on a stream of its own.
    """
    facts = _facts("allreduce", 1 << 20, 1 << 20)
    return {
        "traceEvents": [
            _event("cpu_op", "aten::mm", 0.0, 4.0, args={"Input type": [], "Input Dims": []}),
            *_launched(1, 1.0, 10.0, 20.0, stream=_COMPUTE, name="gemm"),
            _event("cpu_op", _BACKWARD, 5.0, 40.0, tid=2),
            _event("cpu_op", "c10d::allreduce_", 6.0, 9.0, tid=2),
            _event("cpu_op", "record_param_comms", 7.0, 7.0, tid=2, args=facts),
            *(
                event | ({"tid": 2} if event["cat"] == "cuda_runtime" else {})
                for event in _launched(
                    2,
                    8.0,
                    20.0,
                    28.0,
                    stream=_NETWORK,
                    name=_ALL_REDUCE,
                    facts=facts if facts_on_kernel else {},
                )
            ),
            _event("cpu_op", "aten::mm", 20.0, 4.0, tid=2),
            *(
                event | ({"tid": 2} if event["cat"] == "cuda_runtime" else {})
                for event in _launched(3, 21.0, 20.0, 40.0, stream=_COMPUTE, name="gemm")
            ),
            _event("user_annotation", "Optimizer.step#AdamW.step", 50.0, 20.0),
            _event("cpu_op", "aten::_fused_adamw_", 51.0, 10.0),
            *_launched(4, 55.0, 60.0, 65.0, stream=_COMPUTE, name="adam"),
        ]
    }


@pytest.mark.parametrize("facts_on_kernel", [True, False])
def test_a_reduction_is_a_kernel_of_communication_with_bytes_and_group(
    *, facts_on_kernel: bool
) -> None:
    seen = activities(_ddp(facts_on_kernel=facts_on_kernel))
    assert [one.pass_ for one in seen] == [
        *(Pass.FORWARD, Pass.COMMUNICATION, Pass.BACKWARD, Pass.OPTIMIZER)
    ]
    assert [one.stream for one in seen] == [_COMPUTE, _NETWORK, _COMPUTE, _COMPUTE]

    step = traced_step("ddp", nodes_of(seen), seen).step
    (reduction,) = [kernel for kernel in step.kernels if kernel.pass_ is Pass.COMMUNICATION]
    assert reduction.name == "allreduce communication"
    assert reduction.shape == "fp32[1048576] to fp32[1048576] among 2 ranks in group '0'"
    assert reduction.bytes_moved == 4 * 2**20
    assert reduction.kind is Kind.COLLECTIVE
    assert reduction.launch is not None
    assert reduction.launch.operator == "nccl::allreduce"
    assert is_collective(reduction.launch.operator)


def test_a_wait_that_the_profile_lists_is_known_before_it_is_seen() -> None:
    wait = {
        "cuda_sync_kind": "Stream Wait Event",
        "stream": _COMPUTE,
        "correlation": 3,
        "wait_on_stream": _NETWORK,
        "wait_on_cuda_event_record_corr_id": 3,
    }
    trace = _ddp()
    trace["traceEvents"].append(_event("cuda_sync", "Stream Wait Event", 55.0, 0.0, args=wait))

    assert stream_waits(_ddp()) == ()
    assert stream_waits(trace) == ((3, 1),)
    unknown = dict(wait, wait_on_stream=-1, wait_on_cuda_event_record_corr_id=-1)
    trace["traceEvents"][-1]["args"] = unknown
    assert stream_waits(trace) == ((3, 1),)
    nothing = dict(wait, wait_on_stream=99)
    trace["traceEvents"][-1]["args"] = nothing
    assert stream_waits(trace) == ()


@pytest.mark.parametrize(
    ("operator", "sent"),
    [("allreduce", 1.5), ("all_to_all", 0.75), ("send", 1.0), ("broadcast", 1.0)],
)
def test_a_rank_of_a_ring_sends_what_the_others_need(operator: str, sent: float) -> None:
    shapes = "fp32[64] to fp32[64] among 4 ranks"

    assert bytes_of(f"nccl::{operator}", shapes) == 4 * 64 * sent


def test_a_trace_says_how_much_of_its_collectives_is_beside_other_launches() -> None:
    plain = PlainRun.of(_ddp())
    told = (
        "collectives take 0.008 ms of the step, 0.008 ms of these under other launches, for which "
        "it does not wait"
    )
    seen = profiled_step("ddp", plain, obstacle="why").step
    captured = captured_step("ddp", nodes_of(plain.seen), (), plain).step

    assert [words.split(":")[0] for words in seen.warnings] == [told, "why"]
    assert [words.split(":")[0] for words in captured.warnings] == [told]


def test_launches_that_a_profiler_made_longer_add_up_to_the_step_by_itself() -> None:
    plain = PlainRun.of(_ddp())
    traced = profiled_step("ddp", plain)
    took_s = [sum(plain.seen[n].duration_s for n in group.nodes) for group in traced.groups]
    waited = [kernel.waited_count for kernel in traced.step.kernels]
    waited_s = sum(each * count for each, count in zip(took_s, waited, strict=True))

    assert kernel_means_s(traced, plain, 2.0 * waited_s) == pytest.approx(took_s)
    halved = kernel_means_s(traced, plain, 0.5 * waited_s)
    assert halved == pytest.approx([0.5 * each for each in took_s])
