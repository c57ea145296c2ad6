"""What tracing saw, before it is a step: nodes of a captured graph, and activities of a profile."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from underclock.records import Pass, Record, Step

MODULE_MARK = "underclock.module:"
"""Prefix of the annotations in a profile that say which module runs."""

PIECE_MARK = "underclock.piece: "
"""Prefix of the annotations in a profile that say which pass of which microbatch runs."""

LAUNCH_MARK = "underclock.launch:"
"""Prefix of the annotations in a profile that say which operator is handed to the device."""

_CALLS = " > "


class NodeKind(StrEnum):
    """What a node of a CUDA graph does."""

    KERNEL = "kernel"
    MEMSET = "memset"
    COPY = "copy"
    OTHER = "other"  # orders its neighbours and does no work: empty, event


class Node(Record, frozen=True, kw_only=True):
    """One node of a captured CUDA graph, in launch order.

    Attributes:
        attributes: Launch attributes that are not at their default, as text.
        bytes: That a memset or copy writes.
        parameters: Hash of its parameters, pointers left out.
    """

    kind: NodeKind
    function: str = ""
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    attributes: str = ""
    bytes: int = 0
    parameters: str = ""


class TracedActivity(Record, frozen=True, kw_only=True):
    """One thing the GPU did in a profiled run of the step, and what asked for it.

    Attributes:
        function: Demangled name of the GPU function; empty for a memset or copy.
        operator: Innermost operator that launched it; empty when unknown.
        shapes: The operator's input tensors, as in `records.Launch`.
        module: Path of the module it ran for; empty when unknown.
        callers: Paths of the modules whose calls were open around that one's, outermost first.
    """

    kind: NodeKind
    function: str = ""
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    start_s: float
    duration_s: float
    operator: str = ""
    shapes: str = ""
    module: str = ""
    callers: tuple[str, ...] = ()
    pass_: Pass = Pass.OTHER
    device: int = 0
    stream: int = 0
    waited_for: float = 1.0


def module_calls(text: str) -> tuple[str, ...] | None:
    """Return the modules whose calls were open at a launch, outermost first, as a step has them.

    ``None`` where it names the innermost module alone.
    """
    first, *others = text.split(_CALLS)
    paths = [first]
    for other in others:
        paths.append(paths[-1] + other if other.startswith(".") else other)
    return tuple(paths) if others else None


def module_calls_text(paths: Sequence[str]) -> str:
    """Return modules, outermost first, as a step says them: ``Gpt > blocks.2 > .attention``."""
    short = [
        path.removeprefix(outer) if path.startswith(f"{outer}.") else path
        for outer, path in itertools.pairwise(paths)
    ]
    return _CALLS.join([*paths[:1], *short])


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator as it was handed to the device.

    Attributes:
        name: With its namespace, ``aten::addmm``.
        shapes: Its input tensors, as in `records.Launch`.
        elements: Of the largest thing that it reads or writes.
        bytes_moved: Of all tensors that it reads or writes, each once; what it changes, twice.
        flops: Of products, convolutions and attention; ``None`` of all else.
    """

    name: str
    shapes: str
    elements: int
    bytes_moved: int
    flops: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchGroup:
    """What is measured as one launch: a kernel with what runs before it to serve it.

    Attributes:
        nodes: Indices into the graph's nodes; the group is named after the last.
        activity: The activity of the last node; ``None`` where the profile has none.
    """

    nodes: tuple[int, ...]
    activity: TracedActivity | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A step and where its kernels are in the graph.

    Attributes:
        step: The step.
        groups: One per launch, as ``step.order``.
        medians: The launch that stands for a kernel whose launches are not all alike.
    """

    step: Step
    groups: tuple[LaunchGroup, ...]
    medians: Mapping[int, int] = field(default_factory=dict)

    def launch_of(self, kernel: int) -> int:
        """Return the launch that is measured for a kernel: the first, if all are alike."""
        median = self.medians.get(kernel)
        return self.step.order.index(kernel) if median is None else median


def busy_s(activities: Iterable[TracedActivity]) -> float:
    """Return for how long at least one of them ran, in s, whatever runs side by side."""
    busy, until_s = 0.0, float("-inf")
    for one in sorted(activities, key=lambda each: each.start_s):
        end_s = one.start_s + one.duration_s
        busy += max(0.0, end_s - max(until_s, one.start_s))
        until_s = max(until_s, end_s)
    return busy
