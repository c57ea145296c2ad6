"""Commands that run another program or read the user's ledger, as functions."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from underclock.app.tune import command as tune_command
from underclock.errors import UsageError
from underclock.ledger import LEDGER, SavedTotal, ledger_path, read_runs, totals
from underclock.records import Plan
from underclock.records.runs import RunSummary
from underclock.runtime.holding.run import run
from underclock.store import read_document


def tune(
    command: str | Sequence[str],
    *,
    gpu: str = "",
    to: str | Path = "underclock-tune",
    max_slowdown: float = 0.01,
) -> Plan:
    """Find clocks for a training command, as `underclock tune` does, and print how it goes.

    Args:
        command: What trains, as a shell has it, or its words.
        gpu: Such as ``nvml:0`` or ``sim:rtx3080ti``; by default the first that CUDA shows.
        to: The folder of its files; what is there already is not done again.
        max_slowdown: Time budget, as a fraction above auto.

    Raises:
        UsageError: There is no such command or GPU, or the folder is of another script.
        DeviceError, MeasurementError: From the GPU.
    """
    words = ["--max-slowdown", f"{max_slowdown:.15g}", "-o", f"{to}"]
    words += ["--gpu", gpu] if gpu else []
    tune_command([*words, "--", *_words(command)], standalone_mode=False)
    return read_document(Path(to) / "plan.json", Plan)


def observe(command: str | Sequence[str]) -> RunSummary:
    """Run a command unchanged, set nothing, and return what its steps took and its GPUs drew.

    Raises:
        UsageError: There is no such command.
        DeviceError: No GPU answers.
    """
    return run(None, _words(command)).summary


def saved(by: str | None = None) -> tuple[SavedTotal, ...]:
    """Return what runs saved, by the ledger: sums by ``job``, ``gpu`` or ``month``, or of all.

    Raises:
        UsageError: The ledger is turned off, or there is no such sum.
        DataError: Its file cannot be read.
    """
    if by not in {None, "job", "gpu", "month"}:
        raise UsageError(f"cannot sum by {by!r}", hint="by job, gpu or month")
    path = ledger_path(os.environ)
    if path is None:
        raise UsageError(f"the ledger is turned off: {LEDGER} is empty", hint=f"unset {LEDGER}")
    return totals(read_runs(path)[0], by)


def _words(command: str | Sequence[str]) -> list[str]:
    return shlex.split(command) if isinstance(command, str) else list(command)
