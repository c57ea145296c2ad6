"""``underclock trace``."""

from pathlib import Path

import click

from underclock.cli.common import force_option, json_option, output_option
from underclock.cli.printing import STDOUT, check_place, deliver
from underclock.cli.progress import counted_bar
from underclock.cli.terminal import say
from underclock.errors import UsageError
from underclock.records import Step


@click.command(name="trace")
@click.argument("workload")
@output_option("step", required=False)
@click.option("--size", "sizes", multiple=True, metavar="NAME=N", help="Change a size: batch=8.")
@json_option
@force_option
def command(
    *, workload: str, output: Path | None, sizes: tuple[str, ...], as_json: bool, force: bool
) -> None:
    """List the kernels of one training step of WORKLOAD.

    WORKLOAD is gpt3-125m … gpt3-175b, gpt3-xl; or path/to/train.py:step, a function that runs one
    step on this machine's GPU, which is captured and left as it was.

    Sizes: batch, sequence, layers, hidden, heads, vocabulary, positions, sm_count,
    threads_per_sm, tp (GPUs of tensor parallelism; the kernels are those of one).

    Example: underclock trace gpt3-xl --size batch=8 -o step.json
    """
    from underclock.stages.trace import TracePhase, trace

    check_place(output, force=force)
    folder = output.parent if output and output != STDOUT else None
    numbers = dict(_size(text) for text in sizes)
    phases = list(TracePhase)
    with counted_bar("tracing") as show:
        step = trace(
            workload,
            folder=folder,
            progress=lambda phase: show(phases.index(phase), len(phases), phase),
            **numbers,
        )
    deliver(
        step,
        output,
        lambda: _show(step),
        as_json=as_json,
        force=force,
        warnings=step.warnings,
    )


def _show(step: Step) -> None:
    launches = len(step.order)
    say(f"{step.name}: {len(step.kernels)} kernels, {launches} launches per step")
    for kernel in step.kernels:
        say(f"  {kernel.count:4d} x {kernel.name:46.46s} {kernel.pass_:10s} {kernel.shape}")


def _size(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if not value.isdecimal():
        raise UsageError(f"cannot read {text!r} as a size", hint="write NAME=N, such as batch=8")
    return name, int(value)
