"""``underclock demo``: the whole way on the simulated GPU, from GPT-3 XL to a page."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from underclock.app.options import folder_option, force_option, json_option
from underclock.app.output import make_folder, print_json, print_table, progress_bar
from underclock.app.validate import validation_parts
from underclock.errors import UnderclockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from underclock.campaign.progress import Tally
    from underclock.records import Plan, Validation

_GPU = "sim:rtx3080ti"
_FILES = ("step.json", "samples.db", "plan.json", "validation.json", "report.html")


@click.command(name="demo")
@folder_option("Where the files go.", default=Path("underclock-demo"))
@json_option
@force_option
def command(*, output: Path, as_json: bool, force: bool) -> None:
    """Plan GPT-3 XL's training step on a simulated RTX 3080 Ti, and write a page about it.

    After Ctrl-C, the same command goes on where it stopped.

    Example: underclock demo -o underclock-demo
    """
    from underclock.report import plan_tables

    with progress_bar("demo") as show:
        made, validation = run_demo(output, force=force, progress=show)
    page = output / _FILES[-1]
    if as_json:
        print_json({"plan": made, "validation": validation, "report": str(page)})
        return
    print_table(*plan_tables(made), *validation_parts(validation), f"page: {page}")


def run_demo(
    folder: Path,
    *,
    max_slowdown: float = 0.01,
    seed: int = 0,
    force: bool = False,
    progress: "Callable[[Tally], None] | None" = None,
) -> "tuple[Plan, Validation]":
    """Trace, measure, plan, validate and report into a folder.

    A demo that was interrupted goes on: what it had measured is kept.

    Args:
        folder: Made if it is missing.
        max_slowdown: Time budget, as a fraction above auto.
    """
    from underclock import Goal, Step, measure, plan, trace, validate, write_report
    from underclock.store import check_output, read_document, write_document

    goal = Goal(max_slowdown=max_slowdown)
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
    sample_set = measure(step, gpu=_GPU, to=samples, seed=seed, progress=progress)
    made = plan(sample_set, goal, latency="known")
    write_document(plan_file, made, force=force)
    validation = validate(made, gpu=_GPU, seed=seed, progress=progress)
    write_document(validation_file, validation, force=force)
    write_report(made, to=page, validation=validation, force=force)
    return made, validation
