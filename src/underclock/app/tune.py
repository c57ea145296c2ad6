"""``underclock tune``."""

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from underclock.app import measure as measuring
from underclock.app import run as running
from underclock.app.options import DURATION, FRACTION, folder_option
from underclock.app.output import (
    make_folder,
    phase_bar,
    print_table,
    say,
    share_bar,
    warn,
)
from underclock.errors import NotAppliedError, NotSupportedError

if TYPE_CHECKING:
    from underclock.core.planning.goal import Goal
    from underclock.hw.gpu_names import GpuName
    from underclock.records import Plan, Step
    from underclock.tracing.source import TrainingCommand

_REPEATS = 5  # of each change of clocks: 11 to 45 s of the GPU's time


@click.command(name="tune")
@click.option("--gpu", metavar="GPU", help="Or sim:rtx3080ti. [default: the first CUDA shows]")
@folder_option("Where the files go, and are found again.", default=Path("underclock-tune"))
@click.option("--max-slowdown", type=FRACTION, default=0.01, help="Time budget. [default: 1%]")
@click.option("--time-limit", type=DURATION, help="GPU time to measure for, as of `measure`.")
@click.option("--precision", type=FRACTION, help="How sure to be, as of `measure`.")
@click.option("--latency", help="What changing clocks takes, as of `plan`. [default: known]")
@click.option("--hold", is_flag=True, help="Go on: train under the plan.")
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND")
def command(
    *,
    gpu: str | None,
    output: Path,
    max_slowdown: float,
    time_limit: float | None,
    precision: float | None,
    latency: str | None,
    hold: bool,
    command_line: tuple[str, ...],
) -> None:
    """Find clocks for a training COMMAND: trace, measure, plan, report, each into one folder.

    Where clocks may not be locked they are steered, which needs no permission. On a simulated GPU
    the script runs on the CPU, and its kernels are assumed. What is on file already is not done
    again, so the same command goes on after Ctrl-C.

    Example: underclock tune --gpu sim:rtx3080ti -- python train.py --epochs 3
    """
    from underclock.app.report import write_report
    from underclock.app.tuning import planned_before, runs_elsewhere
    from underclock.core.planning.goal import Goal
    from underclock.hw.gpu_names import parse_gpu
    from underclock.hw.nvml import shown_by_cuda
    from underclock.store import write_document
    from underclock.tracing.held import may_lock
    from underclock.tracing.source import TrainingCommand

    gpu = gpu or shown_by_cuda()[0]
    goal, name = Goal(max_slowdown=max_slowdown), parse_gpu(gpu)
    assume = runs_elsewhere(name)
    training = TrainingCommand.of(command_line)
    make_folder(output)
    step_file, samples, plan_file, page = (
        output / file for file in ("step.json", "samples.db", "plan.json", "report.html")
    )
    try:
        step = _traced(training, step_file, assume=assume)
    except BaseException:
        with suppress(OSError):  # there is something in it
            output.rmdir()
        raise
    held = assume or may_lock()
    say(f"clocks are {'held' if held else 'steered'} to measure")
    own = (time_limit, precision, latency) != (None, None, None)
    made = None if own else planned_before(plan_file, samples, name, goal)
    if made is None:
        # What is steered serves every plan.
        words = ["--max-slowdown", f"{max_slowdown:.15g}"] if held and max_slowdown else []
        words += [] if time_limit is None else ["--time-limit", f"{time_limit:f}s"]
        words += [] if precision is None else ["--precision", f"{precision:.15g}"]
        words = [f"{step_file}", "--gpu", gpu, "-o", f"{samples}", *words]
        words += [] if assume else ["--", *training.words]
        measuring.command(words, standalone_mode=False)
        if latency is None and held:
            _measure_latency(gpu, samples)
        made = _plan(samples, goal, latency)
        write_document(plan_file, made, force=True)
        write_report(made, to=page, force=True)
    else:
        say(f"{plan_file} is there already; remove it to plan anew", err=True)
    _show(made, output, command_line, step.warnings)
    if hold:
        _hold(plan_file, name, command_line)


def _traced(command: "TrainingCommand", file: Path, *, assume: bool) -> "Step":
    """Return the step on file, or trace it; of several ranks the first one's is tuned."""
    from underclock.app.launching import trace_command
    from underclock.app.tuning import traced_before
    from underclock.store import write_document
    from underclock.tracing.source import TRACING

    step = traced_before(command, file, assume=assume)
    if step is None:
        say(f"running {shlex.join(command.words)} for real, until a step was traced", err=True)
        with phase_bar("tracing", TRACING) as show:
            meanwhile = partial(say, err=True)
            ranks = trace_command(
                command, to=file, assume=assume, force=True, progress=show, say=meanwhile
            )
        step = ranks[0].step
        if len(ranks) > 1 and not assume:
            raise NotSupportedError(
                f"{len(ranks)} ranks train together, and kernels of their step cannot run alone: "
                "what other clocks would save is not known before they are held",
                hint=f"what each rank runs is in {file.with_suffix('')}.rank*; `underclock job "
                "traced` lays the job out",
            )
        write_document(file, step)
        if len(ranks) > 1:
            say(f"{len(ranks)} ranks train together; the step of the first is tuned, for all")
    assumed = ", assumed: no GPU was seen" if step.is_assumed else ""
    say(f"{step.name}: {len(step.kernels)} kernels, {len(step.order)} launches a step{assumed}")
    return step


def _measure_latency(gpu: str, samples: Path) -> None:
    """Measure how long clocks take to change, into the file next to samples that plans take."""
    from underclock.app.latency import measure_latency
    from underclock.store import write_document

    place = samples.with_suffix(".latency.json")
    if place.exists():
        return
    say("measuring how long clocks take to change", err=True)
    try:
        write_document(place, measure_latency(gpu, repeats=_REPEATS))
    except (NotAppliedError, NotSupportedError) as exc:
        warn((f"{exc}: the plan takes what is reported of such GPUs",))


def _plan(samples: Path, goal: "Goal", latency: str | None) -> "Plan":
    """Plan at the latency that was named, or at what is known."""
    from underclock.app.planning import plan
    from underclock.app.switching import KNOWN, switching_of
    from underclock.store import read_samples

    sample_set = read_samples(samples)
    takes: dict[str, Any] = {"latency": latency or KNOWN}
    switching = switching_of(takes["latency"], sample_set, goal, samples)
    if switching is not None:
        takes = {"switching": replace(switching, curve=False)}  # `plan` has other latencies
    with share_bar("planning"):
        return plan(sample_set, goal, **takes)


def _show(made: "Plan", folder: Path, command_line: tuple[str, ...], said: Sequence[str]) -> None:
    """Print the answer on one screen, and how to hold it."""
    from underclock.report import plan_tables
    from underclock.runtime.policy.arms import LEAST_ROUNDS, ArmName, Arms
    from underclock.units import format_duration

    warn(tuple(sentence for sentence in made.warnings if sentence not in said))
    print_table(*plan_tables(made, brief=True))
    say(f"everything: {folder / 'report.html'}")
    if made.schedule is not None and not made.sets_nothing:
        arms = Arms(names=(ArmName.AUTO, ArmName.PLAN))
        arms.size(step_s := sum(made.schedule.launch_s))
        steps = arms.needs(LEAST_ROUNDS)
        takes = f"{steps} steps, about {format_duration(steps * step_s)}"
        run = (
            f"underclock run {folder / 'plan.json'} --arms auto,plan -- {shlex.join(command_line)}"
        )
        say(f"to train so, and measure in {takes}, what it saves: {run}")


def _hold(plan: Path, gpu: "GpuName", command_line: tuple[str, ...]) -> None:
    from underclock.app.tuning import to_hold

    with to_hold(gpu) as there:
        words = [f"{plan}", "--gpu", there, "--", *command_line]
        running.command(words, standalone_mode=False)
