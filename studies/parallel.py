"""Training steps of several ranks on this machine's GPUs: seen, timed and traced.

    UNDERCLOCK_READ_ONLY=1 torchrun --standalone --nproc-per-node 2 \
        studies/parallel.py FOLDER [NAME ...]

Each rank writes ``NAME.rankN.json.gz`` for each step of ``studies/zoo/parallel.py``: profiles of
plain runs, the time of runs that nobody looks at, its collectives alone, and what tracing makes of
it. Nothing is set on the GPU.
"""

import argparse
import gzip
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from held import seconds
from recorded import compact
from underclock.errors import UnderclockError
from underclock.hw.cuda.torch_step import profile
from underclock.records import Pass

ZOO = Path(__file__).parent / "zoo" / "parallel.py"
NAMES = ("alone", "ddp", "fsdp")
_WARM, _TIMES, _PROFILES, _COLLECTIVES, _CALLS = 8, 30, 4, 20, 5
_SIZES = (2**16, 2**20, 2**23, 2**24, 2**25, 2**26, 2**27)  # bytes
_MILLI = 1e3


def main() -> None:
    """Look at each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--trace", action="store_true", help="Trace as well: a capture may hang.")
    asked = parser.parse_args()
    import torch  # noqa: PLC0415 - the user's own

    rank = int(os.environ["RANK"])
    asked.folder.mkdir(parents=True, exist_ok=True)
    for name in asked.names:
        found = seen(torch, name, trace=asked.trace)
        path = asked.folder / f"{name}.rank{rank}.json.gz"
        path.write_bytes(gzip.compress(msgspec.json.encode(found), compresslevel=6))
        words = {key: value for key, value in found.items() if key not in {"profiles", "step"}}
        print(rank, name, json.dumps(words)[:1800], flush=True)


def seen(torch: ModuleType, name: str, *, trace: bool) -> dict[str, Any]:
    """Run a step of this rank, and return what is seen of it."""
    from torch import distributed  # noqa: PLC0415

    from underclock.tracing.source import load_step  # noqa: PLC0415 - needs a GPU

    step = load_step(f"{ZOO}:{name}")
    for _ in range(_WARM):
        step()
    distributed.barrier()
    before_s = times_s(torch, step)
    profiles = []
    for _ in range(_PROFILES):
        distributed.barrier()
        profiles.append(compact(profile(step)))
    distributed.barrier()
    found: dict[str, Any] = {
        "torch": str(torch.__version__),
        "gpu": torch.cuda.get_device_name(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "step_s": before_s,
        "again_s": times_s(torch, step),
        "collectives": collectives(torch) if name != "alone" else {},
        "profiles": profiles,
    }
    if trace:
        found |= traced(step, name)
        distributed.barrier()
        found["traced_s"] = times_s(torch, step)
    return found


def times_s(torch: ModuleType, step: Callable[[], object]) -> list[float]:
    """Return what each of some steps in a row takes this GPU."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(_TIMES + 1)]
    torch.cuda.synchronize()
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / _MILLI for a, b in itertools.pairwise(events)]


def collectives(torch: ModuleType) -> dict[str, list[float]]:
    """Return what collectives of some sizes take alone, by name and bytes."""
    dist = torch.distributed
    world = dist.get_world_size()
    found: dict[str, list[float]] = {}
    for size in _SIZES:
        whole = torch.zeros(size // 2, dtype=torch.bfloat16, device="cuda")
        part = torch.zeros(size // 2 // world, dtype=torch.bfloat16, device="cuda")
        for name, call in (
            ("all_reduce", partial(dist.all_reduce, whole)),
            ("all_gather", partial(dist.all_gather_into_tensor, whole, part)),
            ("reduce_scatter", partial(dist.reduce_scatter_tensor, part, whole)),
        ):
            for _ in range(3):
                call()
            dist.barrier()
            found[f"{name} {size}"] = [seconds(torch, call, _CALLS) for _ in range(_COLLECTIVES)]
    return found


def traced(step: Callable[[], object], name: str) -> dict[str, Any]:
    """Trace it, as `underclock trace` does."""
    from underclock.tracing.captured import trace_step  # noqa: PLC0415 - needs a GPU

    begun = time.perf_counter()
    try:
        found = trace_step(step, name=name).step
    except UnderclockError as exc:
        return {"refused": str(exc), "trace_s": time.perf_counter() - begun}
    return {
        "trace_s": time.perf_counter() - begun,
        "kernels": len(found.kernels),
        "launches": len(found.order),
        "obstacle": found.obstacle,
        "warnings": found.warnings,
        "communication": [
            (kernel.name, kernel.count, kernel.bytes_moved)
            for kernel in found.kernels
            if kernel.pass_ is Pass.COMMUNICATION
        ],
        "step": msgspec.to_builtins(found),
    }


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    from torch import distributed as joined

    joined.destroy_process_group()
