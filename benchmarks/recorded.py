"""What was seen of a training step, as a file: with it a step can be traced without a GPU.

``python benchmarks/traced.py --record FOLDER [NAME …]`` writes one ``NAME.json.gz`` for each step
of ``benchmarks/zoo/ordinary.py``. On a machine with a GPU all of it is real. Without one only the
host's side is: PyTorch's profile of a small step on the CPU, in which every operator that would
launch a kernel is given an invented launch (``Recording.invented``).
"""

import gzip
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from underclock.core.tracing.captured import PlainRun, captured_step, profiled_step
from underclock.core.tracing.profile import activities, captured_calls
from underclock.records.launches import Node, Traced, TracedActivity

_CATEGORIES = frozenset(
    (
        *("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "cuda_sync"),
        *("kernel", "gpu_memset", "gpu_memcpy"),
    )
)
_FACTS = frozenset(
    (
        *("correlation", "grid", "block", "device", "stream", "bytes"),
        *("Sequence number", "Fwd thread id", "Input type", "Input Dims", "Input Strides"),
        *("Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size"),
        *("Process Group Name", "wait_on_stream", "wait_on_cuda_event_record_corr_id"),
    )
)
_NO_LAUNCH = frozenset(  # operators that only look at memory in another way, or make room
    (
        *("view", "_unsafe_view", "view_as", "reshape", "_reshape_alias", "flatten", "unflatten"),
        *("as_strided", "as_strided_", "expand", "expand_as", "permute", "transpose", "t"),
        *("slice", "select", "narrow", "unsqueeze", "squeeze", "unbind", "chunk"),
        *("split", "split_with_sizes", "detach", "detach_", "alias", "set_", "resize_"),
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
        *("resolve_conj", "resolve_neg", "lift_fresh", "result_type", "requires_grad_"),
        *("is_nonzero", "contiguous", "to", "_to_copy", "pin_memory", "is_pinned"),
        *("record_stream", "cudnn_is_acceptable", "_nnpack_available"),
        "_has_compatible_shallow_copy_type",
    )
)
_WAITS = frozenset(("_local_scalar_dense", "nonzero"))
_STREAM, _LAUNCH_US = 7, 1.0


class Recording(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was seen of a step.

    Attributes:
        trace: PyTorch's of a plain run, without what tracing does not read.
        nodes: Of the captured graphs; none where it was not captured.
        capture: PyTorch's trace of that capture.
        cleared: As for `step.launch_groups`.
        sizes: Numbers that came out of the step's data.
        about: On what it was recorded.
        invented: What of it nobody saw; empty where all is real.
    """

    trace: dict[str, Any]
    nodes: tuple[Node, ...] = ()
    capture: dict[str, Any] | None = None
    cleared: tuple[tuple[int, ...], ...] = ()
    sizes: tuple[int, ...] = ()
    about: str = ""
    invented: str = ""

    @property
    def seen(self) -> tuple[TracedActivity, ...]:
        """What the GPU did in the plain run."""
        return activities(self.trace)

    def traced(self, name: str) -> Traced:
        """Trace the step, as `underclock trace` does."""
        plain = PlainRun.of(self.trace)
        if not self.nodes:
            return profiled_step(name, plain)
        calls = captured_calls(self.capture) if self.capture else ()
        return captured_step(
            name, self.nodes, calls, plain, cleared=self.cleared, data_sizes=self.sizes
        )


def read(path: Path) -> Recording:
    """Read a recording."""
    return msgspec.json.decode(gzip.decompress(path.read_bytes()), type=Recording)


def write(path: Path, recording: Recording) -> None:
    """Write a recording; the same one makes the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(msgspec.json.encode(recording), compresslevel=9, mtime=0))


def compact(trace: Mapping[str, Any]) -> dict[str, Any]:
    """Return what tracing reads of a trace: times from 0 on, threads and processes numbered."""
    events = [
        event
        for event in trace["traceEvents"]
        if event.get("ph") == "X" and event.get("cat") in _CATEGORIES
    ]
    begins = min((float(event["ts"]) for event in events), default=0.0)
    threads: dict[object, int] = {}
    return {
        "traceEvents": [
            {
                "ph": "X",
                "cat": event["cat"],
                "name": event["name"],
                "tid": threads.setdefault(event.get("tid"), len(threads)),
                "ts": round(float(event["ts"]) - begins, 3),
                "dur": round(float(event.get("dur", 0.0)), 3),
                "args": {k: v for k, v in event.get("args", {}).items() if k in _FACTS},
            }
            for event in events
        ]
    }


def with_launches(trace: Mapping[str, Any]) -> dict[str, Any]:
    """Invent what a GPU would have done for a profile of the CPU: a launch for each operator.

    An operator launches where it calls no other that does. Its kernel takes as long as the CPU did,
    one after another.
    """
    events = list(trace["traceEvents"])
    free_us, invented = 0.0, []
    for number, leaf in enumerate(_leaves(events)):
        name = leaf["name"].removeprefix("aten::")
        called_us = float(leaf["ts"]) + 0.25 * float(leaf["dur"])
        free_us = max(free_us, called_us + _LAUNCH_US)
        asked = {"ph": "X", "cat": "cuda_runtime", "tid": leaf["tid"], "dur": 0.1 * leaf["dur"]}
        args = {"correlation": number, "device": 0, "stream": _STREAM}
        copies = name in {"copy_", "_local_scalar_dense"}
        call = "cudaMemcpyAsync" if copies else "cudaLaunchKernel"
        invented.append({**asked, "name": call, "ts": called_us, "args": args})
        if name in _WAITS:
            waits_us = called_us + 0.2 * leaf["dur"]
            invented.append({**asked, "name": "cudaStreamSynchronize", "ts": waits_us, "args": {}})
        invented.append(
            {
                "ph": "X",
                "cat": "gpu_memcpy" if copies else "kernel",
                "name": "Memcpy" if copies else f"void invented::{name}()",
                "tid": -1,
                "ts": free_us,
                "dur": leaf["dur"],
                "args": args if copies else args | {"grid": [1, 1, 1], "block": [128, 1, 1]},
            }
        )
        free_us += leaf["dur"]
    return {"traceEvents": events + invented}


def _leaves(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the operators that call no operator which launches, in time."""
    working = sorted(
        (
            event
            for event in events
            if event["cat"] == "cpu_op"
            and event["name"].startswith(("aten::", "mkldnn::", "triton", "_"))
            and event["name"].split("::")[-1] not in _NO_LAUNCH
            and "dynamo" not in event["name"]
        ),
        key=lambda event: (event["tid"], float(event["ts"]), -float(event["dur"])),
    )
    leaves = [
        event
        for event, after in zip(working, [*working[1:], None], strict=True)
        if after is None
        or after["tid"] != event["tid"]
        or float(after["ts"]) >= float(event["ts"]) + float(event["dur"])
    ]
    return sorted(leaves, key=lambda event: float(event["ts"]))
