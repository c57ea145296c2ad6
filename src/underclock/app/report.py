"""``underclock report``: a plan, and how it validated, or the log of a run, as one page."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from underclock.app.options import delivered, file_argument
from underclock.app.output import STDOUT, Delivery, print_json
from underclock.errors import DataError
from underclock.records import Plan, Validation

if TYPE_CHECKING:
    from underclock.records.job import JobPlan, Span

_OTHERS: Final = {
    "step": "`underclock measure` and `underclock plan` make a plan of it",
    "latencies": "give the plan that was made with it",
    "job": "`underclock plan job.json -o plan.json` makes a plan of it",
    "fit": "`underclock plan` makes a plan of the same samples",
}


def write_report(
    plan: "Plan | Validation | JobPlan | str | Path",
    *,
    to: str | Path,
    validation: "Plan | Validation | JobPlan | str | Path | None" = None,
    force: bool = False,
) -> Path:
    """Write the page.

    Args:
        plan: A plan, of a job too, or its file; or the log of a run.
        to: Where the page goes.
        validation: Of this plan, or its file; the two may stand in either order.
        force: Whether an existing file may be replaced.

    Returns:
        Where it went.

    Raises:
        UsageError: The file exists or cannot be written.
        DataError: A file cannot be read or is of another kind, or the validation is of another
            plan.
    """
    from underclock.store import check_output, write_text

    path = Path(to)
    inputs = [Path(each) for each in (plan, validation) if isinstance(each, str | Path)]
    check_output(path, force=force, inputs=inputs, begins="<")
    write_text(path, render_report(plan, validation), force=force)
    return path


def render_report(
    plan: "Plan | Validation | JobPlan | str | Path",
    validation: "Plan | Validation | JobPlan | str | Path | None" = None,
) -> str:
    """Return the page as text; arguments and errors are those of `write_report`."""
    from underclock.records.job import JobPlan
    from underclock.report import job_page, page, run_page
    from underclock.runtime.controller.log import is_log, last_run, read_log, summary_of

    if validation is None and isinstance(plan, str | Path) and is_log(Path(plan)):
        lines = last_run(read_log(Path(plan)))
        return run_page(lines, summary_of(lines))
    first = _read(plan, alone=validation is None)
    if validation is None and isinstance(first, JobPlan):
        return job_page(first, *timelines(first))
    given = [first] if validation is None else [first, _read(validation)]
    if any(isinstance(record, JobPlan) for record in given):
        raise DataError("a job's plan has no validation", hint="report the plan alone")
    plans = [record for record in given if isinstance(record, Plan)]
    validations = [record for record in given if isinstance(record, Validation)]
    if len(plans) != 1 or len(validations) > 1:
        had = " and ".join("a plan" if isinstance(each, Plan) else "a validation" for each in given)
        raise DataError(
            f"a page is of one plan, and of a validation where there is one; given was {had}",
            hint="underclock report plan.json validation.json -o report.html",
        )
    for record in validations:
        _check_same(plans[0], record)
    # A plan that sets nothing is validated without running anything: there is nothing to show.
    shown = [record for record in validations if record.repeats > 0]
    return page(plans[0], shown[0] if shown else None)


def _chrome_trace(plan: Path, validation: Path | None) -> str:
    from underclock.report.chrome import job_trace, step_trace

    record = _read(plan, alone=True)
    if validation is not None or isinstance(record, Validation):
        hint = "give the plan, and no validation"
        raise DataError("a Chrome trace is of a plan alone", hint=hint)
    if isinstance(record, Plan):
        return step_trace(record)
    return job_trace(record, *timelines(record))


def timelines(plan: "JobPlan") -> "tuple[tuple[Span, ...], tuple[Span, ...]]":
    """Return what ranks do at auto, and under a plan."""
    from underclock.core.job.tables import auto_clocks, timeline

    job = plan.job
    return timeline(job, auto_clocks(job)), timeline(job, plan.clocks, plan.latency_s)


def _read(
    given: "Plan | Validation | JobPlan | str | Path", *, alone: bool = False
) -> "Plan | Validation | JobPlan":
    """Return a record that a page is of, whichever a file holds; of a job's plan where alone."""
    from underclock.records.job import JobPlan
    from underclock.store import kind_of, read_document

    if not isinstance(given, str | Path):
        return given
    path = Path(given)
    kind = kind_of(path)
    if kind == "samples":
        hint = f"`underclock plan {path} -o plan.json`, then report plan.json"
        raise DataError(f"{path} holds samples, and a page is of a plan", hint=hint)
    if kind in _OTHERS:
        raise DataError(f"{path} is a {kind} file, and a page is of a plan", hint=_OTHERS[kind])
    if kind == "job plan" and alone:
        return read_document(path, JobPlan)
    return read_document(path, Validation) if kind == "validation" else read_document(path, Plan)


def _check_same(plan: Plan, validation: Validation) -> None:
    """Refuse to show a plan with a validation of another plan, or of another evidence."""
    arm = plan.find(validation.chosen)
    promise = None if arm is None else arm.cost
    promised = (validation.promised_time_change, validation.promised_energy_change)
    if (
        promise is None
        or (promise.time_change, promise.energy_change) != promised
        or (plan.evidence, plan.workload) != (validation.evidence, validation.workload)
        or plan.gpu.name != validation.gpu.name
    ):
        raise DataError(
            f"the validation is of another plan: {validation.workload} on {validation.gpu.name}, "
            f"{validation.evidence}",
            hint="validate this plan, then report both",
        )


@click.command(name="report")
@file_argument("plan")
@file_argument("validation", required=False)
@delivered("page", required=True)
def command(*, plan: Path, validation: Path | None, to: Delivery) -> None:
    """Write PLAN and a VALIDATION of it, in either order, as one page that needs no network.

    PLAN may be of a job of many GPUs too. Named FILE.trace.json, the output is a Chrome trace of
    the plan with clocks, power and joules, for Perfetto.

    In place of a plan, the log that `underclock run --log` wrote gives a page of that run.

    Example: underclock report plan.json validation.json -o report.html
    """
    is_trace = to.output is not None and to.output.name.endswith(".trace.json")
    to.check(plan, validation, begins="{" if is_trace else "<")
    to.write(_chrome_trace(plan, validation) if is_trace else render_report(plan, validation))
    if to.as_json and to.output != STDOUT:
        print_json({"report": str(to.output)})
