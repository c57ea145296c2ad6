"""Watches the driver of this machine's GPU move its clock, read-only; writes what it saw.

    UNDERCLOCK_READ_ONLY=1 python studies/latency.py RESULTS.json [SECONDS [GPU]]

Nothing is set. Besides what ``underclock latency`` shows, the file has every move by small kernels:
when in its second with hot products or its second without it began, its transition, and the clock
before and after over the highest one seen.
"""

import os
import sys
from pathlib import Path

import msgspec
import numpy as np

from underclock.app import latency as command
from underclock.app.latency import latency_lines, measure_latency
from underclock.arrays import Floats
from underclock.core.statistics.change_point import moves
from underclock.hw.nvml_calls import READ_ONLY
from underclock.records.latencies import DriverMoves

WIDTH = 16  # readings on each side of a move, as in the command


def main(to: str, watch_s: str = "60", gpu: str = "nvml:0") -> None:
    """Watch for so long, print a short table, and write everything."""
    if os.environ.get(READ_ONLY, "0") in {"", "0"}:
        sys.exit(f"set {READ_ONLY}=1: this study sets no clock")
    runs: list[Floats] = []
    for kind in ("CudaSmallKernels", "VirtualSmallKernels"):
        setattr(command, kind, keeping(getattr(command, kind), runs))
    found = measure_latency(gpu, watch_s=float(watch_s))
    if not isinstance(found, DriverMoves):
        sys.exit("a clock was set")
    seen = [move for run in runs for move in moves_of(run)]
    print(*found.warnings, *latency_lines(found), sep="\n")
    print("moves                      n   transition 5/50/95 %, ms   clock changes by, median")
    for hot in (True, False):
        for up in (True, False):
            some = [m for m in seen if m["hot"] == hot and (m["after"] > m["before"]) == up]
            took_ms = np.quantile([1e3 * m["transition_s"] for m in some] or [0], (0.05, 0.5, 0.95))
            by = np.median([m["after"] / m["before"] - 1.0 for m in some] or [0.0])
            what = f"{'with' if hot else 'without'} products, {'up' if up else 'down'}"
            print(
                f"{what:<22} {len(some):>5}   {'/'.join(f'{q:.2f}' for q in took_ms)}   {by:+.2%}"
            )
    every = {"found": msgspec.to_builtins(found), "moves": seen}
    Path(to).write_bytes(msgspec.json.format(msgspec.json.encode(every)) + b"\n")


def keeping(kind: type, runs: list[Floats]) -> type:
    """Return small kernels that keep what each run saw."""

    def run(self: object, *given: object) -> Floats:
        ran: Floats = getattr(super(made, self), "run")(*given)  # noqa: B009 - typed by nothing
        runs.append(ran)
        return ran

    made = type(kind.__name__, (kind,), {"run": run})
    return made


def moves_of(ran: Floats) -> list[dict[str, float]]:
    """Return every move of one run: with hot products, then without."""
    found = []
    fastest_s = float(np.quantile(ran[:, 1], 0.01))
    for hot in (1.0, 0.0):
        at_s, took_s, _ = ran[ran[:, 2] == hot].T
        for left, arrived, _ in moves(1.0 / took_s, WIDTH):
            levels = took_s[max(0, left - WIDTH) : left], took_s[arrived : arrived + WIDTH]
            before, after = (fastest_s / float(np.median(level)) for level in levels)
            moved = {
                "hot": hot,
                "before": before,
                "after": after,
                "at_s": float(at_s[left] - at_s[0]),
            }
            found.append(moved | {"transition_s": float(at_s[arrived] - at_s[left])})
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
