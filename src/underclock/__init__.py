"""Underclock: the GPU clocks at which a training step wastes no energy, kernel by kernel.

The commands are functions here; what they take and return are the records::

    step = underclock.trace("gpt3-xl")
    samples = underclock.measure(step, gpu="sim:rtx3080ti", to="samples.db")
    plan = underclock.plan(samples, underclock.Goal(max_slowdown="1%"), latency="6ms")
    validation = underclock.validate(plan, gpu="sim:rtx3080ti")
    underclock.write_report(plan, to="report.html", validation=validation)

* what commands are asked: `Campaign` with `Grid` and `ClockControl`, `Goal` with `Objective`,
  `Granularity` and `Aggregate` (as text too: ``Goal(objective="energy")``), `Accounting`,
  `Switching`, `LatencyTable`
* what they hand on: `Step`, `SampleSet`, `Plan`, `Validation`; and the
  records that these are made of
* what they tell meanwhile: `Tally`
* what they raise: `UnderclockError` and its kinds

A job of many GPUs is ``plan_job(pipeline_job("1f1b", "profile.csv", stages=8,
microbatches=32))``, a `JobPlan` of a `Job`.

A plan with a schedule is held while a command trains, ``underclock.run(plan, command)`` with
`HowToRun`, or while a block of this process does, ``with underclock.applied(plan)``. A
server's clocks are held phase by phase, ``with underclock.governor(serving_plan) as hook``.

``measure(gpu=..., to=..., campaign=Campaign(near=plan))`` takes on another board of the model what
makes a plan its own.

`save` writes any of these to a file and `load` reads it. A DataFrame with the columns of a CSV
table is taken for samples; `SampleSet.to_pandas` and `Plan.to_pandas` give one.

Importing this package loads nothing heavy; a name loads its module on first use.
"""

import importlib

TYPE_CHECKING = False  # `typing` takes longer to load than all that a training process needs of us
if TYPE_CHECKING:
    from underclock.app.job import pipeline_job as pipeline_job
    from underclock.app.job import plan_job as plan_job
    from underclock.app.latency import measure_latency as measure_latency
    from underclock.app.launching import RankStep as RankStep
    from underclock.app.launching import trace_command as trace_command
    from underclock.app.measuring import measure as measure
    from underclock.app.planning import plan as plan
    from underclock.app.report import write_report as write_report
    from underclock.app.serving import plan_serving as plan_serving
    from underclock.app.switching import Switching as Switching
    from underclock.app.transferring import Confirm as Confirm
    from underclock.app.transferring import transfer as transfer
    from underclock.app.validating import validate as validate
    from underclock.campaign.grid import Campaign as Campaign
    from underclock.campaign.grid import ClockControl as ClockControl
    from underclock.campaign.grid import Grid as Grid
    from underclock.campaign.progress import Expected as Expected
    from underclock.campaign.progress import Tally as Tally
    from underclock.core.planning.best_choice import Goal as Goal
    from underclock.core.planning.serving import ServingBudget as ServingBudget
    from underclock.errors import DataError as DataError
    from underclock.errors import DeviceError as DeviceError
    from underclock.errors import InfeasibleError as InfeasibleError
    from underclock.errors import MeasurementError as MeasurementError
    from underclock.errors import NotAppliedError as NotAppliedError
    from underclock.errors import NotPermittedError as NotPermittedError
    from underclock.errors import NotSupportedError as NotSupportedError
    from underclock.errors import UnderclockError as UnderclockError
    from underclock.errors import UsageError as UsageError
    from underclock.hw.cuda.boundaries import step as step
    from underclock.integrations import accelerate_tracker as accelerate_tracker
    from underclock.integrations import lightning_callback as lightning_callback
    from underclock.integrations import transformers_callback as transformers_callback
    from underclock.integrations import transformers_report_to as transformers_report_to
    from underclock.records import Accounting as Accounting
    from underclock.records import Aggregate as Aggregate
    from underclock.records import Arm as Arm
    from underclock.records import Choice as Choice
    from underclock.records import Clocks as Clocks
    from underclock.records import ClockSchedule as ClockSchedule
    from underclock.records import Closure as Closure
    from underclock.records import Cost as Cost
    from underclock.records import Evidence as Evidence
    from underclock.records import GpuInfo as GpuInfo
    from underclock.records import Granularity as Granularity
    from underclock.records import Kernel as Kernel
    from underclock.records import Kind as Kind
    from underclock.records import LatencyPoint as LatencyPoint
    from underclock.records import Launch as Launch
    from underclock.records import MeasurementSettings as MeasurementSettings
    from underclock.records import Mix as Mix
    from underclock.records import Objective as Objective
    from underclock.records import OtherArm as OtherArm
    from underclock.records import Pass as Pass
    from underclock.records import Plan as Plan
    from underclock.records import Provenance as Provenance
    from underclock.records import SampleSet as SampleSet
    from underclock.records import Segment as Segment
    from underclock.records import Spread as Spread
    from underclock.records import Status as Status
    from underclock.records import Step as Step
    from underclock.records import StepSource as StepSource
    from underclock.records import Strategy as Strategy
    from underclock.records import ThrottleReason as ThrottleReason
    from underclock.records import Validation as Validation
    from underclock.records import Verdict as Verdict
    from underclock.records import Window as Window
    from underclock.records.job import Held as Held
    from underclock.records.job import Instruction as Instruction
    from underclock.records.job import InstructionKind as InstructionKind
    from underclock.records.job import Job as Job
    from underclock.records.job import JobPlan as JobPlan
    from underclock.records.job import JobPoint as JobPoint
    from underclock.records.job import Profile as Profile
    from underclock.records.job import ProfileRow as ProfileRow
    from underclock.records.job import Rank as Rank
    from underclock.records.job import Wait as Wait
    from underclock.records.job import Waiting as Waiting
    from underclock.records.latencies import ClockReading as ClockReading
    from underclock.records.latencies import Domain as Domain
    from underclock.records.latencies import DriverMoves as DriverMoves
    from underclock.records.latencies import LatencyTable as LatencyTable
    from underclock.records.latencies import Quantiles as Quantiles
    from underclock.records.latencies import Reader as Reader
    from underclock.records.latencies import Switch as Switch
    from underclock.records.planned import CarriedOver as CarriedOver
    from underclock.records.planned import KernelMatch as KernelMatch
    from underclock.records.planned import MatchWay as MatchWay
    from underclock.records.runs import ArmLine as ArmLine
    from underclock.records.runs import RunLine as RunLine
    from underclock.records.runs import RunSummary as RunSummary
    from underclock.records.serving import Basis as Basis
    from underclock.records.serving import ServingBucket as ServingBucket
    from underclock.records.serving import ServingCost as ServingCost
    from underclock.records.serving import ServingPlan as ServingPlan
    from underclock.runtime.holding.held_gpu import applied as applied
    from underclock.runtime.holding.held_gpu import governor as governor
    from underclock.runtime.holding.run import HeldRun as HeldRun
    from underclock.runtime.holding.run import HowToRun as HowToRun
    from underclock.runtime.holding.run import Ran as Ran
    from underclock.runtime.holding.run import run as run
    from underclock.runtime.trainer.notes import Hook as Hook
    from underclock.runtime.trainer.notes import Pace as Pace
    from underclock.store import load as load
    from underclock.store import save as save
    from underclock.tracing.held import trace as trace
    from underclock.tracing.source import StepFile as StepFile
    from underclock.tracing.source import TracePhase as TracePhase
    from underclock.tracing.source import TrainingCommand as TrainingCommand

    __version__: str

_HOMES = {
    name: home
    for home, names in {
        "app.launching": "RankStep trace_command",
        "app.job": "pipeline_job plan_job",
        "app.latency": "measure_latency",
        "app.measuring": "measure",
        "app.planning": "plan",
        "app.report": "write_report",
        "app.serving": "plan_serving",
        "app.switching": "Switching",
        "app.transferring": "Confirm transfer",
        "app.validating": "validate",
        "campaign.progress": "Expected Tally",
        "campaign.grid": "Campaign ClockControl Grid",
        "core.planning.strategies": "Goal",
        "core.planning.serving": "ServingBudget",
        "hw.cuda.boundaries": "step",
        "errors": (
            "DataError DeviceError InfeasibleError MeasurementError NotAppliedError "
            "NotPermittedError NotSupportedError UnderclockError UsageError"
        ),
        "integrations": (
            "accelerate_tracker lightning_callback transformers_callback transformers_report_to"
        ),
        "records": (
            "Accounting Aggregate Arm Choice ClockSchedule Clocks Closure Cost Evidence "
            "GpuInfo Granularity Kernel Kind LatencyPoint Launch MeasurementSettings Mix "
            "Objective OtherArm Pass Plan Provenance "
            "SampleSet Segment Spread Status Step StepSource Strategy ThrottleReason "
            "Validation Verdict Window"
        ),
        "records.planned": "CarriedOver KernelMatch MatchWay",
        "records.job": (
            "Held Instruction InstructionKind Job JobPlan JobPoint Profile ProfileRow Rank Wait "
            "Waiting"
        ),
        "records.latencies": "ClockReading Domain DriverMoves LatencyTable Quantiles Reader Switch",
        "records.runs": "ArmLine RunLine RunSummary",
        "records.serving": "Basis ServingBucket ServingCost ServingPlan",
        "runtime.holding.held_gpu": "applied governor",
        "runtime.holding.run": "HeldRun HowToRun Ran run",
        "runtime.trainer.notes": "Hook Pace",
        "store": "load save",
        "tracing.source": "StepFile TracePhase TrainingCommand",
        "tracing.held": "trace",
    }.items()
    for name in names.split()
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    """Load a public name from its home, once."""
    if name == "__version__":
        return _version()
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _version() -> str:
    """Return the version that was installed; a source tree that never was has none of its own."""
    metadata = importlib.import_module("importlib.metadata")
    try:
        version: str = metadata.version(__name__)
    except metadata.PackageNotFoundError:
        return "not installed"
    return version
