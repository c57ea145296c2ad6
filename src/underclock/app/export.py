"""``underclock export``: samples, plans and jobs in the formats of other tools."""

import datetime as dt
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from underclock.app.options import delivered, file_argument
from underclock.app.output import STDOUT, Delivery, print_json, warn
from underclock.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from underclock.records import SampleSet
    from underclock.records.job import Job, JobPlan

_FORMATS = ("t4", "kernel-tuner-cache", "zeus", "chrome", "csv")
_POSSIBLE = {
    "SampleSet": ("t4", "kernel-tuner-cache", "zeus", "csv"),
    "Plan": ("chrome", "csv"),
    "Job": ("zeus",),
    "JobPlan": ("chrome", "zeus"),
}
_CALLED = {"SampleSet": "samples", "Plan": "a plan", "Job": "a job", "JobPlan": "a job's plan"}


def exported(source: Path, to: str) -> tuple[str, tuple[str, ...]]:
    """Return a file in another tool's format, and what a reader must be told.

    Args:
        source: Samples (a table too), a plan, a job or a job's plan.
        to: ``t4``, ``kernel-tuner-cache``, ``zeus``, ``chrome`` or ``csv``.

    Raises:
        DataError: The file cannot be read, or lacks what that format is about.
        UsageError: Such a file has no such form.
    """
    from underclock.app.report import timelines
    from underclock.report.chrome import job_trace, step_trace
    from underclock.store import kernel_tuner, load
    from underclock.store.long_tables import plan_csv, samples_csv

    record: Any = load(source)
    kind = type(record).__name__
    possible = _POSSIBLE.get(kind, ())
    if to not in possible:
        raise UsageError(
            f"{source} is {_CALLED.get(kind, f'a {kind.lower()}')}, which has no form {to}",
            hint=f"--to {', '.join(possible)}" if possible else "give samples, a plan or a job",
        )
    if to == "zeus":
        return _zeus(source, record)
    measured = dt.datetime.fromtimestamp(source.stat().st_mtime, tz=dt.UTC)
    write: dict[tuple[str, str], Callable[[Any], str]] = {
        ("SampleSet", "t4"): kernel_tuner.t4_text,
        ("SampleSet", "kernel-tuner-cache"): partial(kernel_tuner.cache_text, at=measured),
        ("SampleSet", "csv"): samples_csv,
        ("Plan", "csv"): plan_csv,
        ("Plan", "chrome"): step_trace,
        ("JobPlan", "chrome"): lambda plan: job_trace(plan, *timelines(plan)),
    }
    text = write[kind, to](record)
    rest = len(record.windows) - len(record.samples) if kind == "SampleSet" else 0
    left = f"{rest} windows of the whole step, or of kernels in company, are no rows of this format"
    return text, (*record.warnings, *([left] if rest else ()))


def _zeus(source: Path, record: "SampleSet | Job | JobPlan") -> tuple[str, tuple[str, ...]]:
    """Return what stages cost, of a job or of one stage's samples."""
    from underclock.app.stages import stage_costs
    from underclock.records import SampleSet
    from underclock.records.job import JobPlan
    from underclock.store.profiles import profiles_csv

    warnings: tuple[str, ...] = ()
    if isinstance(record, SampleSet):
        costs = stage_costs(None, [record], None, stages=1)
        profiles, warnings = costs.profiles, costs.warnings
    else:
        profiles = (record.job if isinstance(record, JobPlan) else record).profiles
    try:
        text, said = profiles_csv(profiles)
    except DataError as exc:
        raise DataError(f"{source}: {exc}", hint=exc.hint) from exc
    return text, (*warnings, *said)


@click.command(name="export")
@file_argument("source")
@click.option("--to", "form", type=click.Choice(_FORMATS), required=True, help="In which format.")
@delivered("file", required=True)
def command(*, source: Path, form: str, to: Delivery) -> None:
    """Write SOURCE, samples or a plan, in the format of another tool.

    t4 and kernel-tuner-cache: samples of kernels, for autotuners; zeus: what a stage's forward and
    backward cost at each clock, of samples or a job; chrome: a planned step or job with clocks,
    power and joules, for Perfetto; csv: a long table for pandas, Polars or DuckDB.

    Commands that take samples read csv, t4 and kernel-tuner-cache back, and `job` reads zeus.

    Example: underclock export plan.json --to chrome -o step.trace.json
    """
    begins = "" if form in {"csv", "zeus"} else "{"
    to.check(source, begins=begins)
    text, warnings = exported(source, form)
    warn(warnings)
    to.write(text)
    if to.as_json and to.output != STDOUT:
        print_json({"exported": str(to.output), "format": form})
