"""A captured graph as a step: its nodes, held against its capture and a plain run.

Which activity of a profile is which node, where a run and its capture part, and whether a plain run
waits for its host.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import msgspec

from underclock.core.tracing.profile import activities, check_seen, lost_note, stream_waits
from underclock.core.tracing.step import nodes_of, traced_step
from underclock.core.tracing.streams import Wait, beside_note, with_shares
from underclock.records.launches import Node, NodeKind, Traced, TracedActivity, busy_s
from underclock.units import format_duration

_FEW = 0.01  # of the launches, or of the time
_NAMED = 3
_Key = tuple[NodeKind, str, tuple[int, int, int], tuple[int, int, int]]
_TOLD = 0.1  # of the step; less than that lies between launches of any step


@dataclass(frozen=True, slots=True)
class PlainRun:
    """What the GPU did in a run of the step as it is written.

    Attributes:
        seen: In the order in which it was asked to; collectives with the share that is waited for.
        waits: For another stream, as far as the profile lists them.
        step_s: What such a run takes while nobody looks on, in s; ``None`` if unknown.
        lost: What is to be said of launches that were not seen; ``None`` where all were.
    """

    seen: tuple[TracedActivity, ...]
    waits: tuple[Wait, ...] = ()
    step_s: float | None = None
    lost: str | None = None

    @classmethod
    def of(cls, trace: Mapping[str, Any], step_s: float | None = None) -> "PlainRun":
        """Read it off a profiler's trace.

        Args:
            step_s: What the run takes without the profiler, which slows its host.

        Raises:
            DataError: It is no such trace.
        """
        waits = stream_waits(trace)
        return cls(with_shares(activities(trace), waits), waits, step_s, lost_note(trace))


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
        data_sizes: As for `step.traced_step`.

    Raises:
        MeasurementError: Nothing was seen of the plain run.
        DataError: It launches nothing.
    """
    check_seen(len(plain.seen), len(nodes))
    aligned = align(nodes, plain.seen)
    told = (
        plain.lost,
        otherwise_captured(nodes, aligned, plain.seen),
        beside_note(plain.seen, plain.waits),
        host_note(plain.seen, plain.step_s),
    )
    return traced_step(
        name,
        nodes,
        _timed_as(aligned, paired(nodes, calls) or aligned),
        cleared=cleared,
        warnings=[words for words in told if words],
        data_sizes=data_sizes,
    )


def _timed_as(
    aligned: Sequence[TracedActivity | None], matched: Sequence[TracedActivity | None]
) -> tuple[TracedActivity | None, ...]:
    """Return what asked for each node with the share that was waited for when it ran."""
    return tuple(
        one
        if ran is None or one is None or ran.pass_ is not one.pass_
        else msgspec.structs.replace(one, waited_for=ran.waited_for)
        for ran, one in zip(aligned, matched, strict=True)
    )


def profiled_step(name: str, plain: PlainRun, *, obstacle: str = "") -> Traced:
    """Make a step of what a profiler saw, for one that was not captured.

    Raises:
        DataError: It launches nothing.
    """
    told = (plain.lost, beside_note(plain.seen, plain.waits))
    return traced_step(
        name,
        nodes_of(plain.seen),
        plain.seen,
        warnings=[words for words in told if words],
        obstacle=obstacle,
    )


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
        nodes: The graph's.
        aligned: The activity of each in a plain run, as `align` returns it.
        plain: All activities of that run.
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
        step_s: What such a run takes while nobody looks on, in s; ``None`` if unknown.
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
