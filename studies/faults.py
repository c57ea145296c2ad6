"""The fault matrix: what befalls a whole `underclock run`, and what is left, lost and told.

    PYTHONPATH=tests python studies/faults.py [WORD …] > docs/evidence/faults.md

As root (it mounts a small disk and freezes a cgroup), with a C compiler. With words only rows that
have one of them in their names are played. What fails is shown whole on stderr.
"""

import os
import platform
import sys
import tempfile
from pathlib import Path

import faults_device
import faults_machine
import faults_signals
from faults_outcome import Outcome, Row
from faults_rig import STEPS, open_rig

ROWS = (*faults_signals.ROWS, *faults_device.ROWS, *faults_machine.ROWS)
_LONGEST = 150

PAGE = """# Faults, and what is left, lost and told

Made by `PYTHONPATH=tests python studies/faults.py`; every row once, a fresh GPU and fresh
processes each time. Machine: {machine}, Python {python}; load average at the end {load:.1f}, from
other work that ran beside it. The GPU is **simulated**, served by a process of its own; training is
real PyTorch on the CPU ({steps} steps of `tests/small_training.py`, clocks changed twice a step),
and everything runs as a user runs it:
`underclock run plan.json --guard 0 --log log.jsonl -- python train.py`.

- *As found*: locks, power limit and persistence are as before, by the driver's own word and by
  `underclock doctor --json`, and no journal is left. The time runs from the end of what held clocks
  (the trainer's end, or the signal to the conductor) to the last look at which something was set;
  looks are about 2 ms apart and wait for the GPU's server, and 0 ms says that the first look after
  it found nothing set. What another changed stays changed.
- *Losses*: bit-identical to those of the same training without Underclock; of a trainer that was
  killed, as far as it went.
- *Told*: what the user read, cut to {longest} characters; nothing where there is nothing to tell.

As found: **{found} of {count}**. Losses identical: **{same} of {trained}** that trained. Told what
was to be told: **{told} of {count}**.

| what | what was done | as found | within | losses | told |
|---|---|---|---:|---|---|
"""


def main() -> None:
    """Play all rows, or those whose names have one of the words; print the page."""
    words = sys.argv[1:]
    rows = [row for row in ROWS if not words or any(word in row.name for word in words)]
    played: list[tuple[Row, Outcome]] = []
    for row in rows:
        with tempfile.TemporaryDirectory() as folder, open_rig(Path(folder)) as rig:
            try:
                seen = row.play(rig)
            except (OSError, RuntimeError) as exc:
                seen = Outcome(as_found=False, took_s=None, losses=False, said=f"FAILED: {exc!r}")
        good = seen.as_found and seen.losses is not False and row.was_told(seen)
        print(f"{'ok' if good else 'BAD'}: {_cells(row, seen)}", file=sys.stderr, flush=True)
        if not good:
            print(seen.said, file=sys.stderr, flush=True)
        played.append((row, seen))
    print(page(played), end="")


def page(played: list[tuple[Row, Outcome]]) -> str:
    """Return the page."""
    trained = [seen for _, seen in played if seen.losses is not None]
    text = PAGE.format(
        machine=f"{platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}",
        python=platform.python_version(),
        load=os.getloadavg()[0],
        steps=STEPS,
        longest=_LONGEST,
        count=len(played),
        found=sum(seen.as_found for _, seen in played),
        trained=len(trained),
        same=sum(bool(seen.losses) for seen in trained),
        told=sum(row.was_told(seen) for row, seen in played),
    )
    return text + "".join(f"{_cells(row, seen)}\n" for row, seen in played)


def _cells(row: Row, seen: Outcome) -> str:
    told = row.sentence(seen).strip().replace("|", " ") if row.says else "nothing to tell"
    cells = (
        row.name,
        row.did,
        "yes" if seen.as_found else "**no**",
        "-" if seen.took_s is None else f"{1e3 * seen.took_s:.0f} ms",
        {None: "did not train", True: "identical", False: "**differ**"}[seen.losses],
        (told if len(told) <= _LONGEST else f"{told[:_LONGEST]}…") or "**nothing**",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
