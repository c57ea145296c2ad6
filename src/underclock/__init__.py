"""Underclock: the GPU clocks at which a training step wastes no energy, kernel by kernel.

The commands are functions here; what they take and return are the records::

    step = underclock.trace("gpt3-xl")
    samples = underclock.measure(step, gpu="sim:rtx3080ti", to="samples.db")
    plan = underclock.plan(samples, underclock.Goal(max_slowdown="1%"), latency="6ms")
    validation = underclock.validate(plan, gpu="sim:rtx3080ti")
    underclock.write_report(plan, to="report.html", validation=validation)

* what commands are asked: `Campaign` with `Grid` and `ClockControl`, `Goal` (choices as text:
  ``Goal(objective="energy")``), `Switching`, `LatencyTable`
* what they hand on: `Step`, `SampleSet`, `Plan`, `Validation`; the records that these are made of
  are in `underclock.records`
* what they raise: `UnderclockError`, whose kinds are in `underclock.errors`

A job of many GPUs is ``plan_job(pipeline_job("1f1b", "profile.csv", stages=8,
microbatches=32))``, a `JobPlan` of a `Job`.

A plan with a schedule is held while a command trains, ``underclock.run(plan, command)`` with
`HowToRun`, or while a block of this process does, ``with underclock.applied(plan)``;
``underclock.tune(command)`` finds a plan, ``underclock.observe(command)`` sets nothing and counts
energy, and ``underclock.saved()`` sums up what runs saved. A
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
    from underclock.app.latency import measure_latency as measure_latency
    from underclock.app.launching import trace_command as trace_command
    from underclock.app.measuring import measure as measure
    from underclock.app.planning import Switching as Switching
    from underclock.app.planning import plan as plan
    from underclock.app.report import write_report as write_report
    from underclock.app.serving import plan_serving as plan_serving
    from underclock.app.stages import pipeline_job as pipeline_job
    from underclock.app.stages import plan_job as plan_job
    from underclock.app.transferring import Confirm as Confirm
    from underclock.app.transferring import transfer as transfer
    from underclock.app.validating import validate as validate
    from underclock.campaign.grid import Campaign as Campaign
    from underclock.campaign.grid import ClockControl as ClockControl
    from underclock.campaign.grid import Grid as Grid
    from underclock.commands import observe as observe
    from underclock.commands import saved as saved
    from underclock.commands import tune as tune
    from underclock.core.planning.best_choice import Goal as Goal
    from underclock.core.planning.serving import ServingBudget as ServingBudget
    from underclock.errors import UnderclockError as UnderclockError
    from underclock.hw.cuda.boundaries import step as step
    from underclock.integrations import accelerate_tracker as accelerate_tracker
    from underclock.integrations import lightning_callback as lightning_callback
    from underclock.integrations import transformers_callback as transformers_callback
    from underclock.integrations import transformers_report_to as transformers_report_to
    from underclock.ledger import SavedTotal as SavedTotal
    from underclock.records import Clocks as Clocks
    from underclock.records import Plan as Plan
    from underclock.records import SampleSet as SampleSet
    from underclock.records import Step as Step
    from underclock.records import Validation as Validation
    from underclock.records.job import Job as Job
    from underclock.records.job import JobPlan as JobPlan
    from underclock.records.latencies import LatencyTable as LatencyTable
    from underclock.records.serving import ServingPlan as ServingPlan
    from underclock.runtime.holding.held_gpu import applied as applied
    from underclock.runtime.holding.held_gpu import governor as governor
    from underclock.runtime.holding.run import HowToRun as HowToRun
    from underclock.runtime.holding.run import run as run
    from underclock.runtime.trainer.notes import Pace as Pace
    from underclock.store import load as load
    from underclock.store import save as save
    from underclock.tracing.held import trace as trace

    __version__: str

_HOMES = {
    name: home
    for home, names in {
        "app.launching": "trace_command",
        "app.stages": "pipeline_job plan_job",
        "app.latency": "measure_latency",
        "app.measuring": "measure",
        "app.planning": "Switching plan",
        "app.report": "write_report",
        "app.serving": "plan_serving",
        "app.transferring": "Confirm transfer",
        "app.validating": "validate",
        "commands": "observe saved tune",
        "campaign.grid": "Campaign ClockControl Grid",
        "core.planning.strategies": "Goal",
        "core.planning.serving": "ServingBudget",
        "hw.cuda.boundaries": "step",
        "errors": "UnderclockError",
        "integrations": (
            "accelerate_tracker lightning_callback transformers_callback transformers_report_to"
        ),
        "ledger": "SavedTotal",
        "records": "Clocks Plan SampleSet Step Validation",
        "records.job": "Job JobPlan",
        "records.latencies": "LatencyTable",
        "records.serving": "ServingPlan",
        "runtime.holding.held_gpu": "applied governor",
        "runtime.holding.run": "HowToRun run",
        "runtime.trainer.notes": "Pace",
        "store": "load save",
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
