"""How fast a step is, before and after Underclock looked at it, and what each launch takes."""

import gc
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch as library

from underclock.hw.nvml import NvmlGpu
from underclock.tracing.captured import measured_step
from underclock.tracing.source import load_step
from underclock.tracing.trace import trace

torch: Any = library  # typed in part only
STEPS, LEAST_STEPS, SETTLING = 60, 12, 5
LOOK_MS, SPEED_WARM_S = 2e3, 2.0
LAUNCHES, TRIES, HELD_UP_CYCLES = 600, 6, 40_000_000


def speed_ms(step: Callable[[], object]) -> dict[str, float]:
    """Return how long a step takes as its user runs it, in ms: of many, a tenth takes less, half.

    Where the host bounds a step, others on the machine only ever make it slower.
    """
    settling_ms = [_once_ms(step) for _ in range(SETTLING)]
    times = min(STEPS, max(LEAST_STEPS, round(LOOK_MS / min(settling_ms))))
    tenths = statistics.quantiles((_once_ms(step) for _ in range(times)), n=10)
    return {"tenth": tenths[0], "median": tenths[4]}


def _once_ms(step: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begun_s = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begun_s)


def speeds(source: str, gpu: NvmlGpu) -> dict[str, Any]:
    """Compare a step's speed before and after it was traced and timed inside, the GPU as warm.

    A step at the power cap gets slower as the GPU gets warmer, whatever was done to it; so does one
    away from it where the driver lowers the clocks of a warm GPU.
    """
    function = load_step(source)

    def look() -> dict[str, Any]:
        ends_s = time.perf_counter() + SPEED_WARM_S
        while time.perf_counter() < ends_s:
            function()
        taken = speed_ms(function)
        function()
        ran_at = {"core_mhz": gpu.observed().core_mhz, "temperature_c": gpu.temperature_c()}
        torch.cuda.synchronize()
        return taken | ran_at | {"launch_us": launch_us()}

    before, called = [look(), look()], [calls(function)]
    trace(function)
    traced = [look(), look()]
    called.append(calls(function))
    with measured_step(function, name=source) as launcher:
        step = launcher.traced.step
        with launcher.loop([step.kernels[index] for index in step.order]) as loop:
            for _ in range(2):
                loop.durations(0.5)
    measured = [look(), look()]
    called.append(calls(function))
    return {"before": before, "traced": traced, "measured": measured, "calls": called}


def calls(step: Callable[[], object]) -> int:
    """Return the calls that Python makes in a step, C functions included: what is left shows."""
    made = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal made
        made += event in {"call", "c_call"}

    gc.collect()
    gc.disable()
    sys.setprofile(count)
    try:
        step()
    finally:
        sys.setprofile(None)
        gc.enable()
    torch.cuda.synchronize()
    return made


def launch_us() -> float:
    """Return how long after a tiny kernel the next one begins, in µs: on the GPU, the host ahead.

    A wait holds them up until all are launched. What each takes more is what a step of many
    launches takes more, whoever made it so.
    """
    tiny: Any = torch.ones(64, device="cuda")
    tried: list[float] = []
    for _ in range(TRIES):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(HELD_UP_CYCLES)  # noqa: SLF001 - there is no public one
        begun.record()
        for _ in range(LAUNCHES):
            tiny.add_(1)
        ended.record()
        torch.cuda.synchronize()
        tried.append(1e3 * begun.elapsed_time(ended) / LAUNCHES)
    return min(tried)


def launches(source: str) -> dict[str, float]:
    """Return what a launch takes in a new process, and after a step ran on one and two streams."""
    taken = {"nothing": launch_us()}
    function = load_step(source)
    function()
    taken["the step"] = launch_us()
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    matrix: Any = torch.randn(512, 512, device="cuda")
    with torch.cuda.stream(other):
        matrix @ matrix
    torch.cuda.synchronize()
    taken["a product on another stream"] = launch_us()
    with torch.cuda.stream(other):
        function()
    torch.cuda.synchronize()
    taken["the step on another stream"] = launch_us()
    torch.cuda.empty_cache()
    taken["its memory given back"] = launch_us()
    trace(function)
    taken["the step traced"] = launch_us()
    return taken
