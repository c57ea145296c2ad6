"""``underclock demo``: the whole way on the simulated GPU, from GPT-3 XL to a page."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from underclock.app.options import details_option, folder_option, force_option, json_option
from underclock.app.output import make_folder, print_json, print_table, progress_bar
from underclock.errors import UnderclockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from underclock.campaign.progress import Tally
    from underclock.records import Plan, Validation

_GPU, _SAMPLES, _SLOWDOWN, _REPEATS = "sim:rtx3080ti", 190, 0.01, 4
_FILES = ("step.json", "samples.db", "plan.json", "validation.json", "report.html")


@click.command(name="demo")
@folder_option("Where the files go.", default=Path("underclock-demo"))
@details_option
@json_option
@force_option
def command(*, output: Path, details: bool, as_json: bool, force: bool) -> None:
    """Plan GPT-3 XL's training step on a simulated RTX 3080 Ti, and write a page about it.

    After Ctrl-C, the same command goes on where it stopped; later it shows the same answer again.

    Example: underclock demo -o underclock-demo
    """
    from underclock.report import plan_parts

    done = None if force else _done(output)
    if done is None:
        with progress_bar("demo") as show:
            done = run_demo(output, force=force, progress=show)
    (made, validation), page = done, output / _FILES[-1]
    if as_json:
        print_json({"plan": made, "validation": validation, "report": str(page)})
        return
    answer = plan_parts(made, f"{output / _FILES[2]}", details=details, validation=validation)
    print_table(*answer, f"Page: {page}{'' if details else '; more here: --details'}")


def _done(folder: Path) -> "tuple[Plan, Validation] | None":
    """Return what a whole demo found earlier in a folder; ``None`` where it did not end."""
    from underclock import Plan, Step, Validation, trace
    from underclock.store import read_document

    step, _, plan, validation, page = (folder / name for name in _FILES)
    with suppress(UnderclockError):
        if page.exists() and read_document(step, Step) == trace("gpt3-xl"):
            return read_document(plan, Plan), read_document(validation, Validation)
    return None


def run_demo(
    folder: Path, *, force: bool = False, progress: "Callable[[Tally], None] | None" = None
) -> "tuple[Plan, Validation]":
    """Trace, measure, plan, validate and report into a folder.

    A demo that was interrupted goes on: what it had measured is kept.
    """
    from underclock import Goal, Step, measure, plan, trace, validate, write_report
    from underclock.campaign.grid import Campaign
    from underclock.store import check_output, read_document, write_document

    make_folder(folder)
    paths = [folder / name for name in _FILES]
    step_file, samples, plan_file, validation_file, page = paths
    step = trace("gpt3-xl")
    goes_on = False
    if not force and not page.exists():
        with suppress(UnderclockError):
            goes_on = read_document(step_file, Step) == step
    for path in paths:
        check_output(path, force=force or goes_on, over_samples=path == samples)
    if not goes_on:
        samples.unlink(missing_ok=True)
        write_document(step_file, step, force=force)
    force |= goes_on
    campaign = Campaign(max_samples=_SAMPLES, slowdowns=(_SLOWDOWN,))
    taken = measure(step, gpu=_GPU, to=samples, campaign=campaign, progress=progress)
    made = plan(taken, Goal(max_slowdown=_SLOWDOWN))
    write_document(plan_file, made, force=force)
    validation = validate(made, gpu=_GPU, progress=progress, repeats=_REPEATS, only_plan=True)
    write_document(validation_file, validation, force=force)
    write_report(made, to=page, validation=validation, force=force)
    return made, validation
