"""Whether a step waits for its host: what it takes as it is written, against what it launches."""

from collections.abc import Sequence

from underclock.records.launches import TracedActivity
from underclock.units import format_duration

_TOLD = 0.1  # of the step; less than that lies between launches of any step


def busy_s(launches: Sequence[TracedActivity]) -> float:
    """Return for how long at least one launch ran, in s, whatever runs side by side."""
    busy, until_s = 0.0, float("-inf")
    for launch in sorted(launches, key=lambda one: one.start_s):
        end_s = launch.start_s + launch.duration_s
        busy += max(0.0, end_s - max(until_s, launch.start_s))
        until_s = max(until_s, end_s)
    return busy


def told_of_host(launches: Sequence[TracedActivity], step_s: float | None) -> str | None:
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
