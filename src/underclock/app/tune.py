"""``underclock tune``."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from underclock.app import measure as measuring
from underclock.app import run as running
from underclock.app.options import DURATION, FRACTION, folder_option
from underclock.app.output import counted_bar, print_table, progress_bar, say, warn
from underclock.errors import InfeasibleError, UsageError

if TYPE_CHECKING:
    from underclock.core.planning.goal import Goal
    from underclock.hw.gpu_names import GpuName
    from underclock.records import Plan


@click.command(name="tune")
@click.option("--gpu", default="nvml:0", show_default=True, metavar="GPU", help="Or sim:rtx3080ti.")
@folder_option("Where the files go, and are found again.", default=Path("underclock-tune"))
@click.option("--max-slowdown", type=FRACTION, default=0.01, help="Time budget. [default: 1%]")
@click.option("--time-limit", type=DURATION, help="GPU time to measure for, as of `measure`.")
@click.option("--precision", type=FRACTION, help="How sure to be, as of `measure`.")
@click.option("--latency", help="What changing clocks takes, as of `plan`. [default: known]")
@click.option("--hold", is_flag=True, help="Go on: train under the plan.")
@click.option("--arms", default="", help="With --hold: arms that take turns, as of `run`.")
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND")
@click.pass_context
def command(
    context: click.Context,
    *,
    gpu: str,
    output: Path,
    max_slowdown: float,
    time_limit: float | None,
    precision: float | None,
    latency: str | None,
    hold: bool,
    arms: str,
    command_line: tuple[str, ...],
) -> None:
    """Find clocks for a training COMMAND: trace, measure, plan, report, each into one folder.

    Where clocks may not be locked they are steered, which needs no permission. On a simulated GPU
    the script runs on the CPU, and its kernels are assumed. What is on file already is not done
    again, so the same command goes on after Ctrl-C.

    Example: underclock tune --gpu sim:rtx3080ti -- python train.py --epochs 3
    """
    from underclock.app.report import write_report
    from underclock.app.tuning import (
        measure_apart,
        measured_for,
        planned_before,
        runs_elsewhere,
        to_hold,
        trace_apart,
        traced_once,
        training_of,
    )
    from underclock.core.planning.goal import Goal
    from underclock.hw.gpu_names import parse_gpu
    from underclock.store import write_document
    from underclock.tracing.held import may_lock
    from underclock.tracing.source import TracePhase

    try:
        goal = Goal(max_slowdown=max_slowdown)
    except ValueError as exc:
        raise UsageError(str(exc), hint="write for example --max-slowdown 1%") from exc
    name = parse_gpu(gpu)
    assume = runs_elsewhere(name)
    script = training_of(command_line, assume=assume)
    _make(output)
    step_file, samples, plan_file, page = (
        output / file for file in ("step.json", "samples.db", "plan.json", "report.html")
    )
    if not assume and not step_file.exists():
        _done_apart(trace_apart(script, step_file))
    phases = list(TracePhase)
    with counted_bar("tracing") as show:
        step = traced_once(
            script,
            step_file,
            assume=assume,
            progress=lambda phase: show(phases.index(phase), len(phases), phase),
        )
    assumed = ", assumed: no GPU was seen" if step.is_assumed else ""
    say(f"{step.name}: {len(step.kernels)} kernels, {len(step.order)} launches a step{assumed}")
    held = assume or may_lock()
    say(f"clocks are {'held' if held else 'steered'} to measure")
    own = (time_limit, precision, latency) != (None, None, None)
    made = None if own else planned_before(plan_file, samples, name, goal)
    if made is None:
        how = measured_for(script, max_slowdown, held=held)
        how |= {"time_limit": time_limit, "precision": precision}
        if assume:
            context.invoke(measuring.command, step=step_file, gpu=gpu, output=samples, **how)
        else:
            _done_apart(measure_apart(step_file, name, samples, **how))
        made = _plan(samples, goal, name, latency)
        write_document(plan_file, made, force=True)
        write_report(made, to=page, force=True)
    else:
        say(f"{plan_file} is there already; remove it to plan anew", err=True)
    _show(made, output, command_line, step.warnings)
    if made.headline.cost is None:
        sys.exit(InfeasibleError.exit_code)
    if hold:
        with to_hold(name) as there:
            context.invoke(
                running.command, plan=plan_file, gpus=(there,), arms=arms, command_line=command_line
            )


def _done_apart(command: list[str]) -> None:
    """Run a command in a process of its own; end as it does where it fails, for it said why."""
    from underclock.app.tuning import run_apart

    if code := run_apart(command):
        sys.exit(code)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageError(f"cannot make {folder}: {exc.strerror}") from exc


def _plan(samples: Path, goal: "Goal", gpu: "GpuName", latency: str | None) -> "Plan":
    """Plan at the latency that was named, or at what is measured or known."""
    from underclock.app.planning import plan
    from underclock.app.switching import KNOWN, switching_of
    from underclock.store import read_samples

    if latency is None and gpu.is_simulated:
        _measure_latency(gpu, samples.with_suffix(".latency.json"))
    sample_set = read_samples(samples)
    switching = switching_of(latency or KNOWN, sample_set, goal, samples)
    if switching is not None:
        switching = replace(switching, curve=False)  # `plan` tells of other latencies
    with counted_bar("planning") as show:
        return plan(sample_set, goal, switching=switching, progress=show)


def _measure_latency(gpu: "GpuName", file: Path) -> None:
    """Measure how long clocks take to change, unless that is on file."""
    from underclock.app.latency import measure_latency
    from underclock.store import write_document

    if not file.exists():
        with progress_bar("changing clocks") as show:
            write_document(file, measure_latency(gpu.text, progress=show))


def _show(made: "Plan", folder: Path, command_line: tuple[str, ...], said: Sequence[str]) -> None:
    """Print the answer on one screen, and how to hold it."""
    from underclock.report import plan_tables

    warn(tuple(sentence for sentence in made.warnings if sentence not in said))
    print_table(*plan_tables(made, brief=True))
    say(f"everything: {folder / 'report.html'}")
    if made.schedule is not None:
        say(f"to train so: underclock run {folder / 'plan.json'} -- {shlex.join(command_line)}")
