"""A captured graph as a step: its nodes matched with the capture's profile and a plain run.

The match says which activity of the profile is which node, where a run and its capture differ, and
whether a plain run waits for its host.

Where operators were seen and no kernels (a step traced without a GPU), each operator is assumed to
launch one kernel, with the FLOPs and the least bytes of its tensors. PyTorch dispatches operators
alike on CPU and GPU, and most launch one kernel on a GPU; libraries may split one into several or
choose another algorithm, and compiled parts fuse theirs. FLOPs per element are those of
`workloads`.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

import msgspec

from underclock.core.tracing.profile import (
    HostTimeline,
    activities,
    complete_events,
    is_collective,
    lost_note,
    stream_waits,
)
from underclock.core.tracing.step import nodes_of, traced_step
from underclock.core.tracing.streams import with_shares
from underclock.errors import MeasurementError
from underclock.records import ASSUMED, Step
from underclock.records.work import (
    LAUNCH_MARK,
    Node,
    NodeKind,
    Operator,
    Traced,
    TracedActivity,
    busy_s,
)
from underclock.units import format_duration

_FEW = 0.01  # of the launches, or of the time
_NAMED = 3
_Key = tuple[NodeKind, str, tuple[int, int, int], tuple[int, int, int]]
_TOLD = 0.1  # of the step; less than that lies between launches of any step


class PlainRun:
    """What the GPU did in a run of the step as it is written, read off a profiler's trace.

    Args:
        step_s: What the run takes without the profiler, which slows its host; ``None`` if unknown.

    Attributes:
        seen: In the order in which it was asked to; collectives with the share that is waited for.
        lost: What is to be said of launches that were not seen; ``None`` where all were.
        overlap: What is to be said of collectives and copies under other launches; else ``None``.

    Raises:
        DataError: It is no such trace.
    """

    def __init__(self, trace: Mapping[str, Any], step_s: float | None = None) -> None:
        host = HostTimeline(trace)
        self.step_s, self.lost = step_s, lost_note(trace)
        self.seen, self.overlap = with_shares(activities(host), stream_waits(host))


def captured_step(
    name: str,
    nodes: Sequence[Node],
    calls: Sequence[TracedActivity],
    plain: PlainRun,
    *,
    cleared: Sequence[Sequence[int]] = (),
    data_sizes: Collection[int] = (),
) -> Traced:
    """Make a step of what was captured.

    Args:
        calls: What asked for each node, as far as `profile.captured_calls` knows.

    Raises:
        MeasurementError: Nothing was seen of the plain run.
        DataError: It launches nothing.
    """
    if nodes and not plain.seen:
        raise MeasurementError(
            f"the step launches {len(nodes)} kernels, memsets or copies, and PyTorch's profiler "
            "saw none of them run",
            hint="another profiler may hold the GPU's timestamps (Nsight, a job's own, DCGM's "
            "profiling metrics): end it and trace again, in a new process",
        )
    aligned = align(nodes, plain.seen)
    otherwise = otherwise_captured(nodes, aligned, plain.seen)
    notes = plain.lost, otherwise, plain.overlap, host_note(plain.seen, plain.step_s)
    return traced_step(
        name,
        nodes,
        tuple(
            one
            if ran is None or one is None or ran.pass_ is not one.pass_
            else msgspec.structs.replace(one, waited_for=ran.waited_for)
            for ran, one in zip(aligned, paired(nodes, calls) or aligned, strict=True)
        ),
        cleared=cleared,
        warnings=[words for words in notes if words],
        data_sizes=data_sizes,
    )


def profiled_step(name: str, plain: PlainRun, *, obstacle: str = "") -> Traced:
    """Make a step of what a profiler saw, for one that was not captured.

    Raises:
        DataError: It launches nothing.
    """
    notes = [words for words in (plain.lost, plain.overlap) if words]
    nodes = nodes_of(plain.seen)
    return traced_step(name, nodes, plain.seen, warnings=notes, obstacle=obstacle)


def kernel_means_s(traced: Traced, plain: PlainRun, step_s: float) -> tuple[float, ...]:
    """Return what a launch of each kernel takes in a step, in s, by a plain run of it. Length K.

    Args:
        traced: The step that `profiled_step` made of that run.
        step_s: What the step takes by itself; a profiler makes launches longer.
    """
    kernels = traced.step.kernels
    took_s = [0.0] * len(kernels)
    for kernel, group in zip(traced.step.order, traced.groups, strict=True):
        took_s[kernel] += sum(plain.seen[node].duration_s for node in group.nodes)
    waited_s = sum(s * k.waited_count / k.count for s, k in zip(took_s, kernels, strict=True))
    shorter = min(1.0, step_s / waited_s)
    return tuple(shorter * s / k.count for s, k in zip(took_s, kernels, strict=True))


def align(
    nodes: Sequence[Node], activities: Sequence[TracedActivity]
) -> tuple[TracedActivity | None, ...]:
    """Return the activity of each node; ``None`` where the profiled run had no such launch.

    Both are in launch order. A run and its capture launch the same, but for a few: a copy of which
    one run needs no part, or a product for which the library chose another kernel. What is alike
    is matched first; within a stretch that differs, launches are matched by position where both
    sides have as many.
    """
    ours = [_key(node) for node in nodes]
    theirs = [_key(activity) for activity in activities]
    if ours == theirs:
        return tuple(activities)
    matched: list[TracedActivity | None] = [None] * len(nodes)
    matcher = SequenceMatcher(None, ours, theirs, autojunk=False)
    for tag, a_from, a_to, b_from, b_to in matcher.get_opcodes():
        if tag == "equal" or (tag == "replace" and a_to - a_from == b_to - b_from):
            for offset in range(a_to - a_from):
                node, activity = nodes[a_from + offset], activities[b_from + offset]
                if node.kind is activity.kind:
                    matched[a_from + offset] = activity
    return tuple(matched)


def paired(
    nodes: Sequence[Node], calls: Sequence[TracedActivity]
) -> tuple[TracedActivity | None, ...] | None:
    """Return the call that each node was captured from; ``None`` if they do not pair off.

    Args:
        nodes: In the order in which they were captured.
        calls: Those of the same capture, as `profile.captured_calls` returns them.
    """
    kinds = [node.kind for node in nodes if node.kind is not NodeKind.OTHER]
    if kinds != [call.kind for call in calls]:
        return None
    rest = iter(calls)
    return tuple(None if node.kind is NodeKind.OTHER else next(rest) for node in nodes)


def otherwise_captured(
    nodes: Sequence[Node], aligned: Sequence[TracedActivity | None], plain: Sequence[TracedActivity]
) -> str | None:
    """Say how a captured step differs from a plain run of it; ``None`` if it hardly does.

    Some libraries ask whether they are being captured, and then take another way.

    Args:
        aligned: The activity of each in a plain run, as `align` returns it.
    """
    working = sum(node.kind is not NodeKind.OTHER for node in nodes)
    matched = {id(activity) for activity in aligned if activity is not None}
    added = working - len(matched)
    total_s = sum(activity.duration_s for activity in plain)
    lost: defaultdict[str, float] = defaultdict(float)
    for activity in plain:
        if id(activity) not in matched:
            lost[activity.operator or activity.function] += activity.duration_s
    lost_s = sum(lost.values())
    if added <= _FEW * working and lost_s <= _FEW * total_s:
        return None
    share = lost_s / total_s if total_s else 0.0
    names = sorted(lost, key=lambda name: -lost[name])[:_NAMED]
    most = ", ".join(f"{name} {lost[name] / total_s:.1%}" for name in names if total_s)
    return (
        f"while it is captured the step launches {added} kernels, memsets or copies that a plain "
        f"run does not, and leaves out {share:.1%} of a plain run's GPU time"
        + (f" ({most})" if most else "")
        + ": what is measured is the captured step"
    )


def first_difference(one: Sequence[Node], other: Sequence[Node]) -> str | None:
    """Say where two captures of one step part; ``None`` when they do not."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if _key(a) != _key(b):
            return f"launch {index} was {describe(a)}, then {describe(b)}"
    if len(one) != len(other):
        longer = one if len(one) > len(other) else other
        extra = describe(longer[min(len(one), len(other))])
        return f"it launched {len(one)} kernels, then {len(other)}; the first extra is {extra}"
    return None


def describe(node: Node) -> str:
    """Name a node for a person."""
    name = node.function.split("(")[0] or node.kind.value
    return f"{name[:80]} on a grid of {'x'.join(map(str, node.grid))}"


def _key(one: Node | TracedActivity) -> _Key:
    if one.kind is NodeKind.KERNEL:
        return (one.kind, one.function, one.grid, one.block)
    return (one.kind, "", (1, 1, 1), (1, 1, 1))


def host_note(launches: Sequence[TracedActivity], step_s: float | None) -> str | None:
    """Say for how much of a step the GPU waits for the host; ``None`` where that is little.

    Graphs of the step do not wait, and plans are made for these.

    Args:
        launches: Of a run as it is written, on one GPU.
        step_s: Duration of an unprofiled run, in s; ``None`` if unknown.
    """
    if step_s is None:
        return None
    launched_s = busy_s(launches)
    share = 1.0 - launched_s / step_s
    if share <= _TOLD:
        return None
    return (
        f"the GPU waits for the host for {share:.0%} of the step, which takes "
        f"{format_duration(step_s)} as it is written: what is planned and promised is of its "
        f"launches, which take {format_duration(launched_s)}"
    )


_CAVEAT = (
    "no GPU was seen: the step ran on the CPU, and its kernels are assumed, one for each operator; "
    "measure on a real GPU what is traced there"
)
_WORK = (  # what a GPU calls its kernel, and FLOPs per element; the first that fits
    (r"(add)?b?mm|baddbmm|_scaled_mm|.*convolution.*", "gemm", 0.0),
    (r".*attention.*", "attention", 0.0),
    (r".*_norm_backward.*", "layer_norm_backward", 12.0),
    (r".*(layer|batch|group|rms)_norm.*", "layer_norm", 8.0),
    (r".*softmax_backward.*", "softmax_backward", 4.0),
    (r".*softmax.*", "softmax", 5.0),
    (r"(gelu|silu|mish)_backward", "elementwise", 64.0),
    (r"gelu|silu_?|mish_?", "elementwise", 32.0),
    (r"_fused_.*", "multi_tensor_apply", 15.0),
    (r"_foreach_norm", "multi_tensor_apply", 2.0),
    (r"_foreach_(copy|zero)_?", "multi_tensor_apply", 0.0),
    (r"_foreach_.*", "multi_tensor_apply", 1.0),
    (r"copy_|_to_copy|clone|cat|stack|.*embedding|index(_select)?|gather|.*_pad.*", "copy", 0.0),
    (r"(new_)?(zeros|ones|full)(_like)?|(zero|fill)_?|arange|scalar_tensor", "fill", 0.0),
    (r"(sum|mean|prod|amax|amin|argmax|norm|linalg_vector_norm|all|any)", "reduce", 1.0),
    (r".*", "elementwise", 1.0),
)


def assumed_step(name: str, trace: Mapping[str, Any], operators: Sequence[Operator]) -> Step:
    """Make a step of the operators that were seen of it.

    Args:
        trace: PyTorch's, in the Chrome format; an annotation stands where each was handed over.
        operators: In the order of these annotations' numbers.

    Raises:
        DataError: There are none, or it is no such trace.
    """
    seen: list[TracedActivity] = []
    work: list[Operator] = []
    launched = {"traceEvents": [*_as_launched(complete_events(trace))]}
    for activity in activities(HostTimeline(launched)):
        operator = operators[int(activity.function)]
        work.append(operator)
        asked = {"operator": operator.name, "shapes": operator.shapes}
        function = ASSUMED + _work_of(operator)[0]
        seen.append(msgspec.structs.replace(activity, function=function, **asked))
    # What an operator makes may differ where what it takes does not.
    nodes = [
        msgspec.structs.replace(node, bytes=operator.bytes_moved)
        for node, operator in zip(nodes_of(seen), work, strict=True)
    ]
    step = traced_step(name, nodes, seen, warnings=[_CAVEAT]).step
    kernels = []
    for index, kernel in enumerate(step.kernels):
        operator = work[step.order.index(index)]
        moved = kernel.bytes_moved or float(max(1, operator.bytes_moved))
        flops = _work_of(operator)[1]
        kernels.append(msgspec.structs.replace(kernel, flops=flops, bytes_moved=moved))
    return msgspec.structs.replace(step, kernels=tuple(kernels))


def _work_of(operator: Operator) -> tuple[str, float]:
    """Return what a GPU would call an operator's kernel, and the FLOPs of one launch."""
    if is_collective(operator.name):
        return "collective", 0.0
    bare = operator.name.partition("::")[2]
    what, each = next((what, each) for pattern, what, each in _WORK if re.fullmatch(pattern, bare))
    return what, each * operator.elements if operator.flops is None else operator.flops


def _as_launched(events: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield a trace's events, each annotation as the launch of a kernel and as that kernel."""
    for event in events:
        mark, _, number = str(event.get("name")).partition(LAUNCH_MARK)
        if mark or not number:
            yield event
            continue
        arguments = {"correlation": int(number)}
        yield {**event, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": arguments}
        yield {**event, "cat": "kernel", "name": number, "args": arguments}
