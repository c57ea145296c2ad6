"""The nouns that stages hand to one another. Frozen, validated, JSON-friendly.

* `common`: what a number rests on (`Evidence`), what can be set (`Clocks`)
* `work`: what runs (`Kernel`, `Step`)
* `measured`: what was measured (`Sample`, `SampleSet`)
* `planned`: what was decided (`Arm`, `Plan`), and what it costs elsewhere (`Score`)
* `validated`: what became of it (`Validation`)
* `fitted`, `latencies`, `observed`: what `fit`, `latency`, `breakdown`, `watch` and `predict` show
* `launches`: what tracing sees before it is a step

Every record that is a file of its own carries a ``schema`` number; a reader refuses a newer one.
"""

from underclock.records.common import AUTO, SCHEMA, Clocks, Evidence, Record
from underclock.records.measured import POWER_CAP_REASON, GpuInfo, Sample, SampleSet, Utilisation
from underclock.records.planned import (
    Aggregate,
    Arm,
    Choice,
    ClockSchedule,
    Closure,
    Cost,
    Granularity,
    LatencyPoint,
    Objective,
    Plan,
    Proposal,
    Score,
    Segment,
    Status,
    Strategy,
)
from underclock.records.validated import MOST_REPEATS, OtherArm, Spread, Validation, Verdict
from underclock.records.work import Kernel, Kind, Launch, Pass, Step

__all__ = [
    "AUTO",
    "MOST_REPEATS",
    "POWER_CAP_REASON",
    "SCHEMA",
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
    "Objective",
    "OtherArm",
    "Pass",
    "Plan",
    "Proposal",
    "Record",
    "Sample",
    "SampleSet",
    "Score",
    "Segment",
    "Spread",
    "Status",
    "Step",
    "Strategy",
    "Utilisation",
    "Validation",
    "Verdict",
]
