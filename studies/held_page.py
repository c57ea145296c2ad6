"""Writes docs/evidence/h200/held.md of what `studies/held.py` measured.

    python studies/held_page.py RESULTS.json [MORE.json ...] > docs/evidence/h200/held.md

Of a step in several files all boundaries are shown, and the cost of marks as of the first.
"""

import json
import sys
from pathlib import Path
from typing import Any

_NAMES = {
    "xl": "GPT-3 XL, 24 layers, eager",
    "xl_graph": "the same, one captured graph",
    "small_compiled": "GPT-3 125 M, `torch.compile`",
    "small_blocks": "GPT-3 125 M, compiled block by block",
}
_MS, _PERCENT = 1e3, 100.0
_HEAD = """\
# Plans held dry on a real H200

**Measured** on one {gpu} (PyTorch {torch}), shared and virtual, at its 700 W cap where the
step reaches it. Nothing was set: a plan is held *dry*, with everything but the setter. Locking
clocks has not been tried on real hardware. Plans are made by hand and change clocks every 12 ms, a
change taking 6 ms; they say nothing of savings. Batch 8 and 16 of 1024 tokens, bf16, written out as
in `studies/zoo/gpt.py`.

    UNDERCLOCK_READ_ONLY=1 python studies/held.py RESULTS.json
    python studies/held_page.py RESULTS.json > docs/evidence/h200/held.md

## When launches begin, and how well that is known

{long} steps in a row. A boundary is a launch at which clocks change; its error is how far off it
was expected when its change had to be asked for, as the marks tell afterwards. Wanted: 0.1 ms for
the median, 1 ms for 99 of 100, and 1 % of a core for the conductor.

| step | run | takes | marks | changes | followed | median | 99 of 100 | conductor |
|---|---|---|---|---|---|---|---|---|
"""
_TURNS = """
## What marks cost

Blocks of steps with marks take turns with blocks without, in one process; with a graph, two graphs,
one captured with marks. An eager block with marks starts a conductor of its own, and one without
waits as long. Wanted: no change beyond 0.1 %.

| step | pairs of blocks | steps in a block | change of the step's time | 95 % interval |
|---|---|---|---|---|
"""
_END = """
## What is met, and what is not

- The first run of a step is of a conductor that looked more often, the second of one that looks
  less, the third of one that also reads the driver once a second, where nothing hangs on it, and
  not ten times (compiled block by block the second and third are of that one). Looking less took
  off nothing here, reading less half: 2.6 to 3.5 % of a core instead of 5.0 to 6.3. Its share is
  **missed** in all: 337 to 421 looks a second, of some 37 µs, are 1.2 to 1.6 %.
- Boundaries of XL are as wanted, in the middle of the graph's second run missed by 0.004 ms. Since
  the second run one step in eight is told, and all of the first nine, which are worse: each that
  is told counts for those before it.
- Compiled as one, boundaries are **missed**: nothing can be marked inside what is compiled, so a
  step has marks at its begin and where the backward pass begins, 15 ms later.
- Compiled block by block it was no better at first: of four marks two at the model itself were
  never seen, for it was believed to be entered anew after each of its parts; and, that mended, the
  one at the step's begin, 18 µs before the next, which no look can tell from it. No two marks are
  nearer than 0.1 ms since (run 3): all are seen, all steps followed, 99 of 100 boundaries within
  0.62 ms; the middle, 0.114 ms, is **missed** by 0.014.
- A dry run said that clocks were overruled, though it asks for none; mended.
- The cost of marks is as wanted (one interval of 95 % reaches 0.01 points beyond).
  `underclock run PLAN --dry-run -- python …`, the script unchanged, had 58 of 58 steps followed,
  0.073 ms and 0.56 ms. DDP and FSDP2 on two GPUs are in `parallel.md`.
"""


def main() -> None:
    """Write the page."""
    files = [json.loads(Path(name).read_text()) for name in sys.argv[1:]]
    longs: dict[str, list[dict[str, Any]]] = {}
    turns: dict[str, dict[str, Any]] = {}
    for found in files:
        for name, one in found.items():
            if "failed" in one:
                raise SystemExit(f"{name} failed: {one['failed']}")
            longs.setdefault(name, []).append(one)
            if one["change"] is not None:
                turns.setdefault(name, one)
    any_one = next(iter(longs.values()))[0]
    print(_HEAD.format(gpu=any_one["gpu"], torch=any_one["torch"], long=100), end="")
    for name, said in _NAMES.items():
        for number, one in enumerate(longs.get(name, ()), start=1):
            print(_boundaries(said, number, one))
    print(_TURNS, end="")
    for name, said in _NAMES.items():
        if name in turns:
            print(_cost(said, turns[name]))
    print(_END, end="")


def _boundaries(said: str, number: int, one: dict[str, Any]) -> str:
    long = one["long"]
    return (
        f"| {said} | {number} | {_MS * long['step_s']:.1f} ms | {long['marks']} | "
        f"{one['changes']} | {long['followed']} of {long['steps']} | "
        f"{_MS * long['error_p50_s']:.3f} ms | "
        f"{_MS * long['error_p99_s']:.2f} ms | {_PERCENT * long['conductor']:.1f} % |"
    )


def _cost(said: str, one: dict[str, Any]) -> str:
    half = 1.96 * one["standard_error"]
    low, high = one["change"] - half, one["change"] + half
    return (
        f"| {said} | {len(one['plain_s'])} | {one['steps']} | {_PERCENT * one['change']:+.3f} % | "
        f"{_PERCENT * low:+.3f} to {_PERCENT * high:+.3f} % |"
    )


if __name__ == "__main__":
    main()
