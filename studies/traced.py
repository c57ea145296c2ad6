"""Ordinary training steps on this machine's GPU: traced, and left as they were.

``python studies/traced.py FOLDER [NAME …]`` writes one JSON file for each step of
``studies/zoo/ordinary.py`` into a folder. Nothing is set on the GPU. With ``--record`` it writes
what was seen of them, for tests without a GPU (`recorded`).
"""

import argparse
import io
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from types import ModuleType
from typing import Any

from recorded import Recording, compact, read, write
from underclock.core.tracing.captured import align
from underclock.core.tracing.profile import activities
from underclock.hw.cuda.capture import captured
from underclock.hw.cuda.graphs import cleared_before
from underclock.hw.cuda.launcher import CudaLauncher
from underclock.hw.cuda.torch_step import profile, profiler_detaches, recorded

ZOO = Path(__file__).parent / "zoo" / "ordinary.py"
NAMES = (
    "stock",
    "scaled",
    "loaded",
    "compiled",
    "dropping",
    "reading",
    "convolving",
    "mixing",
    "low_rank",
    "recurring",
    "accumulating",
)
_BEFORE = 10


def main() -> None:
    """Run each step in processes of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--record", action="store_true", help="Record what is seen, only.")
    parser.add_argument("--one", choices=("recorded", "traced"))
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.one:
        name = asked.names[0]
        print(json.dumps(record(name, asked.folder) if asked.one == "recorded" else run(name)))
        return
    for name in asked.names:
        found = in_a_process(name, asked.folder, "recorded" if asked.record else "traced")
        if not asked.record:
            (asked.folder / f"{name}.json").write_text(json.dumps(found, indent=1))
        print(name, json.dumps(found)[:400], flush=True)


def in_a_process(name: str, folder: Path, how: str) -> dict[str, Any]:
    """Run one step in a new process; return what it found, or its last words."""
    command = [sys.executable, __file__, str(folder), name, "--one", how]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    if done.returncode:
        return {"failed": done.stderr[-1500:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    found["stderr"] = done.stderr[-600:]
    return found


def run(name: str) -> dict[str, Any]:
    """Run a step, trace it in between, run it on; return what was seen."""
    import torch  # noqa: PLC0415 - the user's own

    from underclock.tracing.source import load_step  # noqa: PLC0415 - needs a GPU

    step = load_step(f"{ZOO}:{name}")
    for _ in range(_BEFORE):
        step()
    before_s = seconds_per_step(torch, step)
    found = trace(torch, step, name)
    return found | {"before_s": before_s, "after_s": seconds_per_step(torch, step)}


def record(name: str, folder: Path) -> dict[str, Any]:
    """Write what is seen of a step on this machine's GPU."""
    import torch  # noqa: PLC0415 - the user's own

    from underclock.tracing.source import load_step  # noqa: PLC0415

    step = load_step(f"{ZOO}:{name}")
    recording = _recording(torch, step, name)
    path = folder / f"{name}.json.gz"
    write(path, recording)
    again = read(path)
    return {
        "about": again.about,
        "launches": len(again.seen),
        "kernels": len(again.traced(name).step.kernels),
        "kib": path.stat().st_size // 1024,
    }


def _recording(torch: ModuleType, run_step: Callable[[], object], name: str) -> Recording:
    from underclock.tracing.captured import held_step  # noqa: PLC0415

    about = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    with held_step(run_step, name=name) as launcher:
        launcher.snapshot.restore()
        trace = compact(profile(run_step))
        launcher.snapshot.restore()
        with recorded() as capture, captured(run_step) as graph:
            nodes = tuple(node.node for node in graph.nodes)
            cleared = cleared_before(graph.nodes)
            sizes = tuple(sorted(graph.parts.sizes))
        return Recording(
            trace=trace,
            nodes=nodes,
            capture=compact(capture),
            cleared=cleared,
            sizes=sizes,
            about=about,
        )


def trace(torch: ModuleType, step: Callable[[], object], name: str) -> dict[str, Any]:
    """Trace a step; return how much of it was captured."""
    from underclock.errors import UnderclockError  # noqa: PLC0415
    from underclock.tracing.captured import held_step  # noqa: PLC0415

    said = io.StringIO()
    begun = time.perf_counter()
    with warnings.catch_warnings(record=True) as warned, redirect_stderr(said):
        warnings.simplefilter("always")
        try:
            with (
                profiler_detaches(detaches=True),
                held_step(step, name=name) as launcher,
            ):
                taken_s = time.perf_counter() - begun
                found = captured_share(torch, launcher, step)
        except UnderclockError as exc:
            found, taken_s = {"refused": str(exc)}, time.perf_counter() - begun
    return found | {
        "trace_s": taken_s,
        "warned": sorted({str(w.message)[:200] for w in warned}),
        "said": said.getvalue()[-400:],
    }


def captured_share(
    torch: ModuleType, launcher: CudaLauncher, run_step: Callable[[], object]
) -> dict[str, Any]:
    """Compare a held step with a plain run of it."""
    step, groups = launcher.traced.step, launcher.traced.groups
    parts = launcher.captured.parts
    nodes = [node.node for node in launcher.captured.nodes]
    launcher.snapshot.restore()
    plain = activities(profile(run_step))
    matched = {id(one) for one in align(nodes, plain) if one is not None}
    launcher.snapshot.restore()
    replayed = activities(profile(parts.replay))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    for _ in range(3):
        parts.replay()
    events[0].record()
    for _ in range(10):
        parts.replay()
    events[1].record()
    torch.cuda.synchronize()
    return {
        "kernels": len(step.kernels),
        "launches": len(step.order),
        "unmatched": sum(g.activity is None for g in groups),
        "plain_launches": len(plain),
        "plain_s": sum(one.duration_s for one in plain),
        "matched_s": sum(one.duration_s for one in plain if id(one) in matched),
        "launched_s": sum(one.duration_s for one in replayed),
        "replayed_s": events[0].elapsed_time(events[1]) / 1e4,
        "parts": len(parts.graphs),
        "between": dict(parts.between),
        "warnings": step.warnings,
        "names": [kernel.name for kernel in step.kernels][:400],
    }


def seconds_per_step(torch: ModuleType, step: Callable[[], object], times: int = 40) -> float:
    """Time some steps in a row."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(times):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / times


if __name__ == "__main__":
    main()
