"""A captured graph as a step: its nodes, held against its capture and a plain run."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from underclock.core.tracing.alignment import align, otherwise_captured, paired
from underclock.core.tracing.host_bound import told_of_host
from underclock.core.tracing.lockstep import told_of_collectives, with_shares
from underclock.core.tracing.lost import check_seen, told_of_lost
from underclock.core.tracing.profile import activities, stream_waits
from underclock.core.tracing.step import nodes_of, traced_step
from underclock.core.tracing.streams import Wait
from underclock.records.launches import Node, Traced, TracedActivity


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
            trace: The trace.
            step_s: What the run takes without the profiler, which slows its host.

        Raises:
            DataError: It is no such trace.
        """
        waits = stream_waits(trace)
        return cls(with_shares(activities(trace), waits), waits, step_s, told_of_lost(trace))


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
        MeasurementError: Nothing was seen of the plain run.
        DataError: It launches nothing.
    """
    check_seen(len(plain.seen), len(nodes))
    aligned = align(nodes, plain.seen)
    told = (
        plain.lost,
        otherwise_captured(nodes, aligned, plain.seen),
        told_of_collectives(plain.seen, plain.waits),
        told_of_host(plain.seen, plain.step_s),
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
    """Return what asked for each node with the share that was waited for when it ran.

    Args:
        aligned: What a plain run did for each node.
        matched: What asked for it, maybe in another run, of which no times are known.
    """
    return tuple(
        one
        if ran is None or one is None or ran.pass_ is not one.pass_
        else msgspec.structs.replace(one, waited_for=ran.waited_for)
        for ran, one in zip(aligned, matched, strict=True)
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
    told = (plain.lost, told_of_collectives(plain.seen, plain.waits))
    return traced_step(
        name,
        nodes_of(plain.seen),
        plain.seen,
        warnings=[words for words in told if words],
        obstacle=obstacle,
    )
