"""Traces and measures training steps on this machine's GPU, read-only; writes what it found.

    UNDERCLOCK_READ_ONLY=1 python studies/h200.py RESULTS.json [PART=STEP ...]

Nothing is set on the GPU. A part is ``whole`` or ``brief``, the same with short windows.
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
from underclock.campaign.grid import Campaign
from underclock.errors import StuckError
from underclock.hw.measurer import QUICK
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import READ_ONLY, nvml_session
from underclock.records import MeasurementSettings
from underclock.store import write_document
from underclock.tracing.held import trace
from underclock.tracing.source import load_step, source_of

torch: Any = library  # typed in part only
ZOO = Path(__file__).parent / "zoo"
BRIEF = msgspec.structs.replace(
    QUICK, warm_s=5.0, steady_s=2.5, longest_warm_s=20.0, kernel_warm_s=0.1, window_s=0.4
)
MEASURING = {"whole": QUICK, "brief": BRIEF}
STEPS, LEAST_STEPS, SETTLING = 60, 12, 5
LOOK_MS = 2e3


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
    before = state_digest()
    begun = time.perf_counter()
    step = trace(function)
    traced_s = time.perf_counter() - begun
    step = msgspec.structs.replace(step, source=source_of(source, folder))
    write_document(folder / f"{name}.step.json", step, force=True)
    unchanged = state_digest() == before
    after_ms = speed_ms(function)
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
        gpu = NvmlGpu().info()
        results |= {"driver": gpu.driver, "limit_w": gpu.power_limit_w}
        for part in parts:
            kind, _, source = part.partition("=")
            if kind not in MEASURING:
                raise SystemExit(f"there is no part {kind!r}")
            found = whole(str(ZOO / source), to.parent, MEASURING[kind])
            results[f"whole {source}"] = found
            to.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))
            print(part, f"{time.perf_counter():.0f} s", flush=True)


if __name__ == "__main__":
    try:
        main()
    except StuckError as stuck:
        print(stuck, *stuck.__notes__, sep="; ", flush=True)
        os._exit(stuck.exit_code)  # to end as usual is to wait for the GPU
