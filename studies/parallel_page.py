"""Writes docs/evidence/h200/parallel.md of what `studies/parallel.py` saw.

python studies/parallel_page.py FOLDER [FOLDER-OF-RUN-LOGS] > docs/evidence/h200/parallel.md
"""

import dataclasses
import gzip
import json
import statistics
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from underclock.core.tracing.host import bytes_of
from underclock.core.tracing.profile import activities, stream_waits
from underclock.core.tracing.streams import RankStep, steps_s, streams
from underclock.records import Pass
from underclock.records.launches import TracedActivity
from underclock.runtime.conductor.log import last_run, read_log, summary_of

_RANKS, _MS = 2, 1e3
_NAMES = {
    "allreduce": "all_reduce",
    "_allgather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
}
_STEPS = {"ddp": "DDP", "fsdp": "FSDP2"}
_HEAD = """\
# Training steps of two ranks on two H200s

**Measured** on {gpu}s joined by NVLink (PyTorch {torch}, NCCL {nccl}, NVLink multicast
off), one process each, the machine shared and virtual. GPT-3 XL with 8 of its layers and batch 8 a
rank, bf16, AdamW; every number here is at auto clocks, and nothing was set.

    UNDERCLOCK_READ_ONLY=1 NCCL_NVLS_ENABLE=0 torchrun --standalone --nproc-per-node 2 \\
        studies/parallel.py FOLDER
    python studies/parallel_page.py FOLDER LOGS > docs/evidence/h200/parallel.md

## What a step takes, predicted

From profiles of {profiles} steps each: which launch waits for which (streams and their waits for
one another), the median of what each launch took, for a collective the least of the ranks, and
{gap} µs between launches. Compared with the median of {times} steps that nobody looked at.

| step | launches | collectives | step | predicted | off | off, of single profiles |
|---|---|---|---|---|---|---|
"""
_MIDDLE = """
Wanted: within 3 %. **Met** with the median of profiles; a single profile may catch a step that
stood still. Every second or so a few steps take up to 7 % longer, which medians leave out.

From other measurements than the step's own it is **not** met: kernels as they take in a step
without other ranks, collectives alone (by size, interpolated), order and waits from a profile.

| step | predicted | off | kernels known without ranks | collectives alone | in the step |
|---|---|---|---|---|---|
"""
_TAIL = """
What is missing is that a collective and the kernels beside it slow each other: they share SMs and
memory. So a step with collectives is to be measured as it runs, on all ranks.

## What of the collectives is off the critical path

By how much longer each could take with the step as long as it is, all else as it was (rank 0, one
profile). With CUDA 13 PyTorch's profiler does not say for whom a stream waits; it is told by what
had ended in time.

"""
_DONE = """
DDP's reductions may all wait until the backward pass is over; FSDP2's gathers run one block ahead.

## Clocks held on two ranks, dry

`underclock run PLAN --dry-run --gpu nvml:0 --gpu nvml:1 -- torchrun … zoo/parallel.py ddp 150`: one
conductor for both ranks, a plan by hand with 6 changes in a step and 12 marks, nothing set; before
the conductor was made to look less (`../held.md`).

| step | steps followed, of | boundary expected within, median | 99 of 100 | conductor, of a core |
|---|---|---|---|---|
"""
_END = """
## Traced

`torchrun … -m underclock trace studies/zoo/parallel.py:fsdp -o step.json` writes a file for
each rank. Both steps are captured whole on both ranks, collectives and all: FSDP2's (97 kernels,
576 launches) in 14 s, DDP's (93 kernels, 610 launches) in 15 s, starting Python included. DDP's was
not at first ("invalid argument"): DDP times its first ten runs with events, and those that a
capture recorded cannot be read. A step of several ranks is warmed up eleven times since, on the
stream on which it is captured, as PyTorch advises; that mended it. Two defects were found here and
mended: sharded parameters could not be kept and put back, and a rank that called `set_device`
inside its step was captured on another GPU than it ran on, while the first rank waited for it for
ever.

## Measured in lockstep

`torchrun … -m underclock measure step.json --gpu nvml:0 --core-mhz auto --warmup 0.1s --window
0.3s`, 2026-11-23: the first rank measures, the other launches what it launches, as often. Every
kernel alone on both ranks at once, collectives too; loading, capturing and warming included.

| step | kernels | measured in | a kernel | the step | a GPU | power, core clock |
|---|---|---|---|---|---|---|
| FSDP2 | 97 | 86 s | **0.9 s** | 73.93 ms | 51.1 J | 692 W, 1710 MHz |
| DDP | 93 | 83 s | **0.9 s** | 71.81 ms | 49.7 J | 692 W, 1770 MHz |

| collective | launches | alone | in the step | power alone |
|---|---|---|---|---|
| FSDP2: gather, model | 1 | 0.422 ms | 0.427 ms | 315 W |
| gather, block | 16 | 0.219 ms | 0.340 ms | 311 W |
| reduce-scatter, block | 8 | 0.239 ms | 0.294 ms | 327 W |
| reduce-scatter, model | 1 | 0.466 ms | 0.476 ms | 304 W |
| DDP: all-reduce of a block, three of them | 24 | 0.133 ms | not seen | 261 W |
| all-reduce, embedding | 1 | 0.707 ms | not seen | 288 W |
| broadcast of the mask | 1 | 0.034 ms | not seen | 178 W |

| step | launches alone, together | those that the step waits for | the step |
|---|---|---|---|
| FSDP2 | 79.3 ms | 74.15 ms | 73.93 ms (**+0.3 %**) |
| DDP | 76.88 ms | 73.70 ms | 71.81 ms (**+2.6 %**) |

Most collectives run beside other launches. How much of one the step waits for a profile tells: of
FSDP2's all of the model's two, one gather of a block in sixteen, none of the blocks'
reduce-scatters; of DDP's the last all-reduce and the broadcast. Costs and plans count them so.
Plans at other clocks were not measured: nothing may be set here.

FSDP2's step was steered for as long as `--clocks steer --time-limit 200s` says: 202 s of GPU time
gave 45 measurements, 4 s each where 2.1 had been foretold. They went through the kernels in the
step's order, so that 60 of 97 were never run alone, all of the backward pass but its first, and
the plan made of them said so and promised -21 ± 19 %: nothing to go by. Since then the kernels
that take longest come first, and what a look at launches takes is foretold; that was not run here
again.
"""


def main() -> None:
    """Write the page."""
    folder = Path(sys.argv[1])
    logs = Path(sys.argv[2])
    first = _read(folder, "ddp", 0)
    print(
        _HEAD.format(
            gpu=f"two {first['gpu']}",
            torch=first["torch"],
            nccl=first["nccl"],
            profiles=len(first["profiles"]),
            times=2 * len(first["step_s"]),
            gap="1.7",
        ),
        end="",
    )
    print("\n".join(_predicted(folder, name) for name in _STEPS))
    print(_MIDDLE, end="")
    print("\n".join(_from_elsewhere(folder, name) for name in _STEPS))
    print(_TAIL, end="")
    print("\n".join(_slack(folder, name) for name in _STEPS))
    print(_DONE, end="")
    print("\n".join(_held(logs / f"run.{name}.jsonl", name) for name in _STEPS))
    print(_END, end="")


def _read(folder: Path, name: str, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        gzip.decompress((folder / f"{name}.rank{rank}.json.gz").read_bytes())
    )
    return found


@cache
def _ranks(folder: Path, name: str) -> list[list[tuple[tuple[TracedActivity, ...], RankStep]]]:
    """Return launches and rank of both, profile by profile."""
    found = []
    read = [_read(folder, name, number) for number in range(_RANKS)]
    for traces in zip(*(each["profiles"] for each in read), strict=True):
        both = []
        for trace in traces:
            seen = activities(trace)
            of = tuple(i for i, one in enumerate(seen) if one.pass_ is Pass.COMMUNICATION)
            rank = RankStep(streams=streams(seen, stream_waits(trace)), collectives=of)
            both.append((seen, rank))
        found.append(both)
    return found


def _with(rank: RankStep, duration_s: np.ndarray[Any, Any]) -> RankStep:
    return dataclasses.replace(
        rank, streams=dataclasses.replace(rank.streams, duration_s=duration_s)
    )


def _plain_s(folder: Path, name: str) -> float:
    first = _read(folder, name, 0)
    return float(statistics.median(first["step_s"] + first["again_s"]))


def _medians(profiles: Sequence[Sequence[tuple[Any, RankStep]]]) -> list[RankStep]:
    """Return the ranks of the last profile, whose launches take what they take in the middle."""
    return [
        _with(
            profiles[-1][number][1],
            np.median([both[number][1].streams.duration_s for both in profiles], axis=0),
        )
        for number in range(_RANKS)
    ]


def _predicted(folder: Path, name: str) -> str:
    profiles = _ranks(folder, name)
    plain_s = _plain_s(folder, name)
    (predicted_s, *_) = steps_s(_medians(profiles))
    singles = [steps_s([rank for _, rank in both])[0] / plain_s - 1 for both in profiles]
    seen, rank = profiles[-1][0]
    return (
        f"| {_STEPS[name]} | {len(seen)} | {len(rank.collectives)} | {_MS * plain_s:.2f} ms | "
        f"{_MS * predicted_s:.2f} ms | {100 * (predicted_s / plain_s - 1):+.1f} % | "
        + ", ".join(f"{100 * off:+.1f}" for off in singles)
        + " % |"
    )


def _from_elsewhere(folder: Path, name: str) -> str:
    profiles = _ranks(folder, name)
    plain_s = _plain_s(folder, name)
    alone: dict[object, list[float]] = {}
    for trace in _read(folder, "alone", 0)["profiles"][1:]:
        for one in activities(trace):
            alone.setdefault(_key(one), []).append(one.duration_s)
    sizes: dict[str, list[tuple[int, float]]] = {}
    for key, taken_s in _read(folder, name, 0)["collectives"].items():
        collective, size = key.split()
        sizes.setdefault(collective, []).append((int(size), statistics.median(taken_s)))
    known_s = all_s = alone_s = 0.0
    ranks = []
    for (seen, _), rank in zip(profiles[-1], _medians(profiles), strict=True):
        durations = rank.streams.duration_s.copy()
        for i, one in enumerate(seen):
            taken = sizes.get(_NAMES.get(one.operator.removeprefix("nccl::"), ""))
            if one.pass_ is Pass.COMMUNICATION:
                if taken:
                    durations[i] = _interpolated(taken, one)
                alone_s += durations[i] / _RANKS
                continue
            all_s += durations[i]
            if _key(one) in alone:
                known_s += durations[i]
                durations[i] = statistics.median(alone[_key(one)])
        ranks.append(_with(rank, durations))
    medians = [rank.streams.duration_s[list(rank.collectives)] for rank in _medians(profiles)]
    in_step_s = np.minimum(*medians).sum()
    (predicted_s, *_) = steps_s(ranks)
    off = predicted_s / plain_s - 1
    return (
        f"| {_STEPS[name]} | {_MS * predicted_s:.2f} ms | {100 * off:+.1f} % | "
        f"{100 * known_s / all_s:.0f} % | {_MS * alone_s:.1f} ms | {_MS * in_step_s:.1f} ms |"
    )


def _key(one: TracedActivity) -> object:
    return one.kind, one.function, one.grid, one.block, one.operator, one.shapes


def _interpolated(taken: Sequence[tuple[int, float]], one: TracedActivity) -> float:
    """Return what a collective of as many bytes takes alone, the larger of what goes in and out."""
    sizes, times_s = zip(*sorted(taken), strict=True)
    moved = bytes_of(one.operator, one.shapes) or 0.0
    whole = moved / 2 if "allreduce" in one.operator else moved * 2 / 3
    if whole > sizes[-1]:
        return float(times_s[-1] * whole / sizes[-1])
    return float(np.interp(whole, sizes, times_s))


def _slack(folder: Path, name: str) -> str:
    both = _ranks(folder, name)[-1]
    _, rank = both[0]
    slack_s = rank.streams.slack_s()[list(rank.collectives)]
    return f"- {_STEPS[name]}, in the order asked for, ms: " + ", ".join(
        f"{_MS * each:.1f}" for each in slack_s
    )


def _held(log: Path, name: str) -> str:
    said = summary_of(last_run(read_log(log)))
    if said.error_p50_s is None or said.error_p99_s is None or said.conductor is None:
        raise SystemExit(f"{log} holds no run that was followed")
    return (
        f"| {_STEPS[name]} | {said.followed} of {said.steps} | {_MS * said.error_p50_s:.3f} ms | "
        f"{_MS * said.error_p99_s:.2f} ms | {100 * said.conductor:.1f} % |"
    )


if __name__ == "__main__":
    main()
