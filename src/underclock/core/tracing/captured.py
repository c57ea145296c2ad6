"""A captured graph as a step: its nodes, held against its capture and a plain run."""

from collections.abc import Collection, Sequence

from underclock.core.tracing.alignment import align, otherwise_captured, paired
from underclock.core.tracing.step import traced_step
from underclock.records.launches import Node, Traced, TracedActivity


def captured_step(
    name: str,
    nodes: Sequence[Node],
    calls: Sequence[TracedActivity],
    plain: Sequence[TracedActivity],
    *,
    cleared: Sequence[Sequence[int]] = (),
    data_sizes: Collection[int] = (),
) -> Traced:
    """Make a step of what was captured.

    Args:
        name: What to call it.
        nodes: Of its graphs, in launch order.
        calls: What asked for each node, as far as `profile.captured_calls` knows.
        plain: What the GPU did in a plain run.
        cleared: As for `step.launch_groups`.
        data_sizes: As for `step.traced_step`.

    Raises:
        DataError: It launches nothing.
    """
    aligned = align(nodes, plain)
    other = otherwise_captured(nodes, aligned, plain)
    return traced_step(
        name,
        nodes,
        paired(nodes, calls) or aligned,
        cleared=cleared,
        warnings=[other] if other else [],
        data_sizes=data_sizes,
    )
