"""Watches the driver of this machine's GPU move its clock, read-only; writes what it saw.

    UNDERCLOCK_READ_ONLY=1 python studies/latency.py RESULTS.json [SECONDS [GPU]]

Nothing is set. Besides what ``underclock latency`` shows, the file has every move by small kernels:
whether hot products ran among them, s since they began or ended, s that the transition took, and
the clock before and after over the highest one seen. What the first run saw is in RESULTS.npy, as
`SmallKernels.run` returns it.
"""

import sys
from pathlib import Path

import msgspec
import numpy as np

from underclock.app import latency as command
from underclock.arrays import Floats
from underclock.core.statistics.change_point import moves
from underclock.hw.nvml_calls import is_read_only

WIDTH = 16  # readings on each side of a move, as in the command


def main(to: str, watch_s: str = "60", gpu: str = "nvml:0") -> None:
    """Watch for so long, print a short table, and write everything."""
    if not is_read_only():
        sys.exit("set UNDERCLOCK_READ_ONLY=1: this study sets no clock")
    seen: list[tuple[bool, float, float, float, float]] = []
    runs: list[Floats] = []
    for name in ("CudaSmallKernels", "VirtualSmallKernels"):
        setattr(command, name, noting(getattr(command, name), seen, runs))
    found = command.measure_latency(gpu, watch_s=float(watch_s))
    print(*found.warnings, *command.latency_lines(found), sep="\n")
    for hot, up in ((True, False), (True, True), (False, True), (False, False)):
        some = np.array([m[1:] for m in seen if m[0] == hot and (m[4] > m[3]) == up])
        if not len(some):
            continue
        took_ms = "/".join(f"{q:.2f}" for q in np.quantile(1e3 * some[:, 1], (0.05, 0.5, 0.95)))
        words = f"{'with' if hot else 'without'} products, {'up' if up else 'down'}: {len(some)}"
        print(f"{words}, transition 5/50/95 % {took_ms} ms, first after {some[:, 0].min():.3f} s")
    every = {"found": msgspec.to_builtins(found), "moves": seen}
    np.save(Path(to).with_suffix(".npy"), runs[0])
    Path(to).write_bytes(msgspec.json.encode(every) + b"\n")


def noting(
    kind: type, seen: list[tuple[bool, float, float, float, float]], runs: list[Floats]
) -> type:
    """Return small kernels that note every move, and keep what each run saw."""

    def run(self: object, *given: object) -> Floats:
        ran: Floats = getattr(super(made, self), "run")(*given)  # noqa: B009 - typed by nothing
        runs.append(ran)
        fastest_s = np.quantile(ran[:, 1], 0.01)
        for hot in (True, False):
            at_s, took_s, _ = ran[ran[:, 2] == hot].T
            for left, arrived, _ in moves(1.0 / took_s, WIDTH):
                levels = took_s[max(0, left - WIDTH) : left], took_s[arrived : arrived + WIDTH]
                before, after = (float(fastest_s / np.median(level)) for level in levels)
                since_s, took = at_s[left] - at_s[0], at_s[arrived] - at_s[left]
                seen.append((hot, float(since_s), float(took), before, after))
        return ran

    made = type(kind.__name__, (kind,), {"run": run})
    return made


if __name__ == "__main__":
    main(*sys.argv[1:])
