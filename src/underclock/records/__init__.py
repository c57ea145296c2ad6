"""The nouns that stages hand to one another. Frozen, validated, JSON-friendly.

* `common`: what a number rests on (`Evidence`), what can be set (`Clocks`)
* `work`: what runs (`Kernel`, `Step`)
* `measured`: what was measured (`Sample`, `SampleSet`)
* `choices`, `schedules`: ways of choosing clocks, their costs (`Arm`), what a GPU can follow
* `planned`: what was decided (`Plan`); `scored`: what that costs elsewhere (`Score`)
* `validated`: what became of it (`Validation`)
* `fitted`, `latencies`, `observed`: what `fit`, `latency`, `breakdown`, `watch` and `predict` show
* `launches`: what tracing sees before it is a step
* `shown`: how records look in a shell and in a notebook

Every record that is a file of its own carries its ``kind`` and a ``schema`` number; a reader
refuses other kinds, and numbers other than the one in `schemas`.
"""

from underclock.records.choices import (
    Accounting,
    Aggregate,
    Arm,
    Choice,
    Closure,
    Cost,
    Granularity,
    Objective,
    Status,
    Strategy,
)
from underclock.records.common import (
    AUTO,
    GREATEST_MHZ,
    LEAST_MHZ,
    Clocks,
    Evidence,
    Record,
    check_mhz,
    check_positive,
)
from underclock.records.measured import (
    GpuInfo,
    MeasurementSettings,
    Mix,
    MixSample,
    Provenance,
    Sample,
    SampleSet,
    ThrottleReason,
    Utilisation,
)
from underclock.records.planned import Plan
from underclock.records.schedules import ClockSchedule, LatencyPoint, PowerPoint, Proposal, Segment
from underclock.records.schemas import SCHEMAS, check_schema
from underclock.records.scored import Score
from underclock.records.validated import (
    MOST_REPEATS,
    TOLERANCE,
    OtherArm,
    Spread,
    Validation,
    Verdict,
)
from underclock.records.work import ASSUMED, Kernel, Kind, Launch, Pass, Step, StepSource

__all__ = [
    "ASSUMED",
    "AUTO",
    "GREATEST_MHZ",
    "LEAST_MHZ",
    "MOST_REPEATS",
    "SCHEMAS",
    "TOLERANCE",
    "Accounting",
    "Aggregate",
    "Arm",
    "Choice",
    "ClockSchedule",
    "Clocks",
    "Closure",
    "Cost",
    "Evidence",
    "GpuInfo",
    "Granularity",
    "Kernel",
    "Kind",
    "LatencyPoint",
    "Launch",
    "MeasurementSettings",
    "Mix",
    "MixSample",
    "Objective",
    "OtherArm",
    "Pass",
    "Plan",
    "PowerPoint",
    "Proposal",
    "Provenance",
    "Record",
    "Sample",
    "SampleSet",
    "Score",
    "Segment",
    "Spread",
    "Status",
    "Step",
    "StepSource",
    "Strategy",
    "ThrottleReason",
    "Utilisation",
    "Validation",
    "Verdict",
    "check_mhz",
    "check_positive",
    "check_schema",
]
