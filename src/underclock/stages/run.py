"""run: a training command with its clocks held by a plan, and given back whatever happens."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from underclock.errors import UsageError
from underclock.records import Plan
from underclock.stages.held_run import Ran, held_run
from underclock.stages.how_to_run import HowToRun
from underclock.stages.sources import as_plan

# Waits until it is told to go on, and becomes the command: so the conductor knows it beforehand.
# Whoever is interrupted before that just ends.
_GATE = (
    "import os, sys, _signal as s; "
    "s.getsignal(2) is s.default_int_handler and s.signal(2, s.SIG_DFL); "
    "go = os.read(int(sys.argv[1]), 1); os.close(int(sys.argv[1])); "
    "os.execvp(sys.argv[2], sys.argv[2:]) if go else sys.exit(1)"
)


def run(plan: Plan | str | Path, command: Sequence[str], how: HowToRun | None = None) -> Ran:
    """Run a training command, and hold a plan's clocks while it trains.

    Args:
        plan: With a schedule, or its file.
        command: What to run, unchanged; it may start several trainers, as torchrun does.
        how: By default on GPU 0.

    Raises:
        UsageError: A plan without a schedule, no such command, or a GPU that somebody else sets.
        DataError: The plan is of another GPU, board, driver or limit.
        DeviceError: The GPU does not answer, or clocks may not be set.
    """
    if not command:
        raise UsageError("nothing to run", hint="underclock run plan.json -- python train.py")
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"there is no command {command[0]!r}", hint="write it as a shell would find it"
        )
    with (
        held_run(as_plan(plan), how or HowToRun()) as held,
        _gated(command, held.environment()) as (trainer, go),
    ):
        held.start(trainer.pid)
        go()
        held.wait(trainer)
    if held.ran is None:
        raise AssertionError("it began")
    return held.ran


@contextmanager
def _gated(
    command: Sequence[str], environment: Mapping[str, str]
) -> Iterator[tuple["subprocess.Popen[bytes]", Callable[[], None]]]:
    """Start a process that becomes the command when it is told to; it ends if it never is."""
    theirs, ours = os.pipe()
    gate = [sys.executable, "-I", "-S", "-c", _GATE, str(theirs), *command]
    trainer = subprocess.Popen(gate, env=dict(environment), pass_fds=(theirs,))
    os.close(theirs)
    told = False

    def go() -> None:
        nonlocal told
        os.write(ours, b"1")
        told = True

    try:
        yield trainer, go
    finally:
        os.close(ours)
        if not told:
            trainer.wait()
