"""Ordinary training steps on this machine's GPU: traced, and left as they were.

``python studies/traced.py FOLDER [NAME …]`` writes one JSON file for each step of
``studies/zoo/ordinary.py`` into a folder. Nothing is set on the GPU. With ``--record`` it writes
what was seen of them, for tests without a GPU (`recorded`).
"""

import argparse
import io
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
LOSSES = ("losses_traced", "losses_plain", "losses_again")
_BEFORE, _AFTER = 10, 20
_TOGETHER = 6
ENVIRONMENT = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # for the same losses twice


def main() -> None:
    """Run each step in processes of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--losses", action="store_true", help="Compare losses only.")
    parser.add_argument("--record", action="store_true", help="Record what is seen, only.")
    parser.add_argument(
        "--one", choices=("recorded", "traced", "losses_traced", "losses_plain", "losses_again")
    )
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.record:
        for name in asked.names:
            print(name, in_a_process(name, asked.folder, "recorded"), flush=True)
        return
    if asked.one == "recorded":
        print(json.dumps(record(asked.names[0], asked.folder)))
        return
    if asked.one:
        print(json.dumps(run(asked.names[0], asked.one)))
        return
    found: dict[str, dict[str, Any]] = {name: {} for name in asked.names}
    if not asked.losses:
        for name, runs in found.items():
            runs["traced"] = in_a_process(name, asked.folder, "traced")
    with ThreadPoolExecutor(_TOGETHER) as together:  # for losses, whose speed does not matter
        more = {
            (name, label): together.submit(in_a_process, name, asked.folder, label)
            for name in asked.names
            for label in LOSSES
        }
        for (name, label), one in more.items():
            found[name][label] = one.result()
    for name, runs in found.items():
        (asked.folder / f"{name}.json").write_text(json.dumps(runs, indent=1))
        losses = runs["losses_plain"].get("losses")
        alike = {
            label: losses is not None and runs[label].get("losses") == losses
            for label in ("losses_traced", "losses_again")
        }
        print(name, alike, json.dumps(runs.get("traced", {}))[:400], flush=True)


def in_a_process(name: str, folder: Path, how: str) -> dict[str, Any]:
    """Run one step in a new process; return what it found, or its last words."""
    command = [sys.executable, __file__, str(folder), name, "--one", how]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=240, env=ENVIRONMENT
    )
    if done.returncode:
        return {"failed": done.stderr[-1500:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    found["stderr"] = done.stderr[-600:]
    return found


def run(name: str, how: str) -> dict[str, Any]:
    """Run a step, trace it in between if asked, run it on; return what was seen."""
    import torch  # noqa: PLC0415 - the user's own

    from underclock.tracing.source import load_step  # noqa: PLC0415 - needs a GPU

    if how != "traced":  # losses can be compared only where the model gives the same twice
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
        for kind in ("flash", "mem_efficient", "cudnn"):  # of attention; the rest gives the same
            getattr(torch.backends.cuda, f"enable_{kind}_sdp")(False)
    step = load_step(f"{ZOO}:{name}")
    for _ in range(_BEFORE):
        step()
    if how == "traced":
        before_s = seconds_per_step(torch, step)
        found = trace(torch, step, name)
        return found | {"before_s": before_s, "after_s": seconds_per_step(torch, step)}
    if how == "losses_traced":
        trace(torch, step, name)
    losses = [float(step()) for _ in range(_AFTER)]  # type: ignore[arg-type]
    return {"losses": [loss.hex() for loss in losses]}


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
