"""Jobs of traces: what ranks run, told in their traces, comes back as the job that it was."""

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from job_costs import slack_s
from traced_ranks import durations_s, laid_out, traces_of
from underclock.core.job.network import network_of
from underclock.core.job.planning import JobGoal, plan_job
from underclock.core.job.schedules import Layout, pipeline
from underclock.core.job.stage_profiles import with_profiles
from underclock.core.tracing.job_traces import traced_job
from underclock.core.tracing.profile import GPU
from underclock.core.tracing.rank_trace import rank_trace
from underclock.errors import DataError
from underclock.records import GpuInfo
from underclock.records.job import InstructionKind, Job, Profile, ProfileRow, Waiting

_RECORDED = Path(__file__).parents[3] / "data" / "traces" / "ranks"  # DDP and FSDP2 on two H200s
_TIMES_S = {"forward": 0.010, "backward": 0.020, "weights": 0.011, "optimizer": 0.005}
_TRANSFERS_S = (0.001, 0.003)


def _job(
    schedule: str,
    stages: int = 3,
    microbatches: int = 6,
    transfer_s: tuple[float, ...] = _TRANSFERS_S,
    **shape: Any,
) -> Job:
    kinds = [kind for kind in _TIMES_S if kind != "weights" or schedule == "zero-bubble"]
    profiles = {
        f"stage {stage} {kind}": Profile(
            rows=(ProfileRow(time_s=_TIMES_S[kind] * (1 + 0.1 * stage), energy_j=None),), auto=0
        )
        for stage in range(stages)
        for kind in kinds
    }
    return pipeline(
        schedule,
        Layout(stages=stages, microbatches=microbatches, transfer_s=transfer_s, **shape),
        profiles,
        waiting=dict.fromkeys(range(stages), (Waiting(power_w=70.0),)),
        gpu=GpuInfo(name="GPU"),
        workload="w",
    )


def _traced(traces: Sequence[dict[str, Any]]) -> tuple[Job, float]:
    read = [rank_trace(trace, f"rank-{at}.json") for at, trace in enumerate(traces)]
    return traced_job(read, workload="w", waiting_w=70.0)


def _iteration_s(job: Job) -> float:
    return float(network_of(job).iteration_s(durations_s(job)))


def _events(trace: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [each for each in trace["traceEvents"] if name in each["name"]]


def _without(trace: dict[str, Any], gone: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    return {**trace, "traceEvents": [each for each in trace["traceEvents"] if not gone(each)]}


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize(
    ("schedule", "style", "shape"),
    [
        ("1f1b", "said", {}),
        ("1f1b", "passes", {}),
        ("1f1b", None, {}),
        ("gpipe", "torch", {}),
        ("gpipe", None, {}),
        ("interleaved", "torch", {"chunks": 2}),
        ("zero-bubble", "said", {}),
        ("1f1b", "said", {"stages": 2, "transfer_s": (0.001,), "data": 2, "reduce_s": 0.004}),
    ],
)
def test_what_ranks_ran_comes_back(
    schedule: str, style: str | None, shape: dict[str, Any], *, gpu: bool
) -> None:
    job = _job(schedule, **shape)
    traced, took_s = _traced(traces_of(job, style=style, gpu=gpu))
    assert list(laid_out(traced)) == list(laid_out(job))
    assert [rank.place for rank in traced.ranks] == [rank.place for rank in job.ranks]
    assert traced.microbatches == job.microbatches
    assert took_s == pytest.approx(_iteration_s(job), rel=1e-4)
    # Transfers one after the other, as a rank of GPipe has here, are seen as side by side.
    assert _iteration_s(traced) == pytest.approx(took_s, rel=0.02 if schedule == "gpipe" else 0.008)
    for name, profile in traced.profiles.items():
        if "chunk" not in name and schedule != "interleaved":
            (row,), (known,) = profile.rows, job.profiles[name].rows
            assert row.time_s == pytest.approx(known.time_s, rel=1e-3)
            assert row.energy_j is None


def test_what_a_gpu_waits_for_its_host_is_no_pass() -> None:
    traces = traces_of(_job("1f1b", stages=1, microbatches=1, transfer_s=()))
    plain, took_s = _traced(traces)
    (first,) = _events(traces[0], "forward_0")
    done_us = first["ts"] + first["dur"]
    asked = next(e for e in traces[0]["traceEvents"][1:] if e["args"] == {"correlation": 2})
    # The host asks for the second half 30 ms after the GPU was done with the first.
    asked_us, late_us = asked["ts"], 3e4 + done_us - asked["ts"]
    for event in traces[0]["traceEvents"][1:]:
        if event["cat"] in GPU:
            event["ts"] += 3e4 + 5.0 if event["ts"] > done_us - 1.0 else 0.0
        elif event["ts"] < asked_us < event["ts"] + event["dur"]:
            event["dur"] += late_us
        elif event["ts"] >= asked_us:
            event["ts"] += late_us
    traced, late_s = _traced(traces)
    assert late_s == pytest.approx(took_s + 30e-3, abs=1e-5)
    for name, profile in plain.profiles.items():
        assert traced.profiles[name].rows[0].time_s == pytest.approx(
            profile.rows[0].time_s, abs=2e-6
        )


def test_clocks_of_two_machines_may_differ() -> None:
    traces = traces_of(_job("1f1b", stages=2, microbatches=3, transfer_s=(0.002,)))
    plain, _ = _traced(traces)
    for event in traces[1]["traceEvents"][1:]:
        event["ts"] -= 5e5
    shifted, took_s = _traced(traces)
    assert [wait[:4] for wait in map(msgspec.structs.astuple, shifted.waits)] == [
        wait[:4] for wait in map(msgspec.structs.astuple, plain.waits)
    ]
    assert [wait.lag_s for wait in shifted.waits] == pytest.approx([0.002] * len(plain.waits))
    assert took_s == pytest.approx(_iteration_s(plain))


_Kernel = tuple[str, int, float, float, float]
"""A name, with the group of what is a collective; stream; when asked for, begun, ended, in µs."""


def _trace(rank: int, kernels: Sequence[_Kernel], **ranges: tuple[float, float]) -> dict[str, Any]:
    """Return what a rank of two ran in a step of 1 ms."""
    said = {"ProfilerStep#0": (0.0, 1000.0), **ranges}
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "user_annotation", "name": name, "ts": begins, "dur": ends - begins}
        | {"tid": 1, "args": {"correlation": 0}}
        for name, (begins, ends) in said.items()
    ]
    for number, (name, stream, asked, begins, ends) in enumerate(kernels, start=1):
        args: dict[str, Any] = {"correlation": number, "stream": stream}
        called, _, group = name.partition(" of ")
        if group:
            args |= {"Collective name": "allreduce", "Process Group Name": group}
        call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1}
        events.append({**call, "ts": asked, "dur": 0.05, "args": args})
        cat = "gpu_memcpy" if called.startswith("Memcpy") else "kernel"
        kernel = {"ph": "X", "cat": cat, "name": called, "tid": stream, "args": args}
        events.append({**kernel, "ts": begins, "dur": ends - begins})
    return {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}


def _tensor_parallel() -> list[dict[str, Any]]:
    """Return two ranks that meet twice inside of their forward; the second comes late once."""
    traces = []
    for rank, late in ((0, 0.0), (1, 100.0)):
        kernels = [
            ("gemm", 7, 2.0, 10.0, 110.0 + late),
            ("ncclDevKernel_AllReduce(A) of tp", 7, 3.0, 110.0 + late, 260.0),
            ("gemm", 7, 4.0, 260.0, 360.0),
            ("ncclDevKernel_AllReduce(A) of tp", 7, 5.0, 360.0, 410.0),
            ("gemm", 7, 6.0, 410.0, 510.0),
        ]
        trace = _trace(rank, kernels, **{"fwd microbatch 7": (1.0, 9.0)})
        groups = [{"pg_desc": "mesh_tp", "ranks": [0, 1]}, {"pg_desc": "mesh_dp", "ranks": [rank]}]
        trace["distributedInfo"]["pg_config"] = groups
        traces.append(trace)
    return traces


def test_waiting_inside_of_a_pass_is_not_its_duration() -> None:
    traced, _ = _traced(_tensor_parallel())
    assert [rank.tensor for rank in traced.ranks] == [0, 1]
    assert [rank.data for rank in traced.ranks] == [0, 0]
    first, second = traced.ranks[0].instructions
    assert (first.kind, second.kind) == (InstructionKind.FORWARD, InstructionKind.COLLECTIVE)
    assert second.time_s == 0.0  # its ranks meet once more at the end
    # 500 µs from first to last, 100 of which the first rank waited: 400 and 500.
    row = traced.profiles["stage 0 forward"].rows[0]
    assert row.time_s == pytest.approx(450e-6, rel=1e-6)
    assert row.time_error_s == pytest.approx(1.4826 * 50e-6, rel=1e-6)


_PASSES = {"fwd microbatch 0": (1.0, 1.9), "bwd microbatch 0": (2.0, 3.9)}
_OPTIMIZER = {"Optimizer.step#Adam": (4.0, 4.9)}


def _gathered() -> list[dict[str, Any]]:
    """Return two replicas that gather weights beside a forward from 10 to 500 µs.

    From 110 µs on; what was to run until 210 µs runs beside it, and the rest waits for it.
    """
    kernels = [
        ("forward", 7, 1.1, 10.0, 110.0),
        ("ncclDevKernel_AllGather(A) of fsdp", 9, 1.2, 110.0, 300.0),
        ("forward", 7, 1.3, 110.0, 210.0),
        ("forward", 7, 1.4, 300.0, 500.0),
        ("backward", 7, 2.1, 500.0, 900.0),
        ("optimizer", 7, 4.1, 900.0, 950.0),
    ]
    return [_trace(rank, kernels, **_PASSES, **_OPTIMIZER) for rank in (0, 1)]


def _costs() -> dict[str, Profile]:
    rows = tuple(
        ProfileRow(core_mhz=mhz, time_s=1.4 / mhz, energy_j=0.3 * (mhz / 1400) ** 1.5)
        for mhz in (700, 1000, 1400)
    )
    kinds = ("stage 0 forward", "stage 0 backward", "stage 0 optimizer")
    return dict.fromkeys(kinds, Profile(rows=rows, auto=2))


def _kinds(job: Job) -> list[tuple[str, int]]:
    return [(each.kind.value, each.stream) for each in job.ranks[0].instructions]


def test_a_pass_is_cut_where_it_waits_for_a_collective_beside_it() -> None:
    traced, took_s = _traced(_gathered())
    assert _kinds(traced) == [
        *(("forward", 0), ("collective", 1), ("rest", 0), ("rest", 0)),
        *(("backward", 0), ("optimizer", 0)),
    ]
    taken_s = durations_s(traced)[:4]
    assert taken_s == pytest.approx([100e-6, 190e-6, 100e-6, 200e-6])  # what it waits is no part
    assert _iteration_s(traced) == pytest.approx(took_s) == pytest.approx(940e-6)
    left_s = slack_s(network_of(traced), durations_s(traced))[:4]
    assert left_s == pytest.approx([0.0, 0.0, 90e-6, 0.0], abs=1e-9)


def test_plans_use_what_a_pass_waits_inside_and_no_more() -> None:
    job = with_profiles(_traced(_gathered())[0], _costs())
    plan = plan_job(job, JobGoal(max_slowdown=0.0))
    assert plan.promise.time_change == pytest.approx(0.0, abs=1e-9)
    forward, _, beside, after, *rest = plan.clocks[0]
    rows = job.profiles[job.ranks[0].instructions[2].profile or ""].rows
    assert beside is not None
    assert beside.row < 2
    takes_s = beside.share * rows[beside.row].time_s
    takes_s += (1.0 - beside.share) * rows[
        beside.row if beside.then is None else beside.then
    ].time_s
    assert takes_s == pytest.approx(190e-6, rel=1e-4)  # of 100, for as long as the gather lasts
    assert [each and each.row for each in (forward, after, *rest)] == [2, 2, 2, 2]
    assert plan.promise.energy_change < -0.02


def test_a_copy_beside_a_pass_cuts_it_where_it_is_waited_for() -> None:
    """The host brings data from 20 to 320 µs; what would run from 210 µs on waits for it."""
    kernels = [
        ("forward", 7, 1.1, 10.0, 110.0),
        ("Memcpy HtoD (Pinned -> Device)", 13, 1.2, 20.0, 320.0),
        ("Memcpy DtoD (Device -> Device)", 14, 1.25, 20.0, 30.0),  # too short to count
        ("forward", 7, 1.3, 110.0, 210.0),
        ("forward", 7, 1.4, 320.0, 500.0),
        ("backward", 7, 2.1, 500.0, 900.0),
        ("Memcpy HtoD (Pinned -> Device)", 13, 2.2, 600.0, 880.0),  # for the next step
        ("optimizer", 7, 4.1, 900.0, 950.0),
        ("Memcpy DtoH (Device -> Pinned)", 14, 4.2, 910.0, 1060.0),
    ]
    traces = [_trace(rank, kernels, **_PASSES, **_OPTIMIZER) for rank in (0, 1)]
    traced, took_s = _traced(traces)
    assert _kinds(traced) == [
        *(("forward", 0), ("copy", 1), ("rest", 0), ("rest", 0)),
        *(("backward", 0), ("copy", 1), ("rest", 0), ("copy", 2), ("optimizer", 0)),
    ]
    assert all(each.meeting is None for rank in traced.ranks for each in rank.instructions)
    assert took_s == pytest.approx(1050e-6)
    taken_s = durations_s(traced)[: len(traced.ranks[0].instructions)]
    assert taken_s[[0, 2, 3]].sum() == pytest.approx(380e-6)  # of 490, less the 110 that it waits
    left_s = slack_s(network_of(traced), durations_s(traced))
    assert left_s[2] >= 100e-6
    plan = plan_job(with_profiles(traced, _costs()), JobGoal(max_slowdown=0.0, latency_s=10e-6))
    assert plan.promise.time_change <= 1e-9
    assert plan.promise.energy_change < -0.05


@pytest.mark.untraced
@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_what_two_gpus_ran_is_a_job(name: str) -> None:
    traces = []
    for rank in (0, 1):
        body = gzip.decompress((_RECORDED / f"{name}.rank{rank}.json.gz").read_bytes())
        recorded = json.loads(body)
        trace = recorded["trace"]
        ends = [event["ts"] + event.get("dur", 0.0) for event in trace["traceEvents"]]
        step = {"ph": "X", "cat": "cpu_op", "name": "ProfilerStep#0", "tid": 0, "ts": 0.0}
        trace["traceEvents"].append({**step, "dur": max(ends) + 1.0})
        traces.append({**trace, "distributedInfo": {"rank": rank, "world_size": 2}})
    traced, took_s = _traced(traces)
    # Their hosts were late in the forward, as profilers make them.
    assert _iteration_s(traced) == pytest.approx(recorded["step_s"], rel=0.03)
    assert _iteration_s(traced) < took_s
    assert [rank.data for rank in traced.ranks] == [0, 1]
    kinds = [each.kind.value for each in traced.ranks[0].instructions if each.meeting is None]
    assert [kind for kind in kinds if kind != "rest"] == ["forward", "backward", "optimizer"]
    # Gathers and sums beside passes: all of DDP's but the last, and FSDP's one block ahead.
    taken_s, some = durations_s(traced), traced.ranks[0].instructions
    left_s = slack_s(network_of(traced), taken_s)
    beside_ms = [1e3 * left_s[i] for i, each in enumerate(some) if each.stream]
    assert (len(beside_ms), min(beside_ms) > 1.0) == {"ddp": (24, True), "fsdp": (23, False)}[name]


def test_what_is_not_known_is_said() -> None:
    job = _job("1f1b", stages=2, microbatches=2, transfer_s=(0.001,))
    traces = [
        _without(each, lambda event: "c10d" in event["name"] or "SendRecv" in event["name"])
        for each in traces_of(job, style="torch", gpu=False)
    ]
    for trace in traces:
        trace["traceEvents"] = [e for e in trace["traceEvents"] if "gloo" not in e["name"]]
    read = [rank_trace(trace, "one") for trace in traces]
    traced, _ = traced_job(read, workload="w")
    said = " ".join(traced.warnings)
    for words in ("time only", "--blocked-power", "no GPU", "no transfers between stages"):
        assert words in said
    assert [wait.lag_s for wait in traced.waits] == [0.0] * len(traced.waits)
    assert [rank.stage for rank in traced.ranks] == [0, 1]


def _without_kernels(trace: dict[str, Any], *names: str) -> dict[str, Any]:
    """Take kernels out, with the calls that launched them."""
    gone = {
        each["args"]["correlation"]
        for each in trace["traceEvents"]
        if each.get("cat") in GPU and any(name in each["name"] for name in names)
    }
    return _without(trace, lambda event: event.get("args", {}).get("correlation") in gone)


def _changed(change: Callable[[list[dict[str, Any]]], None]) -> list[dict[str, Any]]:
    traces = traces_of(_job("1f1b", stages=2, microbatches=3, transfer_s=(0.001,)))
    change(traces)
    return traces


def _drop(traces: list[dict[str, Any]], rank: int, *names: str) -> None:
    traces[rank] = _without(traces[rank], lambda event: event["name"] in names)


def _drop_last(traces: list[dict[str, Any]], rank: int, name: str) -> None:
    traces[rank]["traceEvents"].remove(_events(traces[rank], name)[-1])


_BAD: list[tuple[Callable[[list[dict[str, Any]]], Any], str]] = [
    (
        lambda t: [
            each["distributedInfo"].update(world_size=9, rank=at)
            for at, each in zip((0, 4), t, strict=True)
        ],
        "of 9 ranks, the traces of 1 to 3, 5 to 8 are missing",
    ),
    (lambda t: t.append(t[0]), "two traces are of rank 0"),
    (
        lambda t: t[1]["distributedInfo"].update(world_size=4),
        "ranks 0 and 1 are of different jobs: the world size is 2 and 4",
    ),
    (
        lambda t: [each.update(underclock={"run": str(at)}) for at, each in enumerate(t)],
        "different jobs: the run is 0 and 1",
    ),
    (lambda t: t[1].update(underclock={"run": "a"}), "the run is None and a"),
    (lambda t: t[0].pop("distributedInfo"), "rank-0.json does not say which rank it is of"),
    (lambda t: _drop(t, 0, "ProfilerStep#0"), "rank-0.json has no step"),
    (
        lambda t: t[0].update(
            traceEvents=[e for e in t[0]["traceEvents"] if e.get("cat") not in GPU]
        ),
        "rank-0.json ran on a H100 and has no GPU event",
    ),
    (lambda t: _events(t[0], "ProfilerStep")[0].update(name="ProfilerStep#9"), "no step in common"),
    (
        lambda t: _drop(t, 1, "forward mb=2 stage=1", "backward mb=2 stage=1"),
        "rank 1 takes 2 of 3 microbatches through the forward of stage 1",
    ),
    (
        lambda t: _events(t[1], "forward mb=2")[0].update(name="forward mb=1 stage=1"),
        "rank 1 runs the forward of microbatch 1 2 times on stage 1",
    ),
    (
        lambda t: _drop_last(t, 0, "c10d::send"),
        "rank 1 receives 3 times from rank 0, which sends 2 times",
    ),
    (
        lambda t: _events(t[0], "c10d::send")[0]["args"]["Concrete Inputs"].__setitem__(2, "5"),
        "rank 0 has a transfer with rank 5, of 2",
    ),
    (
        lambda t: [each["args"].clear() for each in _events(t[0], "c10d::send")],
        "does not say with which rank",
    ),
]


@pytest.mark.parametrize(("change", "words"), _BAD)
def test_what_is_no_job_is_a_sentence(
    change: Callable[[list[dict[str, Any]]], Any], words: str
) -> None:
    with pytest.raises(DataError, match=words) as refused:
        _traced(_changed(change))
    assert refused.value.hint


def test_ranks_of_a_group_meet_as_often_as_each_other() -> None:
    traces = traces_of(_job("1f1b", stages=1, transfer_s=(), data=2, reduce_s=0.004))
    traces[1] = _without_kernels(traces[1], "AllReduce")
    # One rank alone in a group waits for nobody.
    assert all(each.meeting is None for each in _traced(traces)[0].ranks[0].instructions)
    traces = traces_of(_job("1f1b", stages=1, transfer_s=(), data=2, reduce_s=0.004))
    (again,) = _events(traces[1], "AllReduce")
    number = again["args"]["correlation"]
    traces[1]["traceEvents"] += [
        {**each, "args": {**each["args"], "correlation": 10**6}}
        for each in traces[1]["traceEvents"]
        if each.get("args", {}).get("correlation") == number
    ]
    with pytest.raises(DataError, match="ranks 0 and 1 have 1 and 2 collectives in group 0/1"):
        _traced(traces)


def test_several_stages_a_rank_need_ranges() -> None:
    traces = traces_of(_job("interleaved", chunks=2), style=None)
    with pytest.raises(DataError, match="send beyond their neighbours") as refused:
        _traced(traces)
    assert "forward mb=3 stage=1" in refused.value.hint
