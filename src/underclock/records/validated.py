"""What became of a plan that was executed."""

from enum import StrEnum

from underclock.records.choices import Accounting, Objective, Strategy
from underclock.records.common import Clocks, Evidence, Record
from underclock.records.measured import GpuInfo
from underclock.records.schemas import SCHEMAS
from underclock.records.shown import as_html, as_line
from underclock.units import format_percent


class Spread(Record, frozen=True, kw_only=True):
    """A quantity over all pairs of repeats.

    Attributes:
        mean: Mean over the pairs.
        best: Least value: the pair most in the plan's favour.
        worst: Greatest value.
    """

    mean: float
    best: float
    worst: float


TOLERANCE = 0.001  # how far beyond its promise a plan may be and still have kept it
MOST_REPEATS = 1000  # more than anybody runs: where these would not decide, no number is named


class Verdict(StrEnum):
    """Whether a plan kept its promise."""

    KEPT = "kept"
    NOT_KEPT = "not kept"
    INCONCLUSIVE = "inconclusive"


class OtherArm(Record, frozen=True, kw_only=True):
    """A simpler way of choosing clocks, run in turns with auto and plan, and compared with auto.

    Attributes:
        name: The strategy.
        clocks: What it holds for the whole step.
        time_s: One total per repeat.
        energy_j: One total per repeat.
        time_change: Against auto, over all pairs.
        energy_change: Against auto, over all pairs.
        time_interval: Low and high end of the true change at 95 %; ``None`` of a single run.
        energy_interval: Low and high end of the true change at 95 %; ``None`` of a single run.
    """

    name: Strategy
    clocks: Clocks
    time_s: tuple[float, ...]
    energy_j: tuple[float, ...]
    time_change: Spread
    energy_change: Spread
    time_interval: tuple[float, float] | None = None
    energy_interval: tuple[float, float] | None = None


class Validation(Record, frozen=True, kw_only=True, tag_field="kind", tag="validation"):
    """Auto and plan measured again, every auto run paired with every plan run.

    Of a plan that sets nothing no run is made: ``repeats`` is 0 and the runs are empty.

    Attributes:
        chosen: The arm whose clocks ran, and whose promise is judged.
        objective: What the plan minimises; for time its promise of time is judged. ``None`` when
            unknown.
        accounting: What a run is: the whole step as it runs, or its kernels measured one by one.
        latency: Which switching latency the plan ran under, in words; ``None`` where it was taken
            as free.
        repeats: Runs of each arm.
        auto_time_s: One total per repeat, as in the three that follow it.
        time_change: Plan against auto over all ``repeats``² pairs.
        energy_change: Plan against auto over all ``repeats``² pairs.
        promised_time_change: What the plan said.
        promised_energy_change: What the plan said.
        promised_time_interval: How sure it said that was, 95 %; ``None`` where it did not say.
        promised_energy_interval: The same of energy.
        pairs_keeping_energy: Pairs that save at least the promised energy.
        pairs_keeping_time: Pairs no slower, by more than ``tolerance``, than the plan's budget
            allows or, where time is what it minimises, than its promise may be; ``None`` where
            time was free.
        time_interval: Low and high end of the true change of time at 95 %; ``None`` where single
            runs tell no spread.
        energy_interval: Low and high end of the true change of energy at 95 %; ``None`` in the same
            case.
        max_slowdown: The plan's time budget; ``None`` where time was free.
        tolerance: How far beyond promise or budget still counts as kept, as a fraction of auto.
        verdict: Whether the promise held.
        further_repeats: About how many more repeats would decide; ``None`` where the verdict is
            known, nothing can be said, or no reasonable number would do.
        others: What ran in turns with auto and plan besides.
    """

    schema: int = SCHEMAS["validation"]
    evidence: Evidence
    gpu: GpuInfo
    workload: str
    chosen: Strategy
    objective: Objective | None = None
    accounting: Accounting
    latency: str | None = None
    repeats: int
    auto_time_s: tuple[float, ...]
    auto_energy_j: tuple[float, ...]
    plan_time_s: tuple[float, ...]
    plan_energy_j: tuple[float, ...]
    time_change: Spread
    energy_change: Spread
    promised_time_change: float
    promised_energy_change: float
    promised_time_interval: tuple[float, float] | None = None
    promised_energy_interval: tuple[float, float] | None = None
    pairs_keeping_energy: int
    pairs_keeping_time: int | None
    time_interval: tuple[float, float] | None = None
    energy_interval: tuple[float, float] | None = None
    max_slowdown: float | None = None
    tolerance: float | None = None
    verdict: Verdict | None = None
    further_repeats: int | None = None
    others: tuple[OtherArm, ...] = ()
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return as_line("Validation", self._heading, self._facts)

    def _repr_html_(self) -> str:
        """Return the same as a table, for notebooks."""
        return as_html("Validation", self._heading, self._facts)

    @property
    def _heading(self) -> str:
        return f"{self.workload} on {self.gpu.name}, {self.evidence}"

    @property
    def _facts(self) -> tuple[tuple[str, str], ...]:
        return (
            ("verdict", "unknown" if self.verdict is None else str(self.verdict)),
            ("energy", _against(self.energy_change, self.promised_energy_change)),
            ("time", _against(self.time_change, self.promised_time_change)),
            ("repeats", str(self.repeats)),
        )


def _against(changes: Spread, promised: float) -> str:
    return f"{format_percent(changes.mean)} against {format_percent(promised)} promised"
