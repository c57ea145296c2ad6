"""``underclock trace``."""

import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from underclock.app.options import WORKLOAD, delivered
from underclock.app.output import STDOUT, Delivery, phase_bar
from underclock.errors import UsageError
from underclock.records import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from underclock.tracing.source import Script


@click.command(name="trace")
@click.argument("workload", type=WORKLOAD)
@click.argument("arguments", nargs=-1)
@click.option("--size", "sizes", multiple=True, metavar="NAME=N", help="Change a size: batch=8.")
@click.option(
    "--steps",
    metavar="A:B",
    help="Of a training script: step A is profiled, B-1 captured; counted from 0. [default: 20:22, "
    "2:4 with --assume]",
)
@click.option(
    "--assume", is_flag=True, help="Without a GPU: run it on the CPU, and assume a GPU's kernels."
)
@delivered("step")
def command(
    *,
    workload: str,
    arguments: tuple[str, ...],
    sizes: tuple[str, ...],
    steps: str | None,
    assume: bool,
    to: Delivery,
) -> None:
    """List the kernels of one training step of WORKLOAD.

    WORKLOAD is gpt3-125m … gpt3-175b, gpt3-xl; or path/to/train.py:step, a function that runs one
    step on this machine's GPU, which is captured and left as it was; or path/to/train.py, a
    training script, run with ARGUMENTS (after --) until its steps A:B were looked at.

    Sizes: batch, sequence, layers, hidden, heads, vocabulary, positions, sm_count,
    threads_per_sm, tp (GPUs of tensor parallelism; the kernels are those of one).

    Under torchrun every rank traces its own GPU, and writes step.rank0.json and so on, beside what
    its profiler saw (step.rank0.trace.json.gz), for `underclock job traced`; the first one tells
    what it found.

    Example: underclock trace gpt3-xl --size batch=8 -o step.json

    Example: underclock trace train.py --assume -o step.json -- --lr 3e-4

    Example: underclock trace train.py --steps 20:22 -o step.json -- --lr 3e-4
    """
    from underclock.tracing.ranks import ProcessRank, told_of_ranks
    from underclock.tracing.source import TracePhase
    from underclock.tracing.trace import trace

    given, rank = to.output, ProcessRank.of(os.environ)
    tells = rank is None or rank.leads
    place = rank.file(given) if rank is not None and given and given != STDOUT else given
    to = replace(to, output=place, as_json=to.as_json and tells)
    to.check()
    folder = to.output.parent if to.output and to.output != STDOUT else None
    what = _what(workload, arguments, steps, assume=assume)
    numbers = dict(_size(text) for text in sizes)
    keep = _keep(to, workload) if rank is not None and folder else None
    shown = phase_bar("tracing", TracePhase) if tells else nullcontext(lambda _phase: None)
    with shown as show:  # of several ranks one shows its progress
        step = trace(what, folder=folder, assume=assume, progress=show, keep=keep, **numbers)
    differs = told_of_ranks(step, given, rank) if given and rank else ()
    warnings = (*(step.warnings if tells else ()), *differs)
    to.give(step, lambda: _lines(step) if tells else (), warnings=warnings)


def _keep(to: Delivery, workload: str) -> "Callable[[Mapping[str, Any]], None]":
    """Return what keeps a rank's trace beside its step."""
    from underclock.tracing.job_files import SUFFIX, leave_trace

    file = Path(workload.partition(".py:")[0] + ".py" if ".py:" in workload else workload)
    path = (to.output or Path()).with_suffix(SUFFIX)
    source = file if file.is_file() else None
    replace(to, output=path).check()
    return lambda trace: leave_trace(path, trace, source=source)


def _what(
    workload: str, arguments: tuple[str, ...], steps: str | None, *, assume: bool
) -> "str | Script":
    """Tell a script from all else, which takes neither arguments nor steps."""
    from underclock.tracing.source import Script

    if workload.endswith(".py"):
        if not Path(workload).is_file():
            raise UsageError(f"cannot read {workload!r}: no such file", hint="name a script")
        first, last = _steps(steps or ("2:4" if assume else "20:22"))
        return Script(path=Path(workload), arguments=arguments, first=first, last=last)
    for given, what in ((arguments, "arguments"), (steps, "--steps")):
        if given:
            raise UsageError(
                f"{workload!r} is no script and takes no {what}",
                hint="name a script: underclock trace train.py --steps 20:22 -- ARGUMENTS",
            )
    return workload


def _steps(text: str) -> tuple[int, int]:
    first, _, end = text.partition(":")
    if not (first.isdecimal() and end.isdecimal()):
        raise UsageError(f"cannot read {text!r} as steps", hint="write A:B, such as 20:22")
    return int(first), int(end) - 1


def _lines(step: Step) -> "Iterator[str]":
    launches = len(step.order)
    assumed = " (assumed, no GPU was seen)" if step.is_assumed else ""
    yield f"{step.name}: {len(step.kernels)} kernels, {launches} launches per step{assumed}"
    for kernel in step.kernels:
        yield f"  {kernel.count:4d} x {kernel.name:46.46s} {kernel.pass_:10s} {kernel.shape}"


def _size(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if not value.isdecimal():
        raise UsageError(f"cannot read {text!r} as a size", hint="write NAME=N, such as batch=8")
    return name, int(value)
