"""What a run's log says in a few numbers."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from underclock.records.runs import (
    ArmLine,
    AskLine,
    EndLine,
    EventLine,
    Line,
    RunLine,
    RunSummary,
    StepLine,
)
from underclock.runtime.machine.steps import State

_P50, _P99 = 0.5, 0.99


def last_run(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Return the lines of the last run in a log; all of them where no line begins one."""
    begins = [at for at, line in enumerate(lines) if isinstance(line, RunLine)]
    return tuple(lines[begins[-1] :] if begins else lines)


def summary_of(lines: Sequence[Line]) -> RunSummary:
    """Return a run's summary.

    Args:
        lines: Of its log.
    """
    run = next((line for line in lines if isinstance(line, RunLine)), None)
    steps = [line for line in lines if isinstance(line, StepLine)]
    followed = [line for line in steps if line.state == State.FOLLOWING]
    counted = followed or steps
    known = [(line.energy_j, line.steps) for line in counted if line.energy_j is not None]
    energy_j = sum(each_j * steps for each_j, steps in known)
    told = list(_told(followed))
    errors_s = [(abs(each_s), count) for line, count in told for each_s in line.error_s]
    late_s = [(each_s, count) for line, count in told for each_s in line.late_s]
    ends = [line for line in lines if isinstance(line, EndLine)]
    asks = [line for line in lines if isinstance(line, AskLine)]
    wall_s = sum(line.wall_s for line in ends)
    hits = [((line.hits or 0) * count, line.planned * count) for line, count in told]
    planned = sum(each for _, each in hits)
    return RunSummary(
        run=run,
        marks=0 if run is None else run.marks,
        steps=_count(steps),
        enqueued=ends[-1].enqueued if ends else None,
        followed=_count(followed),
        step_s=_quantile([(line.time_s, line.steps) for line in counted], _P50),
        step_j=energy_j / sum(steps for _, steps in known) if known else None,
        asks=len(asks) / _count(steps) if steps else None,
        hits=sum(each for each, _ in hits) / planned if planned else None,
        error_p50_s=_quantile(errors_s, _P50),
        error_p99_s=_quantile(errors_s, _P99),
        late_p50_s=_quantile(late_s, _P50),
        late_p99_s=_quantile(late_s, _P99),
        conductor=sum(line.cpu_s for line in ends) / wall_s if wall_s else None,
        looks_hz=sum(line.looks for line in ends) / wall_s if wall_s else None,
        events=tuple(line.text for line in lines if isinstance(line, EventLine)),
        arms=tuple(line for line in lines if isinstance(line, ArmLine)),
        energy_j=ends[-1].energy_j if ends else None,
    )


def _count(lines: Sequence[StepLine]) -> int:
    return sum(line.steps for line in lines)


def _told(steps: Sequence[StepLine]) -> Iterator[tuple[StepLine, int]]:
    """Yield the steps whose changes are told, and for how many each stands: those before it too.

    All first steps are told, while they are learned, and few of the later ones.
    """
    waiting: defaultdict[int, int] = defaultdict(int)
    for line in steps:
        waiting[line.gpu] += line.steps
        if line.hits is not None:
            yield line, waiting.pop(line.gpu)


def _quantile(values: Sequence[tuple[float, int]], share: float) -> float | None:
    """Return the least value that such a share of them does not exceed; each counts some times."""
    upto = share * sum(count for _, count in values)
    value = None
    for value, count in sorted(values):  # noqa: B007 - the last, if none is beyond
        upto -= count
        if upto < 0:
            break
    return value
