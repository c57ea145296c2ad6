"""``underclock measure``."""

import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from underclock.app.options import (
    DURATION,
    FRACTION,
    MHZ_LIST,
    PACE,
    Command,
    file_argument,
    gpu_option,
    json_option,
    more_option,
    output_option,
    source_option,
    step_file,
)
from underclock.app.output import print_json, progress_bar, say, told_of_boards, warn
from underclock.errors import NotSupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from underclock.campaign.grid import Campaign
    from underclock.records import MeasurementSettings, SampleSet, Step
    from underclock.tracing.source import TrainingCommand

_WORDS = "underclock.words"
_NONE_ALONE = (
    "it ended before any kernel was run alone: `underclock measure` with a longer --time-limit, or "
    "more --max-samples, goes on from here"
)


class _KeepsWords(Command):
    """A command that keeps what was written after its name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_WORDS] = tuple(args)
        return super().parse_args(ctx, args)


@click.command(name="measure", cls=_KeepsWords)
@file_argument("step", required=False)
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND]")
@gpu_option
@output_option("samples", required=True, stdout=False)
@more_option(
    "--grid",
    type=click.Choice(["adaptive", "coarse", "full", "steer"]),
    help="steer: by co-load, without root. [default: adaptive, steered where clocks may not be "
    "held; coarse where clocks are named, or a table is replayed]",
)
@click.option(
    "--max-slowdown",
    "slowdowns",
    type=FRACTION,
    multiple=True,
    help="Adaptive: time budget of the plan; more than once for several. [default: 0, 1%]",
)
@click.option(
    "--precision",
    type=FRACTION,
    help="Adaptive: measure until the promise is this sure. [default: 1%]",
)
@click.option(
    "--time-limit",
    "time_limit_s",
    type=DURATION,
    help="Adaptive: or for this GPU time: 20min. [default: 20min after first looks; 10min steered]",
)
@more_option("--max-samples", type=int, help="Adaptive: or until this many samples are taken.")
@more_option("--core-mhz", type=MHZ_LIST, default=(), help="Only these: 1050,auto or 210:2100:210.")
@more_option("--mem-mhz", type=MHZ_LIST, default=(), help="Only these: 810,auto.")
@click.option(
    "--near",
    type=click.Path(path_type=Path),
    metavar="PLAN",
    help="Only auto and the clocks near this plan's, which was made on another GPU of the model.",
)
@more_option(
    "--window",
    "pace",
    type=PACE,
    metavar="[WARM,]MEASURED",
    help="How long each kernel warms and is measured. [default: 0.5s,1s; of a grid 25s,5s]",
)
@more_option(
    "--ray",
    is_flag=False,
    flag_value="",
    metavar="[ADDRESS]",
    help="Measure on many GPUs: all of a cluster with --gpu nvml, or sim:rtx3080ti*8.",
)
@source_option
@json_option
def command(
    *,
    step: Path | None,
    command_line: tuple[str, ...],
    gpu: str,
    output: Path,
    near: Path | None,
    pace: tuple[float | None, float] | None,
    ray: str | None,
    source: str,
    as_json: bool,
    **asked: Any,  # noqa: ANN401 - what a `Campaign` is asked for, by its names
) -> None:
    """Measure the kernels of STEP at the clock pairs that decide a plan, or at all of a grid.

    Goes on where an earlier run into the same file stopped. A replayed table brings its own
    kernels and needs no STEP.

    A step of a training COMMAND is measured in that command's own process: it runs for real until
    the step is captured, and ends once that is measured; files that it replaced are put back.

    A step with collectives that a function runs is measured under torchrun: the first rank measures
    its GPU, the further ranks run the step with it. Of STEP each reads its own, step.rank0.json and
    so on; with --gpu nvml:0 ranks of a machine run on its first GPUs, one each.

    On a cluster each task measures its GPU, and `underclock merge` joins the files: in the name
    after -o, %h is the host and %g the GPU's board, as in `srun underclock measure step.json
    --gpu nvml:0 -o %h-%g.db`.

    With --near a plan is made another board's own: its clocks and a few near them are measured
    there, into samples that `underclock plan` takes.

    With --ray each of many GPUs measures a share of the kernels, in a task of Ray and into a file
    next to FILE, which holds all of them, merged. Put ADDRESS of a cluster last, or leave it away
    for one on this host.

    Example: underclock measure step.json --gpu sim:rtx3080ti -o samples.db

    Example: underclock measure step.json --gpu nvml:0 -o samples.db -- python train.py
    """
    from underclock.tracing.job_files import ProcessRank

    campaign, rank = _campaign(asked, near), ProcessRank.of(os.environ)
    step = rank.own(step) if rank and step else step  # torchrun gives all ranks one name
    if training := _training(step, command_line, gpu):
        words = click.get_current_context().meta[_WORDS]
        words = words[: words.index("--")] if command_line else words
        captured = step is None and near is None
        measure_in_command(training, words, step_near=output if captured else None)
        return
    source_file = step_file(step or near, source)
    if ray is not None:
        from underclock.app.raying import gpus_of, measure_together

        gpus = gpus_of(gpu)
        measuring = _measuring(gpus[0], campaign, pace)
        with progress_bar("measuring") as show:
            boards = measure_together(
                step,
                gpus=gpus,
                to=output,
                address=ray,
                campaign=campaign,
                measuring=measuring,
                progress=show,
                run=source_file,
            )
        warn(tuple(dict.fromkeys(sentence for board in boards for sentence in board.warnings)))
        told_of_boards(boards, output, as_json=as_json)
        return
    from underclock.app.backends import in_virtual_time
    from underclock.app.measuring import file_of, follow, measure
    from underclock.records import Step
    from underclock.store import read_document

    served, gpu = gpu, in_virtual_time(gpu)
    if gpu != served:
        say(f"{served} is served: measuring its like in virtual time, {gpu}", err=True)
    measuring = _measuring(gpu, campaign, pace)
    document = read_document(step, Step) if step else None
    quietly = step_file(step, source, quiet=True)
    if document is not None and follow(document, gpu=gpu, run=quietly):
        return
    output = file_of(output, gpu)
    with progress_bar("measuring") as show:
        sample_set = measure(
            document,
            gpu=gpu,
            to=output,
            campaign=campaign,
            measuring=measuring,
            progress=show,
            expect=lambda expected: say(str(expected), err=True),
            run=source_file,
        )
    _show(sample_set, document, output, as_json=as_json)


def _training(
    step: Path | None, command_line: tuple[str, ...], gpu: str
) -> "TrainingCommand | None":
    """Return the command in whose process a step is measured; ``None`` where that is here."""
    from underclock.hw.base import GpuKind, parse_gpu
    from underclock.records import Step
    from underclock.store import read_document
    from underclock.tracing.held import is_handed_over
    from underclock.tracing.source import StepFile, TrainingCommand

    if is_handed_over():
        return None
    real = parse_gpu(gpu).kind is GpuKind.REAL
    if command_line:
        if not real:
            raise UsageError(
                f"{gpu} needs no command: the step's kernels are enough", hint="leave -- away"
            )
        return TrainingCommand.of(command_line)
    source = read_document(step, Step).source if step is not None and real else None
    if step is None or source is None or source.steps is None:
        return None
    command = StepFile(folder=step.parent).load(source)
    return command if isinstance(command, TrainingCommand) else None


def measure_in_command(
    command: "TrainingCommand",
    words: tuple[str, ...],
    *,
    step_near: Path | None = None,
    meanwhile: "Callable[[], None]" = lambda: None,
) -> None:
    """Measure in the process of a command that trains, which prints what this one would.

    Words after ``underclock measure`` that name no step measure the captured one, ``step_near``.
    """
    from underclock.app.launching import looked_at, looking_folder
    from underclock.app.looking import TraceRequest
    from underclock.records import Step
    from underclock.store import read_document
    from underclock.tracing.source import source_of_command

    say(f"running {shlex.join(command.words)} for real, until its step was measured", err=True)
    with looking_folder() as folder:
        look = TraceRequest(
            folder=str(folder),
            name=command.name,
            latest=command.latest,
            source=None if step_near is None else source_of_command(command, step_near.parent),
            measure=words,
            own_step=step_near is not None,
            cwd=str(Path.cwd()),
        )
        tell = partial(say, err=True)
        looked_at(command, look, say=tell, phase=tell, meanwhile=meanwhile)
        if not (folder / "stdout").exists():
            step = read_document(folder / "step.rank0.json", Step)
            raise NotSupportedError(
                step.obstacle,
                hint="take that out of the step; or name a function that runs it, which is "
                "measured whole: train.py:step",
            )
        sys.stdout.write((folder / "stdout").read_text())


def _show(sample_set: "SampleSet", step: "Step | None", file: Path, *, as_json: bool) -> None:
    from underclock.core.model.sample_sets import odd_repeats
    from underclock.core.steering import steering_notes
    from underclock.core.step.cost_table import unmeasured

    missing = unmeasured(sample_set).warnings
    if step is not None and not step.obstacle and not sample_set.samples:
        missing = (_NONE_ALONE,)
    warn((*sample_set.warnings, *missing, *odd_repeats(sample_set), *steering_notes(sample_set)))
    if as_json:
        print_json(
            {
                "samples": len(sample_set.samples),
                "mixed": len(sample_set.mixed),
                "expected": sample_set.expected_samples,
                "kernels": len(sample_set.kernels),
                "settings": len(sample_set.settings),
                "gpu": sample_set.gpu.name,
                "evidence": sample_set.evidence,
                "file": str(file),
            }
        )
        return
    header = f"{sample_set.workload} on {sample_set.gpu.name}, {sample_set.evidence}"
    say(f"{header}: {_taken(sample_set)} in {file}")


def _campaign(asked: dict[str, Any], near: Path | None) -> "Campaign":
    from underclock.campaign.grid import Campaign, ClockControl
    from underclock.records import Plan
    from underclock.store import read_document

    if asked["grid"] == ClockControl.STEER:
        asked |= {"grid": None, "clocks": ClockControl.STEER}
    plan = None if near is None else read_document(near, Plan)
    named = {name: value for name, value in asked.items() if value not in {None, ()}}
    return Campaign(near=plan, **named)


def _measuring(
    gpu: str, campaign: "Campaign", pace: tuple[float | None, float] | None
) -> "MeasurementSettings":
    from underclock.app.backends import default_measuring

    usual = default_measuring(gpu, adaptive=campaign.may_adapt)
    if pace is None:
        return usual
    warm_s, window_s = pace
    if not window_s > 0.0:
        raise UsageError("a window needs a positive length", hint="write for example --window 1s")
    warm_s = usual.kernel_warm_s if warm_s is None else warm_s
    return msgspec.structs.replace(usual, kernel_warm_s=warm_s, window_s=window_s)


def _taken(sample_set: "SampleSet") -> str:
    from underclock.core.steering import clock_range
    from underclock.core.step.whole_step import is_only_whole

    locked = [s.asked for s in sample_set.mixed if s.is_step and not s.asked.is_auto]
    if is_only_whole(sample_set) and locked:
        runs = len(sample_set.in_situ) + len(locked)
        return f"{runs} runs of the whole step at {len({*locked}) + 1} clock pairs"
    pairs = len({(sample.kernel, sample.asked) for sample in sample_set.samples})
    kernels, offered = len(sample_set.kernels), len(sample_set.settings)
    each = pairs / kernels
    samples = f"{len(sample_set.samples)} samples of {kernels} kernels"
    clocks = clock_range(sample_set)
    if clocks is not None:
        coload = f"{len(sample_set.mixed)} with co-load"
        return f"{samples} and {coload}, at {clocks[0]:.0f} to {clocks[1]:.0f} MHz"
    in_company = sum(sample.in_company for sample in sample_set.mixed)
    if in_company:
        samples = f"{samples} and {in_company} with pauses"
    at = f"{each:.3g} of {offered} clock pairs on average"
    if each == offered:
        at = "one clock pair" if offered == 1 else f"{offered} clock pairs"
    return f"{samples}, each at {at}"
