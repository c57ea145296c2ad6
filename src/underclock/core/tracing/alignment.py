"""Which activity of a profile is which node of the graph captured of the same step."""

from collections import defaultdict
from collections.abc import Sequence
from difflib import SequenceMatcher

from underclock.records.launches import Node, NodeKind, TracedActivity

_FEW = 0.01  # of the launches, or of the time
_NAMED = 3
_Key = tuple[NodeKind, str, tuple[int, int, int], tuple[int, int, int]]


def align(
    nodes: Sequence[Node], activities: Sequence[TracedActivity]
) -> tuple[TracedActivity | None, ...]:
    """Return the activity of each node; ``None`` where the profiled run had no such launch.

    Both are in launch order. A run and its capture launch the same, but for a few: a copy of which
    one run needs no part, or a product for which the library chose another kernel. What is alike
    is matched first; within a stretch that differs, launches are matched by position where both
    sides have as many.
    """
    ours = [_node_key(node) for node in nodes]
    theirs = [_activity_key(activity) for activity in activities]
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
        if _node_key(a) != _node_key(b):
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


def _node_key(node: Node) -> _Key:
    if node.kind is NodeKind.KERNEL:
        return (node.kind, node.function, node.grid, node.block)
    return (node.kind, "", (1, 1, 1), (1, 1, 1))


def _activity_key(activity: TracedActivity) -> _Key:
    if activity.kind is NodeKind.KERNEL:
        return (activity.kind, activity.function, activity.grid, activity.block)
    return (activity.kind, "", (1, 1, 1), (1, 1, 1))
