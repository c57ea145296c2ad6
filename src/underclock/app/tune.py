"""``underclock tune``."""

import shlex
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from underclock.app import measure as measuring
from underclock.app import run as running
from underclock.app.options import DURATION, FRACTION, details_option, folder_option
from underclock.app.output import make_folder, phase_bar, print_table, say, share_bar, warn
from underclock.errors import NotAppliedError, NotSupportedError

if TYPE_CHECKING:
    from underclock.app.tuning import Answers
    from underclock.core.planning.best_choice import Goal
    from underclock.hw.base import GpuName
    from underclock.records import Plan, Step
    from underclock.tracing.source import TrainingCommand

_STEERED_S = 180.0  # of the GPU's time, by default
_REPEATS = 5  # of each change of clocks: 11 to 45 s of the GPU's time


@click.command(name="tune")
@click.option("--gpu", metavar="GPU", help="nvml:0 or sim:rtx3080ti. [default: CUDA's first]")
@folder_option("Where the files go, and are found again.", default=Path("underclock-tune"))
@click.option("--max-slowdown", type=FRACTION, default=0.01, help="Time budget. [default: 1%]")
@click.option("--time-limit", type=DURATION, help="GPU time to measure for: 20min.")
@click.option("--precision", type=FRACTION, help="Measure until the promise is this sure: 0.3%.")
@click.option("--latency", help="What changing clocks takes: free, measured or 6ms.")
@click.option("--hold", is_flag=True, help="Go on: train, from the plan's clocks on.")
@details_option
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
    details: bool,
    command_line: tuple[str, ...],
) -> None:
    """Find clocks for a training COMMAND: trace, measure, plan, report, each into one folder.

    Where clocks may not be locked they are steered, which needs no permission. On a simulated GPU
    the script runs on the CPU, and its kernels are assumed. What is on file already is not done
    again, so the same command goes on after Ctrl-C.

    Example: underclock tune --gpu sim:rtx3080ti -- python train.py --epochs 3
    """
    from underclock.app.report import write_report
    from underclock.app.tuning import Answers, planned_before, runs_elsewhere
    from underclock.core.planning.best_choice import Goal
    from underclock.hw.base import parse_gpu
    from underclock.hw.nvml import shown_by_cuda
    from underclock.report import plan_parts
    from underclock.store import write_document
    from underclock.tracing.held import may_lock
    from underclock.tracing.source import TrainingCommand

    training, goal = TrainingCommand.of(command_line), Goal(max_slowdown=max_slowdown)
    gpu = gpu or shown_by_cuda()[0]
    name = parse_gpu(gpu)
    assume = runs_elsewhere(name)
    make_folder(output)
    step_file, samples, plan_file, page = (
        output / file for file in ("step.json", "samples.db", "plan.json", "report.html")
    )
    held = assume or may_lock()
    limit_s = time_limit or (None if held else _STEERED_S)
    # What is steered serves every plan.
    words = ["--max-slowdown", f"{max_slowdown:.15g}"] if held and max_slowdown else []
    words += [] if limit_s is None else ["--time-limit", f"{limit_s:f}s"]
    words += [] if precision is None else ["--precision", f"{precision:.15g}"]
    words += ["--gpu", gpu, "-o", f"{samples}"]
    answers, traced = Answers(samples, goal), step_file.exists()
    try:
        step = _traced(
            training, step_file, samples, answers, gpu=name, assume=assume, measure=tuple(words)
        )
    except BaseException:
        with suppress(OSError):  # there is something in it
            output.rmdir()
        raise
    if not step.obstacle:
        say(f"clocks are {'held' if held else 'steered'} to measure")
    as_before = time_limit is None and precision is None and latency is None
    made = planned_before(plan_file, samples, name, goal) if as_before else None
    if made is None:
        both = (f"{step_file}", *words)
        if assume:
            measuring.command(both, standalone_mode=False)
        elif traced and not step.obstacle:
            with phase_bar("measuring") as answers.show:
                measuring.measure_in_command(training, both, meanwhile=answers.refresh)
        elif not samples.exists():
            raise NotSupportedError(
                f"{step.obstacle}, and its steps passed too soon for their energy to be read",
                hint="let the script take more steps, or larger ones",
            )
        if latency is None and held:
            _measure_latency(gpu, samples)
        made = _plan(samples, goal, latency)
        write_document(plan_file, made, force=True)
        write_report(made, to=page, force=True)
    else:
        say(f"{plan_file} is there already; remove it to plan anew", err=True)
    warn(tuple(sentence for sentence in made.warnings if sentence not in step.warnings))
    print_table(*plan_parts(made, f"{plan_file}", shlex.join(command_line), details=details))
    if more := answers.more(made):
        say(f"{more}: the same command with a longer --time-limit")
    say(f"Page: {page}{'' if details else '; more here: the same command with --details'}")
    if hold:
        with running.on_which_to_train((gpu,)) as there:
            asked: dict[str, Any] = {"gpus": there, "max_slowdown": max_slowdown}
            asked["learn"] = not any(e.mem_mhz for e in made.launch_clocks)  # which is not learned
            running.train(f"{plan_file}", command_line, **asked)


def _traced(
    command: "TrainingCommand",
    file: Path,
    samples: Path,
    answers: "Answers",
    *,
    gpu: "GpuName",
    assume: bool,
    measure: tuple[str, ...],
) -> "Step":
    """Return the step on file, or trace and measure it in one run; of ranks the first one's."""
    from underclock.app.launching import trace_command
    from underclock.app.tuning import keep_running, traced_before
    from underclock.store import write_document

    step = traced_before(command, file, assume=assume)
    if step is None:
        say(f"running {shlex.join(command.words)} for real, until a step was traced", err=True)
        with phase_bar("tracing") as show:
            answers.show = show
            ranks = trace_command(
                command,
                to=file,
                assume=assume,
                force=True,
                measure=() if assume else measure,
                progress=show,
                say=partial(say, err=True),
                meanwhile=answers.refresh,
            )
        step = ranks[0].step
        write_document(file, step, force=True)
        if not assume and ranks[0].running is not None and not samples.exists():
            keep_running(step, ranks[0].running, gpu, samples)
            warn((f"{step.obstacle}: measured as it ran, at the driver's own clocks",))
        if len(ranks) > 1:
            say(f"{len(ranks)} ranks train together; the step of the first is tuned, for all")
    assumed = ", assumed: no GPU was seen" if step.is_assumed else ""
    say(f"{step.name}: {len(step.kernels)} kernels, {len(step.order)} launches a step{assumed}")
    return step


def _measure_latency(gpu: str, samples: Path) -> None:
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
    from underclock.app.planning import KNOWN, plan, switching_of
    from underclock.store import read_samples

    sample_set = read_samples(samples)
    takes: dict[str, Any] = {"latency": latency or KNOWN}
    switching = switching_of(takes["latency"], sample_set, goal, samples)
    if switching is not None:
        takes = {"switching": replace(switching, curve=False)}  # `plan` has other latencies
    with share_bar("planning"):
        return plan(sample_set, goal, **takes)
