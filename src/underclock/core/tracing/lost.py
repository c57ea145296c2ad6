"""Launches of which a profiler saw nothing run: then a plain run is to be looked at again."""

from collections.abc import Mapping
from typing import Any

from underclock.core.tracing.host import complete_events, correlation_of
from underclock.core.tracing.profile import GPU, launching
from underclock.errors import MeasurementError
from underclock.records.launches import NodeKind


def launches_lost(trace: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many kernels a trace has a call for and no time, and how many calls.

    Args:
        trace: In the Chrome format, with host and GPU events. What is captured there runs later.

    Raises:
        DataError: It is no such trace.
    """
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

    The first look that detaches after others that stayed attached sees neither calls nor kernels,
    the one after it both (PyTorch 2.11 on an H200, seen by us).

    Args:
        trace: As for `launches_lost`.

    Raises:
        DataError: It is no such trace.
    """
    something = any(event.get("cat") in GPU for event in complete_events(trace))
    return something and not launches_lost(trace)[0]


def told_of_lost(trace: Mapping[str, Any]) -> str | None:
    """Say how many kernels have no time; ``None`` where all have.

    Args:
        trace: As for `launches_lost`.

    Raises:
        DataError: It is no such trace.
    """
    lost, asked = launches_lost(trace)
    if not lost:
        return None
    return (
        f"PyTorch's profiler lost {lost} of the {asked} kernels that a plain run launched: their "
        "shares of the step are not known"
    )


def check_seen(seen: int, captured: int) -> None:
    """Refuse a plain run of which nothing was seen.

    Args:
        seen: What the GPU did in it, as far as the profiler saw.
        captured: Launches of the same step's graphs.

    Raises:
        MeasurementError: The step launches something, and nothing of it was seen.
    """
    if captured and not seen:
        raise MeasurementError(
            f"the step launches {captured} kernels, memsets or copies, and PyTorch's profiler saw "
            "none of them run",
            hint="another profiler may hold the GPU's timestamps (Nsight, a job's own, DCGM's "
            "profiling metrics): end it and trace again, in a new process",
        )
