"""Underclock: the GPU clocks at which a training step wastes no energy, kernel by kernel.

The stages are functions here; what they take and return are the records::

    step = underclock.trace("gpt3-xl")
    samples = underclock.measure(step, gpu="sim:rtx3080ti", to="samples.db")
    plan = underclock.plan(samples)
    validation = underclock.validate(plan, gpu="sim:rtx3080ti")
    underclock.write_report(plan, to="report.html", validation=validation)

Importing this package loads nothing heavy; a name loads its module on first use.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from underclock.core.planning.goal import Goal
    from underclock.errors import UnderclockError
    from underclock.hw.measurer import Protocol
    from underclock.records import Clocks, Evidence, Plan, SampleSet, Step, Validation
    from underclock.records.latencies import LatencyTable
    from underclock.stages.campaign import Campaign
    from underclock.stages.fit import fit
    from underclock.stages.latency import measure_latency
    from underclock.stages.measure import measure
    from underclock.stages.plan import plan
    from underclock.stages.predict import predict
    from underclock.stages.report import write_report
    from underclock.stages.score import score
    from underclock.stages.trace import trace
    from underclock.stages.validate import validate

_HOMES = {
    "Campaign": "stages.campaign",
    "Clocks": "records",
    "Evidence": "records",
    "Goal": "core.planning.goal",
    "LatencyTable": "records.latencies",
    "Plan": "records",
    "SampleSet": "records",
    "Protocol": "hw.measurer",
    "Step": "records",
    "UnderclockError": "errors",
    "Validation": "records",
    "fit": "stages.fit",
    "measure": "stages.measure",
    "measure_latency": "stages.latency",
    "plan": "stages.plan",
    "predict": "stages.predict",
    "score": "stages.score",
    "trace": "stages.trace",
    "validate": "stages.validate",
    "write_report": "stages.report",
}

__all__ = [
    "Campaign",
    "Clocks",
    "Evidence",
    "Goal",
    "LatencyTable",
    "Plan",
    "Protocol",
    "SampleSet",
    "Step",
    "UnderclockError",
    "Validation",
    "fit",
    "measure",
    "measure_latency",
    "plan",
    "predict",
    "score",
    "trace",
    "validate",
    "write_report",
]


def __getattr__(name: str) -> object:
    """Load a public name from its home, once."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
