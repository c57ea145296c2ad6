"""Traces of other people's kinds, each made anew with random sizes: what is true of them comes out.

The cases of ``../shared/cases`` are read too, where they are.
"""

import contextlib
import copy
import cProfile
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_kinds import T0_US, TracedRun, traced_run
from traced_ranks import durations_s
from underclock.core.job.network import network_of
from underclock.errors import DataError, UnderclockError
from underclock.records.job import Job
from underclock.tracing.job_files import job_of_traces

_SEEDS = range(3)


def _job(tmp_path: Path, *traces: dict[str, Any], **asked: Any) -> Job:
    files = []
    for at, trace in enumerate(traces):
        files.append(tmp_path / f"rank{at}.json")
        files[-1].write_text(json.dumps(trace))
    return job_of_traces(files, **asked)


def _check(job: Job, run: TracedRun, *, period: bool = True) -> None:
    """Hold a job's passes to the run's, and its iteration to the steps' period."""
    assert set(job.profiles) == {f"stage 0 {name}" for name in run.taken_us}
    for name, taken_us in run.taken_us.items():
        # A pass of one piece ends with its last kernel; of the optimizer the work counts.
        lost_us = 3.0 if name != "optimizer" else 2.0 * run.kernels[name]  # times are of 0.25 us
        row = job.profiles[f"stage 0 {name}"].rows[0]
        assert row.time_s == pytest.approx(1e-6 * taken_us, abs=1e-6 * lost_us)
    assert job.microbatches == run.microbatches
    if period:
        assert _iteration_s(job) <= 1e-6 * run.period_us * (1.0 + 1e-6)
        assert _iteration_s(job) >= 1e-6 * (run.period_us - run.gap_us) * 0.99


def _iteration_s(job: Job) -> float:
    return float(network_of(job).iteration_s(durations_s(job)))


def _said(job: Job) -> str:
    return " ".join(job.warnings)


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_run_comes_back(seed: int, tmp_path: Path) -> None:
    run = traced_run(seed)
    job = _job(tmp_path, run.trace())
    _check(job, run)
    assert [words.partition(":")[0] for words in job.warnings] == [
        "time only",
        "what waiting draws is not known and counts as nothing",
    ]


@pytest.mark.parametrize("cat", ["kernel", "gpu_memcpy"])
@pytest.mark.parametrize("seed", _SEEDS)
def test_the_next_input_prepared_on_another_stream_is_no_part_of_a_step(
    seed: int, cat: str, tmp_path: Path
) -> None:
    run = traced_run(seed)
    for step in range(run.steps):
        for at in range(run.random.randint(1, 4)):
            asked_us = run.asked_us(step) + 1.0 + at
            lasts_us = run.random.uniform(50.0, 0.9 * run.behind_us)
            run.kernel(
                f"normalize_{at}", asked_us, asked_us + 3.0, lasts_us, stream=20 + at, cat=cat
            )
    job = _job(tmp_path, run.trace())
    for name, taken_us in run.taken_us.items():
        assert job.profiles[f"stage 0 {name}"].rows[0].time_s == pytest.approx(
            1e-6 * taken_us, rel=0.01
        )
    assert _iteration_s(job) <= 1e-6 * run.period_us * (1.0 + 1e-6)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("seed", _SEEDS)
def test_kernels_without_a_call_belong_to_no_step(seed: int, steps: int, tmp_path: Path) -> None:
    run = traced_run(seed, steps=steps)
    count = run.random.randint(1, 30)
    for at in range(count):
        each_us = run.behind_us / count
        run.kernel(f"backward_{at}", None, T0_US + at * each_us, each_us - 1.0)
    trace = run.trace()
    job = _job(tmp_path, trace)
    _check(job, run)
    assert f"{count} kernels have no launching call" in _said(job)
    trace["traceEvents"] = [
        e for e in trace["traceEvents"] if not e.get("cat", "").startswith("cuda_")
    ]
    with pytest.raises(DataError, match=r"no work of the GPU in .* has its launching call"):
        _job(tmp_path, trace)


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_gpu_that_is_not_named_is_unknown_and_may_be_named(seed: int, tmp_path: Path) -> None:
    run = traced_run(seed)
    job = _job(tmp_path, run.trace(gpu=None))
    _check(job, run)
    assert job.gpu.name == "unknown GPU"
    assert "--gpu-name" in _said(job)
    assert "CPU" not in _said(job)
    named = _job(tmp_path, run.trace(gpu=None), gpu_name="B300")
    assert named.gpu.name == "B300"
    assert "--gpu-name" not in _said(named)


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_last_step_that_is_empty_or_cut_short_is_excluded(seed: int, tmp_path: Path) -> None:
    run = traced_run(seed, steps=3)
    end_us = run.asked_us(3)
    run.host("ProfilerStep#99", end_us, 40.0)
    job = _job(tmp_path, run.trace())
    _check(job, run)
    assert "step 99 of rank0.json has neither a forward nor a backward, and is excluded" in _said(
        job
    )
    run.host("aten::linear", end_us + 5.0, 30.0)
    for at in range(run.kernels["forward"]):
        run.kernel(f"forward_{at}", end_us + 6.0 + 0.1 * at, run.begins_us(3) + at, 0.5)
    job = _job(tmp_path, run.trace())
    _check(job, run)
    assert "step 99" in _said(job)


def _dropped(events: list[dict[str, Any]], gone: list[dict[str, Any]]) -> None:
    ids = {id(event) for event in gone}
    events[:] = [event for event in events if id(event) not in ids]


@pytest.mark.parametrize("seed", _SEEDS)
def test_work_that_begins_before_it_is_asked_for_is_excluded(seed: int, tmp_path: Path) -> None:
    """Inside of passes in all steps, and at the begin of one in some."""
    run = traced_run(seed, steps=5)
    inside = run.named("backward_1") if run.kernels["backward"] > 2 else []
    first = [*run.named("forward_0")][: run.microbatches]
    for event in (*inside, *first):
        event.update({"ts": 0.0, "dur": 0.0} if seed % 2 else {"ts": T0_US - 1e5})
    job = _job(tmp_path, run.trace())
    _check(job, run)
    count = len({id(event) for event in (*inside, *first)})
    assert f"{count} kernels and copies begin before they are asked for" in _said(job)


@pytest.mark.parametrize("name", ["forward", "backward", "optimizer"])
@pytest.mark.parametrize("seed", _SEEDS)
def test_a_pass_of_which_nothing_or_the_end_was_never_seen_is_refused(
    seed: int, name: str, tmp_path: Path
) -> None:
    run = traced_run(seed)
    _dropped(run.events, run.named(name))
    with pytest.raises(DataError, match=f"did not see when stage 0 {name} begins or ends"):
        _job(tmp_path, run.trace())
    run = traced_run(seed)
    for event in run.named(f"{name}_{run.kernels[name] - 1}"):  # into the one before it
        event["ts"] -= 100.0
    with pytest.raises(DataError, match="did not see when"):
        _job(tmp_path, run.trace())


@pytest.mark.parametrize("seed", _SEEDS)
def test_kernels_that_were_lost_are_said_and_passes_that_they_end_do_not_count(
    seed: int, tmp_path: Path
) -> None:
    run = traced_run(seed, steps=4)
    last = run.kernels["optimizer"] - 1
    gone = [run.named(f"optimizer_{last}")[-1], run.named("backward_0")[0]]
    _dropped(run.events, gone)
    job = _job(tmp_path, run.trace())
    _check(job, run)
    assert "2 kernels were launched and not seen by the profiler" in _said(job)


@pytest.mark.parametrize("where", ["inside", "at the end", "the last"])
@pytest.mark.parametrize("seed", _SEEDS)
def test_durations_beyond_the_next_kernel_are_not_believed(
    seed: int, where: str, tmp_path: Path
) -> None:
    run = traced_run(seed, steps=4)
    if where == "inside":
        some = run.named("backward_0")
    else:
        some = run.named(f"optimizer_{run.kernels['optimizer'] - 1}")[-1:]
        if where != "the last":
            some += run.named(f"forward_{run.kernels['forward'] - 1}")[: run.microbatches]
    for event in some:
        event["dur"] = run.random.choice((3.0, 40.0, 1e6)) * run.period_us
    job = _job(tmp_path, run.trace())
    _check(job, run)
    assert "kernels last beyond the next one of their stream" in _said(job)


@pytest.mark.parametrize("seed", _SEEDS)
def test_two_gpus_in_one_process_are_refused(seed: int, tmp_path: Path) -> None:
    run = traced_run(seed)
    for event in run.named("backward"):
        event["args"]["device"] = 1
    with pytest.raises(DataError, match="kernels of 2 GPUs in one process") as refused:
        _job(tmp_path, run.trace())
    assert refused.value.hint
    run = traced_run(seed)
    run.kernel("stray", run.asked_us(1) + 3.0, run.asked_us(1) + 5.0, 2.0, device=1)
    job = _job(tmp_path, run.trace())
    _check(job, run)
    assert "1 kernels and copies ran on another GPU" in _said(job)


@pytest.mark.parametrize("seed", _SEEDS)
def test_steps_that_overlap_are_said(seed: int, tmp_path: Path) -> None:
    run = traced_run(seed, steps=4)
    for event in [e for e in run.events if "ProfilerStep" in e["name"]]:
        event["dur"] *= run.random.uniform(1.1, 1.8)
    job = _job(tmp_path, run.trace())
    _check(job, run)
    assert "steps 3 and 4 of rank0.json overlap" in _said(job)
    run.host("ProfilerStep#77", run.asked_us(1) + 100.0, run.period_us, tid=9)
    with pytest.raises(DataError, match="overlap, in two threads"):
        _job(tmp_path, run.trace())


@pytest.mark.parametrize("seed", _SEEDS)
def test_one_trace_alone_may_be_of_any_rank(seed: int, tmp_path: Path) -> None:
    run = traced_run(seed)
    assert "ranks" not in _said(_job(tmp_path, run.trace(rank=None)))
    rank, world = run.random.randint(0, 7), run.random.randint(8, 4096)
    job = _job(tmp_path, run.trace(rank=rank, world=world))
    _check(job, run)
    assert len(job.ranks) == 1
    assert f"of {world} ranks only the trace of rank {rank} is given" in _said(job)
    with pytest.raises(DataError, match=f"the traces of 0, 3 to {world - 1} are missing"):
        _job(tmp_path, *(run.trace(rank=each, world=world) for each in (1, 2)))
    with pytest.raises(DataError, match=r"rank1\.json does not say which rank"):
        _job(tmp_path, run.trace(), run.trace(rank=None))


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_trace_without_steps_is_one_step(seed: int, tmp_path: Path) -> None:
    run = traced_run(seed, marks=False)
    job = _job(tmp_path, run.trace())
    assert "rank0.json has no step() and counts as one step" in _said(job)
    assert job.microbatches == run.microbatches * run.steps
    _check(job, TracedRun(**{**vars(run), "microbatches": job.microbatches}), period=False)
    assert _iteration_s(job) == pytest.approx(1e-6 * run.period_us * run.steps, rel=0.02)


def _hip(event: dict[str, Any]) -> None:
    event["name"] = "hipExtModuleLaunchKernel"


def _driver(event: dict[str, Any]) -> None:
    event |= {"cat": "cuda_driver", "name": "cuLaunchKernelEx"}


def _untraced(event: dict[str, Any]) -> None:
    """Leave an operator with a number where a call was, as older traces of Triton have it."""
    number = event["args"]["correlation"]
    event |= {"cat": "cpu_op", "name": "triton_fused", "args": {"External id": number}}


@pytest.mark.parametrize("launched", [_hip, _driver, _untraced])
@pytest.mark.parametrize("seed", _SEEDS)
def test_work_is_asked_for_in_any_way(
    seed: int, launched: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    run = traced_run(seed)
    for event in run.events:
        if event["cat"] == "cuda_runtime":
            launched(event)
        elif event["cat"] == "kernel":
            event["args"]["External id"] = event["args"]["correlation"]
    _check(_job(tmp_path, run.trace()), run)


@pytest.mark.parametrize("seed", _SEEDS)
def test_what_a_hook_asks_for_in_autograds_thread_is_of_the_backward(
    seed: int, tmp_path: Path
) -> None:
    run = traced_run(seed, steps=3)
    for event in [e for e in run.events if e["name"].startswith("autograd::")]:
        half_us = 0.4 * event["dur"]
        run.host("FullyShardedDataParallel._pre_backward", event["ts"] + half_us, half_us, tid=2)
        event["dur"] = half_us
    _check(_job(tmp_path, run.trace()), run)


_MALFORMED: list[Callable[[str, random.Random], str]] = [
    lambda text, of: text.replace("aten::linear", rf"C:\Users\n{of.randint(0, 9)}\x\lib.py(1): f"),
    lambda text, of: text.replace("aten::linear", f"a.py(1): {chr(of.randint(1, 31))}"),
    lambda text, of: text.replace(
        '"stream": 7', f'"occupancy": {of.choice(("nan", "-nan", "inf", "NaN"))}, "stream": 7'
    ),
    lambda text, of: text.replace("aten::linear", f'operator"" {"x" * of.randint(0, 5)}'),
    lambda text, of: text.replace("aten::linear", "D:\\" + "x" * of.randint(0, 5) + "\\"),
    lambda text, _: text.replace("}]}", "},]}"),
]


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("change", _MALFORMED)
def test_json_as_pytorch_writes_it_is_read(
    change: Callable[[str, random.Random], str], seed: int, tmp_path: Path
) -> None:
    run = traced_run(seed)
    path = tmp_path / "one.json"
    text = json.dumps(run.trace())
    path.write_text(change(text, run.random))
    assert path.read_text() != text
    _check(job_of_traces([path]), run)


@pytest.mark.parametrize("seed", _SEEDS)
def test_other_malformed_json_says_how_to_go_on_and_only_a_cut_one_was_killed(
    seed: int, tmp_path: Path
) -> None:
    text = json.dumps(traced_run(seed).trace())
    path = tmp_path / "one.json"
    path.write_text(text.replace('"ph": "X", "cat": "cpu_op"', '"ph" "X", "cat": "cpu_op"', 1))
    with pytest.raises(DataError, match="is no trace") as refused:
        job_of_traces([path])
    assert "with_stack=False" in refused.value.hint
    assert "killed" not in refused.value.hint
    path.write_text(text[: 1 + seed * (len(text) - 2) // max(_SEEDS)])
    with pytest.raises(DataError, match="is no whole trace") as refused:
        job_of_traces([path])
    assert "killed" in refused.value.hint


def test_time_is_linear_in_kernels(tmp_path: Path) -> None:
    """By calls that are made, not by a clock; the host asks more slowly than its GPU runs."""
    counts = []
    for size in (200, 800):
        run = traced_run(3, steps=0)
        run.host("ProfilerStep#1", T0_US, 20.0 * size)
        run.host("aten::linear", T0_US + 1.0, 8.0 * size)
        run.host("autograd::engine::evaluate_function: X", T0_US + 9.0 * size, 8.0 * size, tid=2)
        for at in range(2 * size):
            name, tid = ("forward", 1) if at < size else ("backward", 2)
            asked_us = T0_US + 2.0 + 4.0 * at + size * (tid - 1)
            run.kernel(name, asked_us, T0_US + 100.0 + 3.0 * at, 2.0, tid=tid)
        profile = cProfile.Profile()
        profile.enable()
        job = _job(tmp_path, run.trace())
        profile.disable()
        assert "the clocks of host and GPU differ" in _said(job)
        counts.append(sum(each.callcount for each in profile.getstats()))
    assert counts[1] < 4.2 * counts[0]


_ODD: tuple[Any, ...] = (
    None,
    -1,
    0,
    1e300,
    -5.5,
    math.nan,
    math.inf,
    "7",
    "",
    [],
    {},
    [1, "a"],
    {"a": 1},
    True,
)


def _change(events: list[Any], of: random.Random) -> None:
    """Change one thing in a list of events."""
    event = of.choice(events)
    if not isinstance(event, dict) or not event:
        return
    args = event.get("args")
    holder = args if isinstance(args, dict) and args and of.random() < 0.4 else event
    key, another = of.choice(list(holder)), of.choice(events)
    how = of.randint(0, 7)
    if how == 0:
        del holder[key]
    elif how == 1:
        of.shuffle(events)
    elif how == 2:
        events.remove(event)
    elif how == 3 and isinstance(another, dict) and key in another:
        holder[key], another[key] = another[key], holder[key]
    elif how == 4:
        events.append(copy.deepcopy(of.choice([event, *_ODD[:3]])))
    else:
        holder[key] = copy.deepcopy(of.choice(_ODD))


def mutated(trace: dict[str, Any], of: random.Random) -> dict[str, Any]:
    """Return a trace with a few things in it that are not as they were."""
    trace = copy.deepcopy(trace)
    for _ in range(of.randint(1, 12)):
        _change(trace["traceEvents"], of)
    if of.random() < 0.3:
        trace[of.choice([*trace, "underclock", "distributedInfo"])] = copy.deepcopy(of.choice(_ODD))
    about = trace.get("distributedInfo")
    if of.random() < 0.2 and isinstance(about, dict):
        about[of.choice(["rank", "world_size", "pg_config"])] = copy.deepcopy(of.choice(_ODD))
    return trace


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_any_trace_is_a_job_or_a_sentence(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    of = random.Random(seed)  # noqa: S311 - a test's
    run = traced_run(seed, microbatches=of.choice((1, 2)))
    trace = mutated(run.trace(), of)
    with contextlib.suppress(UnderclockError):
        assert math.isfinite(_iteration_s(_job(tmp_path_factory.mktemp("odd"), trace)))
