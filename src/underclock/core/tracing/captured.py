"""A captured graph as a step: its nodes, held against its capture and a plain run."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from underclock.core.tracing.alignment import align, otherwise_captured, paired
from underclock.core.tracing.lockstep import told_of_collectives
from underclock.core.tracing.profile import activities, stream_waits
from underclock.core.tracing.step import nodes_of, traced_step
from underclock.core.tracing.streams import Wait
from underclock.records.launches import Node, Traced, TracedActivity


@dataclass(frozen=True, slots=True)
class PlainRun:
    """What the GPU did in a run of the step as it is written.

    Attributes:
        seen: In the order in which it was asked to.
        waits: For another stream, as far as the profile lists them.
    """

    seen: tuple[TracedActivity, ...]
    waits: tuple[Wait, ...] = ()

    @classmethod
    def of(cls, trace: Mapping[str, Any]) -> "PlainRun":
        """Read it off a profiler's trace.

        Raises:
            DataError: It is no such trace.
        """
        return cls(activities(trace), stream_waits(trace))


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
        name: What to call it.
        nodes: Of its graphs, in launch order.
        calls: What asked for each node, as far as `profile.captured_calls` knows.
        plain: A run of it as it is written.
        cleared: As for `step.launch_groups`.
        data_sizes: As for `step.traced_step`.

    Raises:
        DataError: It launches nothing.
    """
    aligned = align(nodes, plain.seen)
    told = (
        otherwise_captured(nodes, aligned, plain.seen),
        told_of_collectives(plain.seen, plain.waits),
    )
    return traced_step(
        name,
        nodes,
        paired(nodes, calls) or aligned,
        cleared=cleared,
        warnings=[words for words in told if words],
        data_sizes=data_sizes,
    )


def profiled_step(name: str, plain: PlainRun, *, obstacle: str = "") -> Traced:
    """Make a step of what a profiler saw, for one that was not captured.

    Args:
        name: What to call it.
        plain: A run of it as it is written.
        obstacle: Why it was not.

    Raises:
        DataError: It launches nothing.
    """
    told = told_of_collectives(plain.seen, plain.waits)
    return traced_step(
        name,
        nodes_of(plain.seen),
        plain.seen,
        warnings=[told] if told else [],
        obstacle=obstacle,
    )
