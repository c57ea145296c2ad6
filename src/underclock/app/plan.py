"""``underclock plan``."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from underclock.app.options import (
    FRACTION,
    Command,
    MoreOption,
    baseline_option,
    choice_option,
    delivered,
    details_option,
    more_option,
)
from underclock.app.output import STDOUT, Delivery, confirmed, print_json, say, share_bar
from underclock.errors import UsageError
from underclock.records import Clocks, Granularity, Objective

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from underclock.records import Plan, SampleSet


@click.command(name="plan", cls=Command)
@click.argument("samples", type=click.Path(path_type=Path), nargs=-1, required=True)
@choice_option(
    "--objective",
    Objective,
    "waste: least energy within the time budget; edp: energy x time; ed2p; energy.",
    default="waste",
)
@click.option(
    "--max-slowdown",
    type=FRACTION,
    multiple=True,
    help="Time budget of waste: 1% or 0.01; more than once for several. [default: 1%]",
)
@choice_option(
    "--granularity", Granularity, "What gets its own clocks.", default="kernel", cls=MoreOption
)
@baseline_option
@click.option(
    "--latency",
    default=("known",),
    show_default=True,
    multiple=True,
    help="What changing clocks takes: free, measured, a duration or a file; known: measured next "
    "to SAMPLES, or what is reported of GPUs like it. More than once for several.",
)
@more_option("--yes", is_flag=True, help="Take a table's columns for what they seem to be.")
@more_option("--max-switches", type=int, help="Most changes of clocks in a step.")
@details_option
@delivered("plan")
def command(
    *,
    samples: tuple[Path, ...],
    latency: tuple[str, ...],
    max_slowdown: tuple[float, ...],
    yes: bool,
    details: bool,
    to: Delivery,
    **asked: Any,  # noqa: ANN401 - what a `Goal` has, by its names
) -> None:
    """Choose clocks for every kernel of SAMPLES: a samples file or a CSV table.

    Several files, budgets or latencies make a plan of each, into the folder after -o.

    SAMPLES may be a job of many GPUs too, from `underclock job`: every rank is then as slow as no
    other notices.

    The answer counts what changing clocks takes, as far as that is known. Exit codes: 0 planned; 6
    nothing keeps the time budget.

    Example: underclock plan samples.db -o plan.json
    """
    from underclock.report import plan_parts
    from underclock.store import kind_of, read_samples

    def read(file: Path) -> "SampleSet":
        return read_samples(file, confirm=lambda line: yes or confirmed(line))

    cells = list(itertools.product(samples, max_slowdown or (None,), latency))
    if len(cells) > 1:
        _plan_grid(cells, to, read, asked)
        return
    ((file, budget, takes),) = cells
    to.check(file, Path(takes))
    if kind_of(file) == "job":
        _plan_job(file, to, {} if budget is None else {"max_slowdown": budget}, latency=takes)
        return
    sample_set = read(file)
    with share_bar("planning"):
        made = _planned(sample_set, file, budget, takes, **asked)
    to.give(made, lambda: plan_parts(made, f"{to.output or 'plan.json'}", details=details))


def _planned(
    sample_set: "SampleSet",
    samples: Path,
    max_slowdown: float | None,
    latency: str,
    *,
    baseline: Clocks | None,
    max_switches: int | None,
    **asked: Any,  # noqa: ANN401 - what a `Goal` has, by its names
) -> "Plan":
    from underclock.app.planning import plan, switching_of
    from underclock.core.planning.best_choice import Goal

    if max_slowdown is not None and asked["objective"] != Objective.WASTE:
        hint = "only waste has a time budget"
        raise UsageError(f"--max-slowdown has no meaning for {asked['objective']}", hint=hint)
    goal = Goal(**asked) if max_slowdown is None else Goal(max_slowdown=max_slowdown, **asked)
    takes: dict[str, Any] = {"latency": latency}
    switching = switching_of(latency, sample_set, goal, samples)
    if switching is not None:
        takes = {"switching": replace(switching, max_switches=max_switches)}
    elif max_switches is not None:
        raise UsageError(
            "limits on switching need a latency", hint="add --latency measured, or --latency 6ms"
        )
    return plan(sample_set, goal, baseline=baseline, **takes)


def _plan_grid(
    cells: "Sequence[tuple[Path, float | None, str]]",
    to: Delivery,
    read: "Callable[[Path], SampleSet]",
    asked: dict[str, Any],
) -> None:
    """Plan every file for every budget and latency, each into a file of a folder."""
    from underclock.core.planning.best_choice import DEFAULT_SLOWDOWN
    from underclock.store import check_output, write_document

    if to.output is None or to.output == STDOUT or to.output.is_file():
        raise UsageError(f"{len(cells)} plans go into a folder", hint="name one with -o")
    to.output.mkdir(parents=True, exist_ok=True)
    paths = [
        to.output / f"{file.stem}-{100 * (DEFAULT_SLOWDOWN if budget is None else budget):g}%-"
        f"{Path(takes).stem}.plan.json"
        for file, budget, takes in cells
    ]
    if twice := {path.name for path in paths if paths.count(path) > 1}:
        raise UsageError(
            f"two plans would be called {min(twice)}", hint="name files apart, and each once"
        )
    for path, (file, _, takes) in zip(paths, cells, strict=True):
        check_output(path, force=to.force, inputs=(file, Path(takes)), begins="{")
    plans = {}
    for path, cell in zip(paths, cells, strict=True):
        plans[path.name] = made = _planned(read(cell[0]), *cell, **asked)
        write_document(path, made, force=to.force)
        if not to.as_json:
            say(f"{path.name}: {' '.join(made.answer[:2])}")
    if to.as_json:
        print_json(plans)


_OF_JOBS = {"samples", "output", "max_slowdown", "as_json", "force", "latency"}


def _plan_job(job: Path, to: Delivery, asked: dict[str, float], *, latency: str) -> None:
    from underclock.app.stages import plan_job
    from underclock.report import job_plan_tables

    context = click.get_current_context()
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "")
        if parameter.name not in _OF_JOBS and given is ParameterSource.COMMANDLINE:
            hint = "a job has --max-slowdown and --latency"
            raise UsageError(f"{parameter.opts[0]} says nothing of a job", hint=hint)
    made = plan_job(job, latency=latency, **asked)
    to.give(made, lambda: job_plan_tables(made))
