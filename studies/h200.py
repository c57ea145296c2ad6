"""Traces and measures training steps on this machine's GPU, read-only; writes what it found.

    UNDERCLOCK_READ_ONLY=1 python studies/h200.py RESULTS.json [PART=STEP ...]

Nothing is set on the GPU. A part is ``whole``, ``brief`` (the same with short windows) or ``speed``
(of the user's step, before and after).
"""

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch as library

from underclock.app.measuring import measure
from underclock.campaign.survey import Campaign
from underclock.errors import StuckError
from underclock.hw.measurer import QUICK
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import READ_ONLY, nvml_session
from underclock.records import (
    MeasurementSettings,
)
from underclock.store import write_document
from underclock.tracing.captured import measured_step
from underclock.tracing.source import load_step, source_of
from underclock.tracing.trace import trace

torch: Any = library  # typed in part only
ZOO = Path(__file__).parent / "zoo"
NAMED = {"brief": "whole"}  # in the results
BRIEF = msgspec.structs.replace(
    QUICK, warm_s=5.0, steady_s=2.5, longest_warm_s=20.0, kernel_warm_s=0.1, window_s=0.4
)
STEPS, LEAST_STEPS, SETTLING = 60, 12, 5
LOOK_MS, SPEED_WARM_S = 2e3, 2.0
LAUNCHES, TRIES, HELD_UP_CYCLES = 600, 6, 40_000_000


def state_digest() -> int:
    """Return a number that changes when any bit of any live GPU tensor does."""
    total = 0
    seen: set[int] = set()
    for thing in gc.get_objects():
        if not issubclass(type(thing), torch.Tensor) or not thing.is_cuda:
            continue
        storage = thing.untyped_storage()
        try:
            at = storage.data_ptr()
        except RuntimeError:  # the compiler's fake tensors stay alive, and hold no data
            continue
        if at in seen or storage.nbytes() % 2:
            continue
        seen.add(at)
        words: Any = torch.empty(0, dtype=torch.int16, device="cuda").set_(storage)
        for chunk in words.split(2**27):
            places = torch.arange(chunk.numel(), device="cuda") % 8191 + 1
            total += int((chunk.long() * places).sum())
    return total


def whole(source: str, folder: Path, measuring: MeasurementSettings) -> dict[str, Any]:
    """Trace and measure one step."""
    function = load_step(source)
    name = source.rsplit(":", 1)[1]
    for _ in range(2):
        function()
    before_ms = [speed_ms(function), speed_ms(function)]
    called = [calls(function), calls(function)]
    before = state_digest()
    begun = time.perf_counter()
    step = trace(function)
    traced_s = time.perf_counter() - begun
    step = msgspec.structs.replace(step, source=source_of(source, folder))
    write_document(folder / f"{name}.step.json", step, force=True)
    unchanged = state_digest() == before
    after_ms = speed_ms(function)
    called.append(calls(function))
    before = state_digest()
    begun = time.perf_counter()
    profile = measure(
        step,
        gpu="nvml:0",
        to=folder / f"{name}.db",
        campaign=Campaign(core_mhz=(None,), mem_mhz=(None,)),
        measuring=measuring,
        run=function,
    )
    measured_s = time.perf_counter() - begun
    kept = state_digest() == before
    measured_ms = speed_ms(function)
    called.append(calls(function))
    samples = {sample.kernel: sample for sample in profile.samples}
    return {
        "step": Path(source).name,
        "distinct": len(step.kernels),
        "launches": len(step.order),
        "trace_s": traced_s,
        "measure_s": measured_s,
        "speed_before_ms": before_ms,
        "speed_after_ms": after_ms,
        "speed_after_measuring_ms": measured_ms,
        "calls_in_python": called,
        "measuring": msgspec.to_builtins(measuring),
        "state_kept_tracing": unchanged,
        "state_kept_measuring": kept,
        "in_situ": msgspec.to_builtins(profile.in_situ),
        "warnings": profile.warnings,
        "kernels": [
            {
                "name": kernel.name,
                "count": kernel.count,
                "pass": kernel.pass_,
                "operator": kernel.launch.operator if kernel.launch else "",
                **msgspec.to_builtins(samples[kernel.name]),
            }
            for kernel in profile.kernels
        ],
    }


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


def main() -> None:
    """Run everything; write results after each part, so that a stop loses little."""
    if os.environ.get(READ_ONLY, "0") in {"", "0"}:
        raise SystemExit(f"set {READ_ONLY}=1: this script measures a GPU as it is")
    to = Path(sys.argv[1])
    parts = sys.argv[2:]
    results: dict[str, Any] = {
        "command": f"{READ_ONLY}=1 python studies/h200.py {' '.join(sys.argv[1:])}",
        "date": time.strftime("%Y-%m-%d"),
        "torch": str(torch.__version__),
        "gpu": torch.cuda.get_device_name(),
    }
    with nvml_session():
        gpu = NvmlGpu()
        results["driver"] = gpu.info().driver
        results["limit_w"] = gpu.info().power_limit_w

        def save(key: str, value: object) -> None:
            results[key] = value
            to.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))
            print(key, f"{time.perf_counter():.0f} s", flush=True)

        for part in parts:
            kind, _, source = part.partition("=")
            save(f"{NAMED.get(kind, kind)} {source}", result(kind, source, to.parent, gpu))


def result(kind: str, source: str, folder: Path, gpu: NvmlGpu) -> object:
    """Run one part.

    Args:
        kind: Of it.
        source: Of the step, in the zoo.
        folder: Where files of it go.
        gpu: The one it runs on.
    """
    path = str(ZOO / source)
    if kind in {"whole", "brief"}:
        return whole(path, folder, QUICK if kind == "whole" else BRIEF)
    if kind == "speed":
        return speeds(path, gpu)
    raise SystemExit(f"there is no part {kind!r}")


if __name__ == "__main__":
    try:
        main()
    except StuckError as stuck:
        print(stuck, *stuck.__notes__, sep="; ", flush=True)
        os._exit(stuck.exit_code)  # to end as usual is to wait for the GPU
