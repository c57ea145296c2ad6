"""The nouns that commands hand to one another. Frozen, validated, JSON-friendly.

* `common`: what a number rests on (`Evidence`), what can be set (`Clocks`), how records look
* `work`: what runs (`Kernel`, `Step`)
* `measured`: what was measured (`Window`, `SampleSet`)
* `choices`: ways of choosing clocks, their costs (`Arm`), schedules that a GPU can follow
* `planned`: what was decided (`Plan`)
* `outcomes`: what became of it (`Validation`)
* `latencies`: how long clocks take to change
* `job`: what the ranks of a job do and who waits for whom (`Job`), and what was decided (`JobPlan`)
* `serving`: clocks by phase, batch and context (`ServingPlan`)
* `runs`: what is seen of a run under a plan

Every record that is a file of its own carries its ``kind`` and a ``schema`` number; a reader
refuses other kinds, and numbers other than the one in `common.SCHEMAS`.
"""

from underclock.records.choices import (
    Accounting,
    Aggregate,
    Arm,
    Choice,
    ClockSchedule,
    Closure,
    Cost,
    Granularity,
    LatencyPoint,
    Objective,
    Segment,
    Status,
    Strategy,
)
from underclock.records.common import (
    AUTO,
    GREATEST_MHZ,
    LEAST_MHZ,
    SCHEMAS,
    Clocks,
    Evidence,
    Record,
    check_schema,
)
from underclock.records.outcomes import (
    MOST_REPEATS,
    TOLERANCE,
    OtherArm,
    Spread,
    Validation,
    Verdict,
)
from underclock.records.planned import Plan
from underclock.records.samples import (
    ALONE,
    GpuInfo,
    MeasurementSettings,
    Mix,
    Provenance,
    SampleSet,
    ThrottleReason,
    Window,
)
from underclock.records.work import (
    ASSUMED,
    SERVING,
    Kernel,
    Kind,
    Launch,
    Pass,
    Step,
    StepSource,
)
