"""How a page of evidence is written: its words stand in the page, a study fills in what it found.

A page has marks, ``<!-- begin NAME -->`` and ``<!-- end NAME -->``; what lies between is the
study's. Between those of ``made`` it says which command made the page, on what and from how much.
"""

import datetime as dt
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click
import numpy as np

from underclock.errors import UnderclockError

ROOT = Path(__file__).resolve().parents[1]
EVIDENCE = ROOT / "docs" / "evidence"
MEASURED = ROOT.parent / "shared" / "data" / "measured"
"""Sweeps that others measured; not part of the repository."""
_BEGAN_S = time.perf_counter()


def markdown(rows: Iterable[Sequence[object]]) -> str:
    """Return a table whose first row is its header; columns but the first are numbers."""
    lines = [[str(cell) for cell in row] for row in rows]
    lines.insert(1, ["---", *["---:"] * (len(lines[0]) - 1)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(change: float, digits: int = 2) -> str:
    """Write a change."""
    return f"{100 * change:+.{digits}f} %".replace("-", "\N{MINUS SIGN}")


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error; ``nan`` of fewer than two."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.fmean(values), error


def made_by(repeats: str) -> str:
    """Say which command is running, since when, on what, and what it repeats."""
    script = Path(sys.argv[0])
    command = " ".join([f"python {script.parent.name}/{script.name}", *sys.argv[1:]])
    versions = f"Python {platform.python_version()}, numpy {np.__version__}"
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True).strip()  # noqa: S607
    return (
        f"`OMP_NUM_THREADS=1 {command}`, {dt.datetime.now(tz=dt.UTC):%Y-%m-%d} at {commit}, "
        f"{os.cpu_count()} CPU cores, {versions}, a load of "
        f"{os.getloadavg()[1]:.1f}; {(time.perf_counter() - _BEGAN_S) / 60:.0f} min. {repeats}"
    )


def fill(
    name: str,
    parts: Mapping[str, str],
    *,
    repeats: str = "",
    mark: str = "made",
    whole: bool = True,
) -> None:
    """Put what a study found into its page, and how it was made.

    Args:
        name: Of the page below docs/evidence, without its ending.
        parts: Text for each mark of the page.
        repeats: What was repeated and how often; with it ``mark`` is filled too, which a page of
            what was measured elsewhere says in words of its own.
        mark: Of how it was made.
        whole: Whether all of it was run; of a part of it nothing is written, it is printed.

    Raises:
        ValueError: The page lacks a mark.
    """
    if not whole:
        print("\n\n".join(parts.values()))
        return
    path = EVIDENCE / f"{name}.md"
    text = path.read_text(encoding="utf-8")
    for each, part in (({mark: made_by(repeats)} if repeats else {}) | dict(parts)).items():
        begin, end = f"<!-- begin {each} -->", f"<!-- end {each} -->"
        if begin not in text or end not in text:
            raise ValueError(f"{path.name} has no place for {each!r}: add {begin} and {end}")
        before, after = text.split(begin)[0], text.split(end)[1]
        text = f"{before}{begin}\n\n{part.strip(chr(10))}\n\n{end}{after}"
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path}")


def run_command(command: click.Command) -> None:
    """Run a script's command; an error ends it with a sentence and its exit code."""
    try:
        command(standalone_mode=False)
    except UnderclockError as exc:
        print(f"{exc}\n  hint: {exc.hint}", file=sys.stderr)
        sys.exit(exc.exit_code)
    except click.ClickException as exc:
        exc.show()
        sys.exit(exc.exit_code)
