"""What a run's log says in a few numbers."""

from collections.abc import Sequence

from underclock.records.common import Record
from underclock.runtime.steps import State
from underclock.runtime.telemetry import AskLine, EndLine, EventLine, Line, StepLine

_P50, _P99 = 0.5, 0.99


class RunSummary(Record, frozen=True, kw_only=True):
    """A run in a few numbers; ``None`` where nothing was seen.

    Attributes:
        marks: In a step, as planned.
        steps: That were seen whole.
        followed: Of which the plan was followed from end to end.
        step_s: Median time of those that were followed, or of all.
        step_j: Mean energy of the same.
        asks: Clocks asked for in a followed step, on average.
        hits: Share of changes that took effect within a millisecond of their launch.
        error_p50_s: How far off a boundary was expected, without sign; the median.
        error_p99_s: Exceeded by one boundary in a hundred.
        late_p50_s: How long after its launch a change took effect; the median.
        late_p99_s: Exceeded by one change in a hundred.
        conductor: Share of one core that the conductor took.
        looks_hz: How often it looked at pages.
        events: What a reader should know.
    """

    marks: int
    steps: int
    followed: int
    step_s: float | None
    step_j: float | None
    asks: float | None
    hits: float | None
    error_p50_s: float | None
    error_p99_s: float | None
    late_p50_s: float | None
    late_p99_s: float | None
    conductor: float | None
    looks_hz: float | None
    events: tuple[str, ...]


def summary_of(lines: Sequence[Line], marks: int) -> RunSummary:
    """Return a run's summary.

    Args:
        lines: Of its log.
        marks: In a step, as planned.
    """
    steps = [line for line in lines if isinstance(line, StepLine)]
    followed = [line for line in steps if line.state == State.FOLLOWING]
    counted = followed or steps
    energies_j = [line.energy_j for line in counted if line.energy_j is not None]
    errors_s = [abs(each_s) for line in followed for each_s in line.error_s]
    late_s = [each_s for line in followed for each_s in line.late_s]
    ends = [line for line in lines if isinstance(line, EndLine)]
    asks = [line for line in lines if isinstance(line, AskLine)]
    wall_s = sum(line.wall_s for line in ends)
    planned = sum(line.planned for line in followed)
    return RunSummary(
        marks=marks,
        steps=len(steps),
        followed=len(followed),
        step_s=_quantile([line.time_s for line in counted], _P50),
        step_j=sum(energies_j) / len(energies_j) if energies_j else None,
        asks=len(asks) / len(steps) if steps else None,
        hits=sum(line.hits for line in followed) / planned if planned else None,
        error_p50_s=_quantile(errors_s, _P50),
        error_p99_s=_quantile(errors_s, _P99),
        late_p50_s=_quantile(late_s, _P50),
        late_p99_s=_quantile(late_s, _P99),
        conductor=sum(line.cpu_s for line in ends) / wall_s if wall_s else None,
        looks_hz=sum(line.looks for line in ends) / wall_s if wall_s else None,
        events=tuple(line.text for line in lines if isinstance(line, EventLine)),
    )


def _quantile(values: Sequence[float], share: float) -> float | None:
    """Return the least value that such a share of them does not exceed."""
    if not values:
        return None
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]
