"""A profiler's trace, in the Chrome format that PyTorch writes, as activities of the GPU.

What launched an activity is read off the host's side of the trace: the launching call lies inside
the operators, modules and autograd functions that were open on its thread at that moment. Whatever
takes a trace raises `DataError` where it is none.

Of collectives the profiler writes what `record_param_comms` was given, both to that operator on the
host and to the kernel on the GPU: which one, how many elements in and out, their type, the group.
"""

import math
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from underclock.errors import DataError
from underclock.records import Pass
from underclock.records.work import MODULE_MARK, PIECE_MARK, NodeKind, TracedActivity

_Event = Mapping[str, Any]
GPU = {"kernel": NodeKind.KERNEL, "gpu_memset": NodeKind.MEMSET, "gpu_memcpy": NodeKind.COPY}
"""Categories of the events that are the GPU's own."""
CALLS = frozenset({"cuda_runtime", "cuda_driver"})
"""Categories of the events that ask for GPU work."""
EVALUATES = "autograd::engine::evaluate_function"
"""How names of autograd's ranges begin."""
HOST_RANGES = {"cpu_op", "user_annotation"}
_COLLECTIVE = "nccl::"
# Our name of a type, bytes of an element, as c10 writes it, as operators have it.
_TYPES = (
    ("bf16", 2, "BFloat16", ("c10::BFloat16",)),
    ("fp16", 2, "Half", ("c10::Half",)),
    ("fp32", 4, "Float", ("float",)),
    ("fp64", 8, "Double", ("double",)),
    ("i64", 8, "Long", ("long int", "long")),
    ("i32", 4, "Int", ("int",)),
    ("i16", 2, "Short", ()),
    ("i8", 1, "Char", ("signed char",)),
    ("u8", 1, "Byte", ("unsigned char",)),
    ("bool", 1, "Bool", ("bool",)),
    ("fp8", 1, "Float8_e4m3fn", ("c10::Float8_e4m3fn",)),
    ("fp8", 1, "Float8_e5m2", ("c10::Float8_e5m2",)),
)
WIDTHS = {name: width for name, width, _, _ in _TYPES}
"""Bytes of an element, by our name of its type."""
_OF_C10 = {c10: name for name, _, c10, _ in _TYPES}
DTYPES = {each: name for name, _, _, operators in _TYPES for each in operators}
"""Our names of types, by those that operators' inputs have."""
_MESSAGE = re.compile(r"(\w+)\[(\d+)\]")
_SENT = (("allreduce", 2.0), ("all_to_all", 1.0))  # of what other ranks hold, by one
_AMONG = re.compile(r" among (\d+) ranks")


@dataclass(frozen=True, slots=True)
class _HostRange:
    """A range of time on a host thread: an operator, a module, an autograd function."""

    name: str
    end_us: float
    arguments: Mapping[str, Any]

    @property
    def is_backward(self) -> bool:
        return self.name.startswith(EVALUATES)

    @property
    def is_optimizer(self) -> bool:
        return self.name.startswith(("Optimizer.step#", "Optimizer.zero_grad#"))


class HostTimeline:
    """What was open on the host at each launching call, by a trace in the Chrome format.

    Attributes:
        events: All complete ones, host and GPU.
        gpu: What the GPU did, in the order it was asked to.
        chains: Ranges around each call, outermost first, by correlation id.
        called_us: When each call began.
        backward_ends_us: Last moment of autograd's work; `optimizer_ends_us` of an optimizer's.
        modules: Modules around the forward operator of each autograd sequence number.
        differentiated: Modules around the operator that was differentiated last.
    """

    def __init__(self, trace: Mapping[str, Any]) -> None:
        self.events = events = complete_events(trace)
        self.chains, self.called_us = dict[int, tuple[_HostRange, ...]](), dict[int, float]()
        self.backward_ends_us = self.optimizer_ends_us = -math.inf
        self.modules, self.differentiated = dict[int, tuple[str, ...]](), tuple[str, ...]()
        for event, range_, chain in _walk_threads(events):
            if range_ is None:
                self.chains[correlation_of(event)] = tuple(chain)
                self.called_us[correlation_of(event)] = float(event["ts"])
                continue
            if range_.is_backward:
                self.backward_ends_us = max(self.backward_ends_us, range_.end_us)
            elif range_.is_optimizer:
                self.optimizer_ends_us = max(self.optimizer_ends_us, range_.end_us)
            number = range_.arguments.get("Sequence number")
            # In the backward pass forward operators are recomputed, with numbers of their own.
            recomputes = any(outer.is_backward for outer in chain)
            differentiates = recomputes and bool(range_.arguments.get("Fwd thread id"))
            if number is not None and not differentiates and (modules := _modules_around(chain)):
                self.modules[int(number)] = modules
        self.gpu = [event for event in events if event.get("cat") in GPU]
        self.gpu.sort(key=lambda each: self.called_us.get(correlation_of(each), float(each["ts"])))


def complete_events(trace: Mapping[str, Any], name: str = "") -> list[_Event]:
    """Return the events that have a duration.

    Args:
        name: Of the file, for what is wrong with it.

    Raises:
        DataError: It is no Chrome trace.
    """
    try:
        return [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    except (KeyError, TypeError, AttributeError) as exc:
        raise DataError(
            f"{name and f'{name}: '}the profiler wrote no list of trace events",
            hint="this PyTorch writes another format: trace with torch 2.8 or newer",
        ) from exc


def _walk_threads(
    events: Iterable[_Event],
) -> Iterator[tuple[_Event, _HostRange | None, Sequence[_HostRange]]]:
    """Yield ranges as they open, and GPU calls with ``None`` for one, with the ranges around."""
    threads: dict[object, list[_Event]] = defaultdict(list)
    for event in events:
        # What gloo does lasts from its start until it is waited for.
        is_range = event.get("cat") in HOST_RANGES and not str(event["name"]).startswith("gloo:")
        if is_range or event.get("cat") in CALLS:
            threads[event.get("tid")].append(event)
    for mine in threads.values():
        # Of ranges that begin together the longer is the outer.
        mine.sort(key=lambda event: (float(event["ts"]), -float(event.get("dur", 0.0))))
        stack: list[_HostRange] = []
        for event in mine:
            start_us = float(event["ts"])
            while stack and stack[-1].end_us <= start_us:
                stack.pop()
            if event["cat"] in CALLS:
                yield event, None, stack
                continue
            end_us = start_us + float(event.get("dur", 0.0))
            range_ = _HostRange(str(event["name"]), end_us, event.get("args", {}))
            yield event, range_, stack
            stack.append(range_)


def correlation_of(event: _Event) -> int:
    """Return the number that a call and what it launched have in common; -1 for none."""
    return int(event.get("args", {}).get("correlation", -1))


def _modules_around(chain: Sequence[_HostRange]) -> tuple[str, ...]:
    """Return the paths of the modules that were called, outermost first."""
    called = [each.name for each in chain if each.name.startswith(MODULE_MARK)]
    # A wrapper and what it wraps have one path, and are one.
    return tuple(dict.fromkeys(name.removeprefix(MODULE_MARK) for name in called))


def _operator_and_shapes(event: _Event, chain: Sequence[_HostRange]) -> tuple[str, str] | None:
    """Return a collective and what it sends and receives, as an operator with its inputs."""
    arguments = [event.get("args", {}), *(range_.arguments for range_ in reversed(chain))]
    facts = next((each for each in arguments if each.get("Collective name")), None)
    if facts is None:
        return None
    dtype = str(facts.get("dtype", ""))
    name = _OF_C10.get(dtype, dtype)
    sent, received = (
        f"{name}[{int(facts.get(key, 0))}]" for key in ("In msg nelems", "Out msg nelems")
    )
    group = str(facts.get("Process Group Name", ""))
    of_group = f" in group {group!r}" if group else ""
    shapes = f"{sent} to {received} among {int(facts.get('Group size', 1))} ranks{of_group}"
    return f"{_COLLECTIVE}{facts['Collective name']}", shapes


def is_collective(operator: str) -> bool:
    """Whether an operator is a collective, as `TracedActivity` has it."""
    return operator.startswith(_COLLECTIVE)


def bytes_of(operator: str, shapes: str) -> float | None:
    """Return what a rank of a ring sends in a collective; ``None`` where that is not known.

    Args:
        operator: Which, as `TracedActivity` has it.
    """
    if not is_collective(operator):
        return None
    sizes = [WIDTHS.get(dtype, 0) * int(count) for dtype, count in _MESSAGE.findall(shapes)]
    least, most = min(sizes, default=0), max(sizes, default=0)
    if least != most:  # gathered or scattered: all but its own part
        return float(most - least)
    share = 1.0 - 1.0 / ranks_of(operator, shapes)
    times = next((times for name, times in _SENT if name in operator), None)
    return (most if times is None else times * share * most) or None


def ranks_of(operator: str, shapes: str) -> int:
    """Return how many ranks an operator needs; 1 where it is no collective."""
    found = _AMONG.search(shapes) if is_collective(operator) else None
    return int(found[1]) if found else 1


_LAUNCHING = (  # runtime and driver, with every suffix: cudaLaunchKernelExC, cuMemsetD32Async
    ("LaunchKernel", NodeKind.KERNEL),
    ("LaunchCooperativeKernel", NodeKind.KERNEL),
    ("Memset", NodeKind.MEMSET),
    ("Memcpy", NodeKind.COPY),
)
_SYNCHRONISING = ("Synchronize", "cudaMemcpy")  # cudaMemcpyAsync is excluded below
_US = 1e-6
_FRAMES = (MODULE_MARK, PIECE_MARK, "ProfilerStep", "Torch-Compiled Region", "## ")  # no operators
_OPERATOR = re.compile(r"\w+::\w+")  # of PyTorch's dispatcher; other ranges have a blank or colon


def activities(host: HostTimeline) -> tuple[TracedActivity, ...]:
    """Return what the GPU did, in the order it was asked to."""
    done = []
    for event in host.gpu:
        kind = GPU[event["cat"]]
        arguments = event.get("args", {})
        one = activity_of(event, kind, host)
        if kind is NodeKind.KERNEL:
            grid, block = (
                tuple(map(int, arguments.get(name) or (1, 1, 1))) for name in ("grid", "block")
            )
            one = msgspec.structs.replace(one, function=event["name"], grid=grid, block=block)
        done.append(one)
    return tuple(done)


def captured_calls(trace: Mapping[str, Any]) -> tuple[TracedActivity, ...]:
    """Return what a step's capture recorded, in order: one call for each node of its graphs.

    Captured calls run later, so that neither functions nor durations are known (empty, 0 s); what
    asked for each node is known exactly. What runs between two parts is no call of theirs.
    """
    host = HostTimeline(trace)
    calls = [(event, kind) for event, kind, is_captured in launching(host.events) if is_captured]
    calls.sort(key=lambda call: float(call[0]["ts"]))
    return tuple(
        msgspec.structs.replace(activity_of(event, kind, host), duration_s=0.0)
        for event, kind in calls
    )


def launching(events: Sequence[_Event]) -> Iterator[tuple[_Event, NodeKind, bool]]:
    """Yield each call that asks for GPU work, what it asks for, and whether it is captured.

    What is captured runs later, if at all.
    """
    marks = {"cudaStreamBeginCapture": True, "cudaStreamEndCapture": False}
    turns = sorted((float(e["ts"]), marks[e["name"]]) for e in events if e["name"] in marks)
    moments = [moment for moment, _ in turns]
    for event in events:
        if event.get("cat") not in CALLS:
            continue
        for mark, kind in _LAUNCHING:
            if mark in event["name"]:
                before = bisect_left(moments, float(event["ts"]))
                yield event, kind, before > 0 and turns[before - 1][1]


def stream_waits(host: HostTimeline) -> tuple[tuple[int, int], ...]:
    """Return which activities may wait for which of another stream, as places in `activities`.

    A profile lists waits where it was asked for synchronisation (category ``cuda_sync``). For whom
    a stream waits it says with CUDA before 12.9 only (pytorch/kineto#1552). Else each other stream
    is named, with what it was last asked to do; a stream whose work ends
    too late to be waited for is ruled out.
    """
    asked: dict[int, list[tuple[int, int]]] = {}
    for place, event in enumerate(host.gpu):
        stream = int(event.get("args", {}).get("stream", 0))
        asked.setdefault(stream, []).append((correlation_of(event), place))
    for each in asked.values():
        each.sort()
    found: dict[tuple[int, int], None] = {}
    for event in host.events:
        facts = event.get("args", {})
        if event.get("cat") != "cuda_sync" or event["name"] != "Stream Wait Event":
            continue
        called, waiting = correlation_of(event), facts.get("stream")
        mine = asked.get(waiting, [])
        later = bisect_right(mine, (called, math.inf))
        recorded = int(facts.get("wait_on_cuda_event_record_corr_id", -1))
        known = recorded >= 0
        waited = {facts.get("wait_on_stream")} if known else asked.keys() - {waiting}
        for stream in waited:
            last = called if not known else recorded
            theirs = asked.get(stream, [])
            earlier = bisect_left(theirs, (last, -1))
            if later < len(mine) and earlier:
                found[mine[later][1], theirs[earlier - 1][1]] = None
    return tuple(found)


def synchronising(trace: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Return the operators inside which the host waited for the GPU, each once, in order.

    Each with those it was called by, outermost first: that is what the user wrote, ``item()``, not
    what it is made of.
    """
    found: dict[tuple[str, ...], None] = {}
    for event, range_, chain in _walk_threads(complete_events(trace)):
        name = str(event["name"])
        waits = any(mark in name for mark in _SYNCHRONISING) and "Async" not in name
        if waits and range_ is None:
            found[tuple(each.name for each in chain if _OPERATOR.fullmatch(each.name))] = None
    return tuple(operators for operators in found if operators)


def activity_of(event: _Event, kind: NodeKind, host: HostTimeline) -> TracedActivity:
    """Return an activity of the GPU, with what asked for it."""
    chain = host.chains.get(correlation_of(event), ())
    launched_us = host.called_us.get(correlation_of(event), float(event["ts"]))
    # The innermost operator that is not a module, a phase or autograd's own frame; that is better
    # than nothing: accumulating a gradient launches from it.
    own = (each for each in reversed(chain) if not each.name.startswith(_FRAMES))
    operator = next((each for each in own if not each.is_backward), None) or next(
        (each for each in reversed(chain) if each.is_backward), None
    )
    asked = _operator_and_shapes(event, chain) or (
        (operator.name, _shapes(operator.arguments)) if operator else ("", "")
    )
    modules = _modules(chain, host)
    return TracedActivity(
        kind=kind,
        start_s=float(event["ts"]) * _US,
        duration_s=float(event.get("dur", 0.0)) * _US,
        operator=asked[0],
        shapes=asked[1],
        module=modules[-1] if modules else "",
        callers=modules[:-1],
        pass_=_pass(event["name"], chain, launched_us, host),
        device=int(event.get("args", {}).get("device", 0)),
        stream=int(event.get("args", {}).get("stream", 0)),
    )


def _pass(name: str, chain: Sequence[_HostRange], launched_us: float, host: HostTimeline) -> Pass:
    """Tell the pass from what was open, and on the main thread from what is still to come."""
    names = [range_.name for range_ in chain]
    if name.startswith(("ncclDevKernel", "ncclKernel")) or any(
        n.startswith(("nccl:", "c10d::", "_c10d_functional::")) for n in names
    ):
        return Pass.COMMUNICATION
    if any(range_.is_backward for range_ in chain):
        return Pass.BACKWARD
    # Between the last gradient and the optimizer's end: clipping, unscaling.
    finishing = host.backward_ends_us <= launched_us < host.optimizer_ends_us
    # An optimizer may be given all of the step to run, as a closure: then its work comes last.
    optimizers = [range_ for range_ in chain if range_.is_optimizer]
    closure = optimizers and launched_us < host.backward_ends_us <= optimizers[-1].end_us
    if (optimizers and not closure) or (names and finishing):
        return Pass.OPTIMIZER
    # A step without a backward pass has a forward pass all the same.
    no_backward = not math.isfinite(host.backward_ends_us)
    if names and (no_backward or launched_us < host.backward_ends_us):
        return Pass.FORWARD
    return Pass.OTHER


def _modules(chain: Sequence[_HostRange], host: HostTimeline) -> tuple[str, ...]:
    """Return the module an activity ran for, and those that called it, outermost first."""
    # In the backward pass it is that of the forward operator with the same sequence number.
    # Accumulating a gradient has no number: it belongs to what was differentiated last. A module
    # that is recomputed there is called by none: those around it are that operator's.
    backward = [i for i, range_ in enumerate(chain) if range_.is_backward]
    own = _modules_around(chain[backward[-1] :] if backward else chain)
    if not backward:
        return own
    number = chain[backward[-1]].arguments.get("Sequence number")
    of_number = () if number is None else host.modules.get(int(number), ())
    if own:
        return (*of_number[: of_number.index(own[0])], *own) if own[0] in of_number else own
    host.differentiated = of_number or host.differentiated
    return host.differentiated


def _shapes(arguments: Mapping[str, Any]) -> str:
    kinds = arguments.get("Input type", [])
    sizes = arguments.get("Input Dims", [])
    strides = arguments.get("Input Strides", [[]] * len(sizes))
    parts = []
    for kind, size, stride in zip(kinds, sizes, strides, strict=False):
        if kind == "TensorList":
            parts.append(f"{len(size)} tensors[{sum(math.prod(one) for one in size)}]")
        elif kind in DTYPES:
            dense = [math.prod(size[place + 1 :]) for place in range(len(size))]
            strided = "" if list(stride) == dense else f"@{'x'.join(map(str, stride))}"
            parts.append(f"{DTYPES[kind]}[{'x'.join(map(str, size))}]{strided}")
    return ", ".join(parts)


def launches_lost(trace: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many kernels a trace has a call for and no time, and how many calls."""
    events = complete_events(trace)
    seen = {correlation_of(event) for event in events if event.get("cat") in GPU}
    asked = [
        correlation_of(event)
        for event, kind, is_captured in launching(events)
        if kind is NodeKind.KERNEL and not is_captured
    ]
    return sum(number not in seen for number in asked), len(asked)


def saw_all(trace: Mapping[str, Any]) -> bool:
    """Say whether a look saw something run, and all that was launched.

    The first look that detaches after looks that stayed attached sees neither calls nor kernels,
    the one after it both (PyTorch 2.11 on an H200, seen by us).
    """
    something = any(event.get("cat") in GPU for event in complete_events(trace))
    return something and not launches_lost(trace)[0]


def lost_note(trace: Mapping[str, Any]) -> str | None:
    """Say how many kernels have no time; ``None`` where all have."""
    lost, asked = launches_lost(trace)
    if not lost:
        return None
    return (
        f"PyTorch's profiler lost {lost} of the {asked} kernels that a plain run launched: their "
        "shares of the step are not known"
    )
