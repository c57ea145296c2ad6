"""What changing clocks takes, and what a plan gains where it is not free."""

from dataclasses import dataclass
from pathlib import Path

from underclock.core.costs.table import CostTable
from underclock.core.planning.achievable import (
    ScheduleRisk,
    achieved,
    as_record,
    fastest_change,
)
from underclock.core.planning.goal import Goal
from underclock.core.planning.latency_curve import Progress, latency_curve
from underclock.core.planning.proposals import proposals
from underclock.core.planning.sequence import Rules, sequence_problem
from underclock.core.planning.strategies import ComparedStrategies
from underclock.errors import UsageError
from underclock.records import Arm, ClockSchedule, LatencyPoint, Proposal, SampleSet
from underclock.records.latencies import LatencyTable
from underclock.store import read_document
from underclock.units import format_percent, parse_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Switching:
    """What changing clocks takes, and how often they may be changed."""

    latencies: LatencyTable
    """How long each change takes."""
    max_switches: int | None = None
    """Most changes in a step."""
    min_dwell_s: float = 0.0
    """Least time between changes, whatever the latency."""
    curve: bool = True
    """Whether to plan at other latencies too, and with longer segments."""
    wording: str = "as measured"
    """Which latency it is, in words."""

    def __post_init__(self) -> None:
        """Reject limits that mean nothing."""
        self.rules()

    def rules(self, max_slowdown: float = 0.0) -> Rules:
        """Return what a schedule must keep within a time budget."""
        return Rules(
            latencies=self.latencies,
            max_slowdown=max_slowdown,
            max_switches=self.max_switches,
            min_dwell_s=self.min_dwell_s,
        )


def latencies_of(text: str, samples: Path) -> Switching | None:
    """Read what a user writes after ``--latency``.

    Args:
        text: ``ideal``, ``measured``, a duration such as ``6ms``, or a file that `underclock
            latency` wrote.
        samples: The samples planned on; ``measured`` is looked for beside them.

    Returns:
        ``None`` for ``ideal``.

    Raises:
        UsageError: It is none of these, or nothing was measured.
        DataError: The file cannot be read.
    """
    if text == "ideal":
        return None
    if text == "measured":
        beside = samples.with_suffix(".latency.json")
        if not beside.is_file():
            raise UsageError(
                f"there are no measured latencies beside {samples}",
                hint=f"`underclock latency --gpu GPU -o {beside}` measures them",
            )
        return Switching(latencies=read_document(beside, LatencyTable), wording="as measured")
    path = Path(text)
    if path.is_file():
        return Switching(latencies=read_document(path, LatencyTable), wording=f"of {path.name}")
    duration_s = parse_duration(text)
    return Switching(latencies=LatencyTable.constant(duration_s), wording=f"{text}, assumed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Achievable:
    """What a plan gains when switching is not free."""

    arms: tuple[Arm, ...] = ()
    schedule: ClockSchedule | None = None
    curve: tuple[LatencyPoint, ...] = ()
    proposals: tuple[Proposal, ...] = ()
    warnings: tuple[str, ...] = ()


def achievable(
    sample_set: SampleSet,
    table: CostTable,
    goal: Goal,
    switching: Switching,
    compared: ComparedStrategies,
    progress: Progress | None,
    risk: ScheduleRisk | None = None,
) -> Achievable:
    """Plan again under the GPU's own latency.

    Raises:
        DataError: The latencies are another GPU's, or the order of launches is unknown.
    """
    latencies = switching.latencies
    warnings = (*latencies.check_gpu(sample_set.gpu), *latencies.warnings)
    rules = switching.rules(goal.max_slowdown)
    starts = list(compared.settings.values())
    problem = sequence_problem(table, sample_set.order, rules)
    arm, solution = achieved(table, problem, starts, risk)
    schedule = None
    if arm.cost is None:
        least = format_percent(fastest_change(table, problem))
        warnings += (
            f"no schedule under this latency keeps the time budget: the fastest takes {least}",
        )
    else:
        schedule = as_record(
            table, problem, solution, latencies=latencies, wording=switching.wording
        )
    if not switching.curve:
        return Achievable(arms=(arm,), schedule=schedule, warnings=warnings)
    return Achievable(
        arms=(arm,),
        schedule=schedule,
        curve=latency_curve(table, sample_set.order, rules, starts, progress),
        proposals=proposals(table, sample_set.order, rules, progress),
        warnings=warnings,
    )
