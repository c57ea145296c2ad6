"""report: a plan, and how it validated, as one page."""

from pathlib import Path
from typing import Final

import msgspec

from underclock.errors import DataError
from underclock.paper.records import Study
from underclock.records import Plan, Record, Score, Step, Validation
from underclock.records.fitted import GpuFit
from underclock.records.latencies import LatencyTable
from underclock.report import page
from underclock.store import check_output, read_document, write_text

_SQLITE: Final = b"SQLite format 3\0"
_OTHERS: Final[dict[type[Record], tuple[str, str]]] = {
    Step: ("a traced step", "`underclock measure` and `underclock plan` make a plan of it"),
    LatencyTable: ("a table of latencies", "give the plan that was made with it"),
    Score: ("a score", "give the plan that was scored"),
    GpuFit: ("a fit", "`underclock plan` makes a plan of the same samples"),
    Study: ("a study of the paper", "its page was written beside it"),
}


def write_report(
    plan: Plan | Validation | str | Path,
    *,
    to: str | Path,
    validation: Plan | Validation | str | Path | None = None,
    force: bool = False,
) -> Path:
    """Write the page.

    Args:
        plan: A plan, or its file.
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
    path = Path(to)
    check_output(path, force=force)
    write_text(path, render_report(plan, validation), force=force)
    return path


def render_report(
    plan: Plan | Validation | str | Path, validation: Plan | Validation | str | Path | None = None
) -> str:
    """Return the page as text; arguments and errors are those of `write_report`."""
    given = [_read(each) for each in (plan, validation) if each is not None]
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


def _read(given: Plan | Validation | str | Path) -> Plan | Validation:
    """Return a plan or a validation, whichever a file holds.

    Raises:
        DataError: It cannot be read, or holds something else.
    """
    if isinstance(given, Plan | Validation):
        return given
    path = Path(given)
    try:
        body = path.read_bytes()
    except OSError:
        return read_document(path, Plan)  # which says what is wrong
    if body.startswith(_SQLITE):
        raise DataError(
            f"{path} holds samples, and a page is of a plan",
            hint=f"`underclock plan {path} -o plan.json`, then report plan.json",
        )
    if _holds(body, Validation):
        return read_document(path, Validation)
    for kind, (noun, hint) in _OTHERS.items():
        if _holds(body, kind):
            raise DataError(f"{path} is {noun}, and a page is of a plan", hint=hint)
    return read_document(path, Plan)


def _holds(body: bytes, kind: type[Record]) -> bool:
    """Whether a file has every field that a record of this kind must have."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    required = {field.encode_name for field in msgspec.structs.fields(kind) if field.required}
    return required <= fields.keys()


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
