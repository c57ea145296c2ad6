"""``underclock trace``."""

import os
import shlex
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import click

from underclock.app.options import delivered
from underclock.app.output import STDOUT, Delivery, phase_bar, print_json, say, warn
from underclock.errors import UsageError
from underclock.records import Step

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_DIGITS = 12


@click.command(name="trace")
@click.argument("workload")
@click.argument("arguments", nargs=-1)
@click.option("--size", "sizes", multiple=True, metavar="NAME=N", help="Change a size: batch=8.")
@click.option(
    "--grid",
    multiple=True,
    metavar="NAME=N,N…",
    help="Trace it at several sizes, each with each, into the folder -o: batch=1,8 context=1k,8k.",
)
@click.option(
    "--step", default=20, help="Of a command: look at this step at the latest. [default: 20]"
)
@click.option("--allow-writes", is_flag=True, help="Of a command: keep what it writes over files.")
@click.option(
    "--assume", is_flag=True, help="Without a GPU: run it on the CPU, and assume a GPU's kernels."
)
@delivered("step")
def command(
    *,
    workload: str,
    arguments: tuple[str, ...],
    sizes: tuple[str, ...],
    grid: tuple[str, ...],
    step: int,
    allow_writes: bool,
    assume: bool,
    to: Delivery,
) -> None:
    """List the kernels of one training step of WORKLOAD.

    WORKLOAD is gpt3-125m … gpt3-175b, gpt3-xl; or path/to/train.py:step, a function that runs one
    step on this machine's GPU, which is captured and left as it was; or a command that trains,
    after --, in one process or in several. The command runs for real until a step that is like
    those before it was looked at, and is ended there; files that it replaced are put back.

    Sizes: batch, sequence, layers, hidden, heads, vocabulary, positions, sm_count,
    threads_per_sm, tp (GPUs of tensor parallelism; the kernels are those of one). Of a function
    they are the arguments that it is called with; 8k is 8192.

    Of a command of several ranks each writes step.rank0.json and so on, and what its profiler saw
    (step.rank0.trace.json.gz), for `underclock job traced`.

    Example: underclock trace gpt3-xl --size batch=8 -o step.json

    Example: underclock trace serve.py:decode --grid batch=1,8,32 context=1k,8k -o family

    Example: underclock trace -o step.json -- python train.py --lr 3e-4

    Example: underclock trace -o step.json -- torchrun --nproc-per-node 2 train.py
    """
    from underclock.tracing.held import trace
    from underclock.tracing.job_files import SUFFIX, ProcessRank, leave_trace, told_of_ranks
    from underclock.tracing.source import is_command

    if is_command(workload):
        if grid or sizes:
            raise UsageError(
                "a command's sizes are its own", hint="give it its arguments after --, not --size"
            )
        if ProcessRank.of(os.environ) is not None:
            raise UsageError(
                "this process is one of several ranks, and a command is run once for all of them",
                hint="put the launcher behind: underclock trace -o step.json -- torchrun ...",
            )
        words = (workload, *arguments)
        _trace_command(words, to, latest=step, assume=assume, allow_writes=allow_writes)
        return
    if grid:
        _trace_family(workload, _members((*grid, *arguments), sizes), to, assume=assume)
        return
    if workload.endswith(".py"):
        raise UsageError(f"cannot read {workload!r}: no such file", hint="name a script")
    if workload.endswith((".json", ".json.gz")):
        hint = "what profilers saw of a job's ranks is read by underclock job traced FILE FILE"
        raise UsageError(f"{workload!r} is a file, and tracing runs a step", hint=hint)
    if arguments:
        hint = "name one that trains: underclock trace -o step.json -- python train.py"
        raise UsageError(f"{workload!r} is no command and takes no arguments", hint=hint)
    given, rank = to.output, ProcessRank.of(os.environ)
    prints = rank is None or rank.leads
    place = rank.file(given) if rank is not None and given and given != STDOUT else given
    to = replace(to, output=place, as_json=to.as_json and prints)
    to.check()
    folder = to.output.parent if to.output and to.output != STDOUT else None
    numbers = dict(map(_size, sizes))
    keep = None
    if rank is not None and folder and to.output:  # a rank's trace goes next to its step
        file = Path(workload.partition(".py:")[0] + ".py" if ".py:" in workload else workload)
        path = to.output.with_suffix(SUFFIX)
        replace(to, output=path).check()
        keep = partial(leave_trace, path, source=file if file.is_file() else None)
    shown = phase_bar("tracing") if prints else nullcontext(lambda _phase: None)
    with shown as show:  # of several ranks one shows its progress
        traced = trace(workload, folder=folder, assume=assume, progress=show, keep=keep, **numbers)
    differs = told_of_ranks(traced, given, rank) if given and rank else ()
    warnings = (*(traced.warnings if prints else ()), *differs)
    to.give(traced, lambda: _lines(traced) if prints else (), warnings=warnings)


def _trace_command(
    words: tuple[str, ...], to: Delivery, *, latest: int, assume: bool, allow_writes: bool
) -> None:
    from underclock.app.launching import trace_command
    from underclock.tracing.source import TrainingCommand

    to.check()
    command = TrainingCommand.of(words, latest=latest)
    line = shlex.join(command.words)
    say(f"running {line} for real, until one of its steps was traced", err=True)
    with phase_bar("tracing") as show:
        ranks = trace_command(
            command,
            to=None if to.output is None or to.output == STDOUT else to.output,
            assume=assume,
            allow_writes=allow_writes,
            force=to.force,
            progress=show,
            say=lambda sentence: say(sentence, err=True),
        )
    first, *_ = ranks
    written = to if len(ranks) == 1 else replace(to, output=None)
    written.give(first.step, lambda: _lines(first.step), warnings=first.warnings)
    if len(ranks) > 1 and not to.as_json:
        say(f"{len(ranks)} ranks: {', '.join(str(rank.file) for rank in ranks if rank.file)}")


def _lines(step: Step) -> "Iterator[str]":
    assumed = " (assumed, no GPU was seen)" if step.is_assumed else ""
    yield f"{step.name}: {len(step.kernels)} kernels, {len(step.order)} launches per step{assumed}"
    for kernel in step.kernels:
        yield f"  {kernel.count:4d} x {kernel.name:46.46s} {kernel.pass_:10s} {kernel.shape}"


def _size(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    return name, _number(value, text)


def _number(value: str, of: str) -> int:
    digits = value.removesuffix("k")
    if not (digits.isdecimal() and len(digits) < _MOST_DIGITS):
        raise UsageError(f"cannot read {of!r} as a size", hint="write NAME=N, such as batch=8")
    return int(digits) * (1 if digits == value else 1024)


def _members(grid: tuple[str, ...], sizes: tuple[str, ...]) -> list[dict[str, int]]:
    fixed, varied = dict(map(_size, sizes)), dict[str, list[int]]()
    for text in grid:
        name, equals, values = text.partition("=")
        if not equals:
            raise UsageError(
                f"cannot read {text!r} in a grid", hint="write NAME=N,N, such as batch=1,8"
            )
        if name in fixed or name in varied:
            raise UsageError(f"{name} is given twice", hint="give all its values in one: batch=1,8")
        varied[name] = [_number(value, text) for value in values.split(",")]
    return [fixed | dict(zip(varied, some, strict=True)) for some in product(*varied.values())]


def _trace_family(
    workload: str, members: list[dict[str, int]], to: Delivery, *, assume: bool
) -> None:
    from underclock.store import check_output, write_document
    from underclock.tracing.held import family, shared_kernels
    from underclock.tracing.source import sized_name

    if workload.endswith(".py"):
        hint = "name a function of it: underclock trace serve.py:decode --grid batch=1,8"
        raise UsageError(f"{workload} is a script, whose sizes are its own", hint=hint)
    if "WORLD_SIZE" in os.environ:
        raise UsageError("a family is traced on one GPU", hint="run it without torchrun")
    if to.output is None or to.output == STDOUT or to.output.is_file():
        raise UsageError(f"{len(members)} steps go into a folder", hint="name one with -o")
    names = (sized_name(workload.rpartition(":")[2], sizes) for sizes in members)
    paths = [to.output / f"{name}.json" for name in names]
    for path in paths if to.output.is_dir() else ():
        check_output(path, force=to.force, begins="{")
    steps = []
    with phase_bar("tracing") as show:
        traced = family(workload, members, to.output, assume=assume, progress=show)
        for path, step in zip(paths, traced, strict=True):
            to.output.mkdir(parents=True, exist_ok=True)  # now that there is something to keep
            write_document(path, step, force=to.force)
            steps.append(step)
    shared, distinct = shared_kernels(steps)
    if to.as_json:
        print_json({"files": list(map(str, paths)), "kernels": distinct, "shared": shared})
        return
    warn(tuple(dict.fromkeys(words for step in steps for words in step.warnings)))
    for path, step in zip(paths, steps, strict=True):
        say(f"{path}: {len(step.kernels)} kernels, {len(step.order)} launches")
    say(f"{shared} of {distinct} kernels run at more than one of these sizes")
