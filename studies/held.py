"""What marks cost a training step on this machine's GPU, and how well a conductor knows it.

    UNDERCLOCK_READ_ONLY=1 python studies/held.py RESULTS.json [NAME ...]

Nothing is set on the GPU: plans are held dry. Each step of ``STEPS`` is traced in a process of its
own and given a plan by hand that changes clocks every ``SEGMENT_S``: the figures are of timing, not
of savings. Then, in a second process, the plan is held for ``LONG`` steps in a row, and blocks of
steps with marks take turns with blocks without.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from underclock.hw.clock import SystemClock
from underclock.hw.cuda.feed import timed
from underclock.records import (
    AUTO,
    Aggregate,
    Arm,
    Choice,
    ClockSchedule,
    Cost,
    Evidence,
    GpuInfo,
    Granularity,
    Objective,
    Plan,
    Segment,
    Status,
    Step,
    Strategy,
)
from underclock.records.latencies import LatencyTable
from underclock.runtime.conductor.log import last_run, read_log, summary_of
from underclock.runtime.holding.applied import applied
from underclock.runtime.holding.run import HowToRun

ZOO = Path(__file__).parent / "zoo" / "gpt.py"
STEPS = {
    "xl": "xl",
    "xl_graph": "xl",
    "small_compiled": "small_compiled",
    "small_blocks": "small_blocks",
}
SEGMENT_S = 0.012
LATENCY = LatencyTable.constant(5e-3, call_s=1e-3)  # in all 6 ms, as the figures have it
LONG = 100
BLOCK_S, PAIRS = 2.0, 14  # a block that marks starts a conductor of its own
GRAPH_BLOCK_S, GRAPH_PAIRS = 0.8, 50
_SETTLING = 6  # steps before a block counts; the first two of them teach the marks
_TIMEOUT_S = 280
_WARM_S, _WINDOW_S = 3.0, 1.0
_READS = 40


def main() -> None:
    """Trace and hold each step in processes of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("names", nargs="*", default=list(STEPS))
    parser.add_argument("--turns", type=int, help="Blocks with marks, and as many without.")
    parser.add_argument("--plan", type=Path)
    parser.add_argument("--hold", type=Path)
    asked = parser.parse_args()
    if asked.plan:
        asked.plan.write_bytes(msgspec.json.encode(planned(asked.names[0])))
        return
    if asked.hold:
        asked.results.write_text(json.dumps(held(asked.names[0], asked.hold, asked.turns)))
        return
    results: dict[str, Any] = {}
    for name in asked.names:
        plan = asked.results.with_name(f"{STEPS[name]}.plan.json")
        one = asked.results.with_name(f"{name}.held.json")
        turns = [] if asked.turns is None else ["--turns", str(asked.turns)]
        words = "" if plan.exists() else child(asked.results, name, "--plan", str(plan))
        words = words or child(one, name, "--hold", str(plan), *turns)
        results[name] = {"failed": words} if words else json.loads(one.read_text())
        asked.results.write_text(json.dumps(results, indent=1))
        print(name, json.dumps(results[name])[:1500], flush=True)


def child(results: Path, name: str, *how: str) -> str:
    """Do a part in a new process; return its last words if it fails."""
    command = [sys.executable, __file__, str(results), name, *how]
    try:
        done = subprocess.run(
            command, stderr=subprocess.PIPE, text=True, check=False, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as exc:
        return f"took longer than {_TIMEOUT_S} s: {(exc.stderr or b'')[-1500:]!r}"
    print(done.stderr[-800:], file=sys.stderr, flush=True)
    return done.stderr[-1500:] if done.returncode else ""


def planned(name: str) -> Plan:
    """Trace a step, and make a plan for it by hand."""
    from underclock.hw.nvml import NvmlGpu  # noqa: PLC0415 - needs a GPU
    from underclock.hw.nvml_calls import nvml_session  # noqa: PLC0415
    from underclock.tracing.captured import held_step  # noqa: PLC0415
    from underclock.tracing.source import load_step  # noqa: PLC0415

    with held_step(load_step(f"{ZOO}:{STEPS[name]}"), name=name) as launcher:
        step = launcher.traced.step
        with launcher.loop([step.kernels[index] for index in step.order]) as loop:
            SystemClock().sleep_s(_WARM_S)
            launch_s = loop.durations(_WINDOW_S).kernel_s
    with nvml_session():
        gpu = NvmlGpu()
        return plan_of(step, launch_s, gpu.info(), gpu.supported_core_mhz())


def plan_of(step: Step, launch_s: Sequence[float], gpu: GpuInfo, core_mhz: Sequence[int]) -> Plan:
    """Change clocks every so often, between auto and three quarters of the highest."""
    low_mhz = min(mhz for mhz in core_mhz if mhz >= 0.75 * max(core_mhz))
    segments: list[Segment] = []
    since, taken_s = 0, 0.0
    for at, each_s in enumerate(launch_s, start=1):
        taken_s += each_s
        if taken_s >= SEGMENT_S or at == len(launch_s):
            clock = low_mhz if len(segments) % 2 else None
            segments.append(Segment(launches=at - since, core_mhz=clock, mem_mhz=None))
            since, taken_s = at, 0.0
    took_s = dict.fromkeys(range(len(step.kernels)), 0.0)
    for kernel, each_s in zip(step.order, launch_s, strict=True):
        took_s[kernel] += each_s
    free = Cost(time_s=sum(launch_s), energy_j=1.0, time_change=0.0, energy_change=0.0)
    return Plan(
        evidence=Evidence.MEASURED,
        gpu=gpu,
        workload=step.name,
        objective=Objective.WASTE,
        max_slowdown=0.0,
        granularity=Granularity.KERNEL,
        aggregate=Aggregate.GLOBAL,
        baseline=AUTO,
        chosen=Strategy.AUTO,
        arms=(Arm.of(Strategy.AUTO, free, Status.BASELINE),),
        kernels={
            kernel.name: Choice(
                core_mhz=None,
                mem_mhz=None,
                time_change=0.0,
                energy_change=0.0,
                auto_time_s=took_s[index],
                auto_energy_j=1.0,
            )
            for index, kernel in enumerate(step.kernels)
        },
        fixed=None,
        runs=step.kernels,
        order=step.order,
        modules=step.modules,
        schedule=ClockSchedule(
            segments=tuple(segments),
            switches=len(segments) // 2 * 2,  # an odd last one is as the first
            latency="6 ms, assumed",
            latencies=LATENCY,
            launch_s=tuple(launch_s),
        ),
    )


def held(name: str, path: Path, most: int | None) -> dict[str, Any]:
    """Hold a plan dry, in a row and in turns; in fewer turns than usual where that is asked."""
    import torch  # noqa: PLC0415 - the user's own

    from underclock.tracing.source import load_step  # noqa: PLC0415 - needs a GPU

    plan = msgspec.json.decode(path.read_bytes(), type=Plan)
    step = load_step(f"{ZOO}:{STEPS[name]}")
    log = path.with_name(f"{name}.jsonl")
    log.unlink(missing_ok=True)
    how = HowToRun(dry=True, log=log, window=0)
    for _ in range(3):
        step()
    step_s = seconds(torch, step, 10)
    turns, usual = (_graph_turns, GRAPH_PAIRS) if name.endswith("_graph") else (_eager_turns, PAIRS)
    found = turns(torch, step, plan, how, range(usual if most is None else most))
    plain_s, marked_s = found["plain_s"], found["marked_s"]
    ratios = [m / p - 1 for p, m in zip(plain_s, marked_s, strict=True)]
    return {
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
        "launches": len(plan.order),
        "changes": plan.schedule.switches if plan.schedule else 0,
        "step_s": step_s,
        "change": statistics.mean(ratios) if ratios else None,
        "standard_error": statistics.stdev(ratios) / len(ratios) ** 0.5 if ratios else None,
        "reads": reads(torch, step),
        **found,
    }


def reads(torch: ModuleType, step: Callable[[], object]) -> dict[str, dict[str, float]]:
    """Return what each of the conductor's readings takes while the GPU works, in time and core."""
    from underclock.hw.nvml import NvmlGpu  # noqa: PLC0415 - needs a GPU
    from underclock.hw.nvml_calls import nvml_session  # noqa: PLC0415

    taken = {}
    with nvml_session():
        gpu = NvmlGpu()
        for read in (
            gpu.energy_j,
            gpu.observed,
            gpu.throttle_reasons,
            gpu.power_w,
            gpu.temperature_c,
        ):
            step()  # it is launched, and runs on
            began_s, cpu_s = time.perf_counter(), time.thread_time()
            for _ in range(_READS):
                read()
            taken[read.__name__] = {
                "blocks_s": (time.perf_counter() - began_s) / _READS,
                "cpu_s": (time.thread_time() - cpu_s) / _READS,
            }
            torch.cuda.synchronize()
    return taken


def _eager_turns(
    torch: ModuleType, step: Callable[[], object], plan: Plan, how: HowToRun, pairs: range
) -> dict[str, Any]:
    """Hold a step that is run as it is written; a block without marks waits as long first."""
    with applied(plan, how):
        for _ in range(LONG):
            step()
        torch.cuda.synchronize()
    long = _of_log(how.log)
    steps = max(10, round(BLOCK_S / seconds(torch, step, 10)))
    started_s = [1.0]

    def block(holding: AbstractContextManager[object], waits_s: float) -> float:
        begun = time.perf_counter()
        with holding:
            started_s.append(time.perf_counter() - begun)
            SystemClock().sleep_s(waits_s)
            for _ in range(_SETTLING):
                step()
            return seconds(torch, step, steps)

    plain_s, marked_s = [], []
    for pair in pairs:
        for marks in (pair % 2 == 0, pair % 2 == 1):
            if marks:
                marked_s.append(block(applied(plan, how), 0.0))
            else:
                plain_s.append(block(nullcontext(), max(started_s[1:] or started_s)))
    return {"long": long, "steps": steps, "plain_s": plain_s, "marked_s": marked_s}


def _graph_turns(
    torch: ModuleType, step: Callable[[], object], plan: Plan, how: HowToRun, pairs: range
) -> dict[str, Any]:
    """Hold a step that was captured: a graph without marks, and one with."""
    plain = _graph(torch, step)
    with applied(plan, how):
        for _ in range(_SETTLING):
            step()
        marked = _graph(torch, step)
        for _ in range(LONG):
            marked.replay()
        torch.cuda.synchronize()
        long = _of_log(how.log)
        steps = max(3, round(GRAPH_BLOCK_S / seconds(torch, plain.replay, 10)))
        times: dict[bool, list[float]] = {True: [], False: []}
        for pair in pairs:
            for marks in (pair % 2 == 0, pair % 2 == 1):
                graph = marked if marks else plain
                times[marks].append(seconds(torch, graph.replay, steps))
    long["conductor"] = _of_log(how.log)["conductor"]  # known at the end
    return {"long": long, "steps": steps, "plain_s": times[False], "marked_s": times[True]}


def _graph(torch: ModuleType, step: Callable[[], object]) -> Any:  # noqa: ANN401 - PyTorch's
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def seconds(torch: ModuleType, step: Callable[[], object], times: int) -> float:
    """Return what one of some steps in a row takes the GPU."""

    def launch(_stream: object) -> None:
        step()

    return timed(torch, launch, times) / times


def _of_log(path: Path | None) -> dict[str, Any]:
    if path is None:
        raise AssertionError("there is a log")
    lines = last_run(read_log(path))
    found: dict[str, Any] = msgspec.to_builtins(summary_of(lines))
    return found


if __name__ == "__main__":
    os.environ.setdefault("UNDERCLOCK_READ_ONLY", "1")
    main()
