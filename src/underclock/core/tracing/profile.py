"""A profiler's trace, in the Chrome format that PyTorch writes, as activities of the GPU.

What launched an activity is read off the host's side of the trace: the launching call lies inside
the operators, modules and autograd functions that were open on its thread at that moment.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from underclock.errors import DataError
from underclock.records import Pass
from underclock.records.launches import MODULE_MARK, NodeKind, TracedActivity

_BACKWARD = "autograd::engine::evaluate_function"
_GPU = {
    "kernel": NodeKind.KERNEL,
    "gpu_memset": NodeKind.MEMSET,
    "gpu_memcpy": NodeKind.COPY,
}
_HOST = {"cpu_op", "user_annotation"}
_CALLS = {"cuda_runtime", "cuda_driver"}
_LAUNCHING = (  # runtime and driver, with every suffix: cudaLaunchKernelExC, cuMemsetD32Async
    ("LaunchKernel", NodeKind.KERNEL),
    ("LaunchCooperativeKernel", NodeKind.KERNEL),
    ("Memset", NodeKind.MEMSET),
    ("Memcpy", NodeKind.COPY),
)
_CAPTURE_BEGINS, _CAPTURE_ENDS = "cudaStreamBeginCapture", "cudaStreamEndCapture"
_SYNCHRONISING = ("Synchronize", "cudaMemcpy")  # cudaMemcpyAsync is told apart below
_US = 1e-6
_LIST = "TensorList"
_DTYPES = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "long int": "i64",
    "long": "i64",
    "int": "i32",
    "bool": "bool",
    "unsigned char": "u8",
    "signed char": "i8",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
}


@dataclass(frozen=True, slots=True)
class _HostRange:
    """A range of time on a host thread: an operator, a module, an autograd function."""

    name: str
    start: float
    end: float
    arguments: Mapping[str, Any]


@dataclass(slots=True)
class _HostTimeline:
    """What was open on the host at each launching call.

    Attributes:
        chains: Ranges around each call, outermost first, by correlation id.
        at: When each call began, in µs.
        backward_ends: Last moment of autograd's work, in µs.
        optimizer_ends: Last moment of an optimizer's work, in µs.
        modules: Module of the forward operator of each autograd sequence number.
        differentiated: Module whose operator was differentiated last.
    """

    chains: dict[int, tuple[_HostRange, ...]] = field(default_factory=dict)
    at: dict[int, float] = field(default_factory=dict)
    backward_ends: float = -math.inf
    optimizer_ends: float = -math.inf
    modules: dict[int, str] = field(default_factory=dict)
    differentiated: str = ""


def activities(trace: Mapping[str, Any]) -> tuple[TracedActivity, ...]:
    """Return what the GPU did, in the order it was asked to.

    Args:
        trace: A Chrome trace with host and GPU events, as ``export_chrome_trace`` writes it.

    Raises:
        DataError: It is no such trace.
    """
    events = _events(trace)
    host = _host_timeline(events)
    done = []
    gpu = [event for event in events if event.get("cat") in _GPU]
    gpu.sort(key=lambda event: host.at.get(_correlation(event), float(event["ts"])))
    for event in gpu:
        kind = _GPU[event["cat"]]
        arguments = event.get("args", {})
        one = _activity(event, kind, host)
        if kind is NodeKind.KERNEL:
            one = msgspec.structs.replace(
                one,
                function=event["name"],
                grid=_three(arguments.get("grid")),
                block=_three(arguments.get("block")),
            )
        done.append(one)
    return tuple(done)


def captured_calls(trace: Mapping[str, Any]) -> tuple[TracedActivity, ...]:
    """Return what a step's capture recorded, in order: one call for each node of its graph.

    Nothing runs meanwhile, so that neither functions nor durations are known (empty, 0 s); what
    asked for each node is known exactly.

    Args:
        trace: As for `activities`, of a capture.

    Raises:
        DataError: It is no such trace.
    """
    events = _events(trace)
    host = _host_timeline(events)
    begun = min((float(e["ts"]) for e in events if e["name"] == _CAPTURE_BEGINS), default=math.inf)
    ended = max((float(e["ts"]) for e in events if e["name"] == _CAPTURE_ENDS), default=-math.inf)
    calls = [
        (event, kind)
        for event in events
        if event.get("cat") in _CALLS and begun < float(event["ts"]) < ended
        for mark, kind in _LAUNCHING
        if mark in event["name"]
    ]
    calls.sort(key=lambda call: float(call[0]["ts"]))
    return tuple(
        msgspec.structs.replace(_activity(event, kind, host), duration_s=0.0)
        for event, kind in calls
    )


def synchronising(trace: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the operators inside which the host waited for the GPU, each once, in order.

    Args:
        trace: As for `activities`.

    Raises:
        DataError: It is no such trace.
    """
    names: dict[str, None] = {}

    def note(event: Mapping[str, Any], chain: Sequence[_HostRange]) -> None:
        name = str(event["name"])
        if any(mark in name for mark in _SYNCHRONISING) and "Async" not in name:
            # The outermost operator is what the user wrote: item(), not what it is made of.
            operators = [range_.name for range_ in chain if range_.name.startswith("aten::")]
            names.update(dict.fromkeys(operators[:1]))

    _walk_threads(_events(trace), note)
    return tuple(names)


def _events(trace: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    try:
        return [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    except (KeyError, TypeError, AttributeError) as exc:
        raise DataError(
            "the profiler wrote no list of trace events",
            hint="this PyTorch writes another format: trace with torch 2.8 or newer",
        ) from exc


def _host_timeline(events: Sequence[Mapping[str, Any]]) -> _HostTimeline:
    """Read the host's side once."""
    host = _HostTimeline()

    def note(event: Mapping[str, Any], chain: Sequence[_HostRange]) -> None:
        correlation = _correlation(event)
        host.chains[correlation] = tuple(chain)
        host.at[correlation] = float(event["ts"])

    def opened(range_: _HostRange, chain: Sequence[_HostRange]) -> None:
        if range_.name.startswith(_BACKWARD):
            host.backward_ends = max(host.backward_ends, range_.end)
        elif _is_optimizer(range_.name):
            host.optimizer_ends = max(host.optimizer_ends, range_.end)
        number = range_.arguments.get("Sequence number")
        # Inside the backward pass forward operators are recomputed, with numbers of their own.
        differentiates = any(outer.name.startswith(_BACKWARD) for outer in chain) and bool(
            range_.arguments.get("Fwd thread id")
        )
        module = _innermost_module(chain)
        if number is not None and module is not None and not differentiates:
            host.modules[int(number)] = module

    _walk_threads(events, note, opened)
    return host


def _walk_threads(
    events: Sequence[Mapping[str, Any]],
    call: Callable[[Mapping[str, Any], Sequence[_HostRange]], None],
    opened: Callable[[_HostRange, Sequence[_HostRange]], None] = lambda _range, _chain: None,
) -> None:
    """Walk every host thread in time, telling of each GPU call what was open around it."""
    threads: dict[object, list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("cat") in _HOST or event.get("cat") in _CALLS:
            threads[event.get("tid")].append(event)
    for mine in threads.values():
        # Of ranges that begin together the longer is the outer.
        mine.sort(key=lambda event: (float(event["ts"]), -float(event.get("dur", 0.0))))
        stack: list[_HostRange] = []
        for event in mine:
            start = float(event["ts"])
            while stack and stack[-1].end <= start:
                stack.pop()
            if event["cat"] in _CALLS:
                call(event, stack)
                continue
            range_ = _HostRange(
                str(event["name"]),
                start,
                start + float(event.get("dur", 0.0)),
                event.get("args", {}),
            )
            opened(range_, stack)
            stack.append(range_)


def _correlation(event: Mapping[str, Any]) -> int:
    return int(event.get("args", {}).get("correlation", -1))


def _activity(event: Mapping[str, Any], kind: NodeKind, host: _HostTimeline) -> TracedActivity:
    """Return an activity of the GPU, with what asked for it."""
    chain = host.chains.get(_correlation(event), ())
    launched_at = host.at.get(_correlation(event), float(event["ts"]))
    operator = _operator(chain)
    return TracedActivity(
        kind=kind,
        start_s=float(event["ts"]) * _US,
        duration_s=float(event.get("dur", 0.0)) * _US,
        operator=operator.name if operator else "",
        shapes=_shapes(operator.arguments) if operator else "",
        module=_module(chain, host),
        pass_=_pass(event["name"], chain, launched_at, host),
    )


def _three(sizes: Sequence[int] | None) -> tuple[int, int, int]:
    if sizes is None:
        return (1, 1, 1)
    x, y, z = (int(size) for size in sizes)
    return (x, y, z)


def _operator(chain: Sequence[_HostRange]) -> _HostRange | None:
    """Return the innermost operator that is not a module, a phase or autograd's own frame."""
    for range_ in reversed(chain):
        name = range_.name
        if name.startswith(
            (MODULE_MARK, _BACKWARD, "ProfilerStep", "Torch-Compiled Region", "## ")
        ):
            continue
        return range_
    # Autograd's own frame is better than nothing: accumulating a gradient launches from it.
    for range_ in reversed(chain):
        if range_.name.startswith(_BACKWARD):
            return range_
    return None


def _is_optimizer(name: str) -> bool:
    return name.startswith(("Optimizer.step#", "Optimizer.zero_grad#"))


def _pass(name: str, chain: Sequence[_HostRange], launched_at: float, host: _HostTimeline) -> Pass:
    """Tell the pass from what was open, and on the main thread from what is still to come."""
    names = [range_.name for range_ in chain]
    if name.startswith("ncclDevKernel") or any(n.startswith(("nccl:", "c10d::")) for n in names):
        return Pass.COMMUNICATION
    if any(n.startswith(_BACKWARD) for n in names):
        return Pass.BACKWARD
    # Between the last gradient and the optimizer's end: clipping, unscaling.
    finishing = host.backward_ends <= launched_at < host.optimizer_ends
    if any(_is_optimizer(n) for n in names) or (names and finishing):
        return Pass.OPTIMIZER
    # A step without a backward pass has a forward pass all the same.
    no_backward = not math.isfinite(host.backward_ends)
    if names and (no_backward or launched_at < host.backward_ends):
        return Pass.FORWARD
    return Pass.OTHER


def _innermost_module(chain: Sequence[_HostRange]) -> str | None:
    for range_ in reversed(chain):
        if range_.name.startswith(MODULE_MARK):
            return range_.name.removeprefix(MODULE_MARK)
    return None


def _module(chain: Sequence[_HostRange], host: _HostTimeline) -> str:
    """Return the module an activity ran for.

    In the backward pass it is the module of the forward operator with the same sequence number.
    Accumulating a gradient has no number: it belongs to what was differentiated last.
    """
    backward = [i for i, range_ in enumerate(chain) if range_.name.startswith(_BACKWARD)]
    own = _innermost_module(chain[backward[-1] :] if backward else chain)
    if own is not None or not backward:
        return own or ""
    number = chain[backward[-1]].arguments.get("Sequence number")
    if number is not None and int(number) in host.modules:
        host.differentiated = host.modules[int(number)]
    return host.differentiated


def _shapes(arguments: Mapping[str, Any]) -> str:
    """Return an operator's tensors as text; a strided one with its strides."""
    kinds = arguments.get("Input type", [])
    sizes = arguments.get("Input Dims", [])
    strides = arguments.get("Input Strides", [[]] * len(sizes))
    parts = [
        _tensor(str(kind), size, stride)
        for kind, size, stride in zip(kinds, sizes, strides, strict=False)
        if kind in _DTYPES or kind == _LIST
    ]
    return ", ".join(parts)


def _tensor(kind: str, size: Sequence[Any], stride: Sequence[Any]) -> str:
    if kind == _LIST:
        return f"{len(size)} tensors[{sum(math.prod(one) for one in size)}]"
    text = f"{_DTYPES[kind]}[{'x'.join(map(str, size))}]"
    if list(stride) != _dense(size):
        text += f"@{'x'.join(map(str, stride))}"
    return text


def _dense(size: Sequence[int]) -> list[int]:
    """Return the strides of a contiguous tensor."""
    strides, step = [], 1
    for length in reversed(size):
        strides.append(step)
        step *= length
    return strides[::-1]
