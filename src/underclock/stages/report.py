"""report: a plan, and how it validated, as one page."""

from pathlib import Path

from underclock.errors import DataError
from underclock.records import Plan, Validation
from underclock.report import page
from underclock.stages.sources import as_plan
from underclock.store import check_output, read_document, write_text


def write_report(
    plan: Plan | str | Path,
    *,
    to: str | Path,
    validation: Validation | str | Path | None = None,
    force: bool = False,
) -> Path:
    """Write the page.

    Args:
        plan: A plan, or its file.
        to: Where the page goes.
        validation: Of this plan, or its file.
        force: Whether an existing file may be replaced.

    Returns:
        Where it went.

    Raises:
        UsageError: The file exists or cannot be written.
        DataError: A file cannot be read, or the validation is of another plan.
    """
    path = Path(to)
    check_output(path, force=force)
    write_text(path, render_report(plan, validation), force=force)
    return path


def render_report(
    plan: Plan | str | Path, validation: Validation | str | Path | None = None
) -> str:
    """Return the page as text; arguments and errors are those of `write_report`."""
    plan = as_plan(plan)
    if isinstance(validation, str | Path):
        validation = read_document(Path(validation), Validation)
    if validation is not None:
        _check_same(plan, validation)
        if validation.repeats == 0:  # of a plan that sets nothing: there is nothing to show
            validation = None
    return page(plan, validation)


def _check_same(plan: Plan, validation: Validation) -> None:
    """Refuse to show a plan beside numbers of another, or of another kind."""
    promise = plan.promise
    theirs = (
        validation.evidence,
        validation.gpu.name,
        validation.workload,
        validation.chosen,
        validation.promised_time_change,
        validation.promised_energy_change,
    )
    ours = (
        plan.evidence,
        plan.gpu.name,
        plan.workload,
        plan.chosen,
        promise.time_change,
        promise.energy_change,
    )
    if ours != theirs:
        raise DataError(
            f"the validation is of another plan: {validation.workload} on {validation.gpu.name}, "
            f"{validation.evidence}",
            hint="validate this plan, then report both",
        )
