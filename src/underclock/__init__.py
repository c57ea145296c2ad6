"""Underclock: the GPU clocks at which a training step wastes no energy, kernel by kernel.

The stages are functions here; what they take and return are the records::

    step = underclock.trace("gpt3-xl")
    samples = underclock.measure(step, gpu="sim:rtx3080ti", to="samples.db")
    plan = underclock.plan(samples, underclock.Goal(max_slowdown="1%"), latency="6ms")
    validation = underclock.validate(plan, gpu="sim:rtx3080ti")
    underclock.write_report(plan, to="report.html", validation=validation)

* what stages are asked: `Campaign` with `Grid` and `ClockControl`, `Goal` with `Objective`,
  `Granularity` and `Aggregate` (as text too: ``Goal(objective="energy")``), `Accounting`,
  `Switching`, `LatencyTable`
* what they hand on: `Step`, `SampleSet`, `Plan`, `Validation`; `Prediction`, `Score`, `GpuFit`; and
  the records that these are made of
* what they tell meanwhile: `Tally`
* what they raise: `UnderclockError` and its kinds

A plan with a schedule is held while a command trains, ``underclock.run(plan, command)`` with
`HowToRun`, or while a block of this process does, ``with underclock.applied(plan)``.

Samples of another unit are refined into a plan by ``plan(refine(given, gpu=..., to=...),
Goal.of(given))``.

`save` writes any of these to a file and `load` reads it. A DataFrame with the columns of a CSV
table is taken for samples; `SampleSet.to_pandas` and `Plan.to_pandas` give one.

Importing this package loads nothing heavy; a name loads its module on first use.
"""

import importlib

TYPE_CHECKING = False  # `typing` takes longer to load than all that a training process needs of us
if TYPE_CHECKING:
    from underclock.app.fit import fit
    from underclock.app.latency import measure_latency
    from underclock.app.measuring import measure
    from underclock.app.planning import plan
    from underclock.app.predicting import predict
    from underclock.app.refining import refine
    from underclock.app.report import write_report
    from underclock.app.score import score
    from underclock.app.switching import Switching
    from underclock.app.validating import validate
    from underclock.campaign.progress import Expected, Tally
    from underclock.campaign.survey import Campaign, ClockControl, Grid
    from underclock.core.planning.goal import Goal
    from underclock.errors import (
        DataError,
        DeviceError,
        InfeasibleError,
        MeasurementError,
        NotAppliedError,
        NotPermittedError,
        NotSupportedError,
        UnderclockError,
        UsageError,
    )
    from underclock.records import (
        Accounting,
        Aggregate,
        Arm,
        Choice,
        Clocks,
        ClockSchedule,
        Closure,
        Cost,
        Evidence,
        GpuInfo,
        Granularity,
        Kernel,
        Kind,
        LatencyPoint,
        Launch,
        Mix,
        MixSample,
        Objective,
        OtherArm,
        Pass,
        Plan,
        PowerPoint,
        Proposal,
        Sample,
        SampleSet,
        Score,
        Segment,
        Spread,
        Status,
        Step,
        Strategy,
        Utilisation,
        Validation,
        Verdict,
    )
    from underclock.records.fitted import Constant, GpuFit, KernelFit
    from underclock.records.latencies import Domain, LatencyTable, Switch
    from underclock.records.observed import Interval, PredictedArm, Prediction
    from underclock.records.runs import ArmLine, RunLine, RunSummary
    from underclock.runtime.holding.applied import (
        applied,
        lightning_callback,
        transformers_callback,
    )
    from underclock.runtime.holding.run import HeldRun, HowToRun, Ran, run
    from underclock.store import load, save
    from underclock.tracing.source import Script, StepFile, TracePhase
    from underclock.tracing.trace import trace

    __version__: str

_HOMES = {
    "Accounting": "records",
    "Aggregate": "records",
    "Arm": "records",
    "ArmLine": "records.runs",
    "Campaign": "campaign.survey",
    "Choice": "records",
    "ClockControl": "campaign.survey",
    "ClockSchedule": "records",
    "Clocks": "records",
    "Closure": "records",
    "Constant": "records.fitted",
    "Cost": "records",
    "DataError": "errors",
    "DeviceError": "errors",
    "Domain": "records.latencies",
    "Evidence": "records",
    "Expected": "campaign.progress",
    "Goal": "core.planning.goal",
    "GpuFit": "records.fitted",
    "GpuInfo": "records",
    "Granularity": "records",
    "Grid": "campaign.survey",
    "HeldRun": "runtime.holding.run",
    "HowToRun": "runtime.holding.run",
    "InfeasibleError": "errors",
    "Interval": "records.observed",
    "Kernel": "records",
    "KernelFit": "records.fitted",
    "Kind": "records",
    "LatencyPoint": "records",
    "LatencyTable": "records.latencies",
    "Launch": "records",
    "MeasurementError": "errors",
    "MeasurementSettings": "records",
    "Mix": "records",
    "MixSample": "records",
    "NotAppliedError": "errors",
    "NotPermittedError": "errors",
    "NotSupportedError": "errors",
    "Objective": "records",
    "OtherArm": "records",
    "Pass": "records",
    "Plan": "records",
    "PowerPoint": "records",
    "PredictedArm": "records.observed",
    "Prediction": "records.observed",
    "Proposal": "records",
    "Provenance": "records",
    "Ran": "runtime.holding.run",
    "RunLine": "records.runs",
    "RunSummary": "records.runs",
    "Sample": "records",
    "SampleSet": "records",
    "Score": "records",
    "Script": "tracing.source",
    "Segment": "records",
    "Spread": "records",
    "Status": "records",
    "Step": "records",
    "StepFile": "tracing.source",
    "StepSource": "records",
    "Strategy": "records",
    "Switch": "records.latencies",
    "Switching": "app.switching",
    "Tally": "campaign.progress",
    "ThrottleReason": "records",
    "TracePhase": "tracing.source",
    "UnderclockError": "errors",
    "UsageError": "errors",
    "Utilisation": "records",
    "Validation": "records",
    "Verdict": "records",
    "applied": "runtime.holding.applied",
    "fit": "app.fit",
    "lightning_callback": "runtime.holding.applied",
    "load": "store",
    "measure": "app.measuring",
    "measure_latency": "app.latency",
    "plan": "app.planning",
    "predict": "app.predicting",
    "refine": "app.refining",
    "run": "runtime.holding.run",
    "save": "store",
    "score": "app.score",
    "trace": "tracing.trace",
    "transformers_callback": "runtime.holding.applied",
    "validate": "app.validating",
    "write_report": "app.report",
}

__all__ = [
    "Accounting",
    "Aggregate",
    "Arm",
    "ArmLine",
    "Campaign",
    "Choice",
    "ClockControl",
    "ClockSchedule",
    "Clocks",
    "Closure",
    "Constant",
    "Cost",
    "DataError",
    "DeviceError",
    "Domain",
    "Evidence",
    "Expected",
    "Goal",
    "GpuFit",
    "GpuInfo",
    "Granularity",
    "Grid",
    "HeldRun",
    "HowToRun",
    "InfeasibleError",
    "Interval",
    "Kernel",
    "KernelFit",
    "Kind",
    "LatencyPoint",
    "LatencyTable",
    "Launch",
    "MeasurementError",
    "MeasurementSettings",
    "Mix",
    "MixSample",
    "NotAppliedError",
    "NotPermittedError",
    "NotSupportedError",
    "Objective",
    "OtherArm",
    "Pass",
    "Plan",
    "PowerPoint",
    "PredictedArm",
    "Prediction",
    "Proposal",
    "Provenance",
    "Ran",
    "RunLine",
    "RunSummary",
    "Sample",
    "SampleSet",
    "Score",
    "Script",
    "Segment",
    "Spread",
    "Status",
    "Step",
    "StepFile",
    "StepSource",
    "Strategy",
    "Switch",
    "Switching",
    "Tally",
    "ThrottleReason",
    "TracePhase",
    "UnderclockError",
    "UsageError",
    "Utilisation",
    "Validation",
    "Verdict",
    "applied",
    "fit",
    "lightning_callback",
    "load",
    "measure",
    "measure_latency",
    "plan",
    "predict",
    "refine",
    "run",
    "save",
    "score",
    "trace",
    "transformers_callback",
    "validate",
    "write_report",
]


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
