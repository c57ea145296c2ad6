"""Serves the Azure traces on simulated GPUs, clocks chosen in many ways. Writes docs/evidence.

    OMP_NUM_THREADS=1 python studies/serving.py --jobs 16
    OMP_NUM_THREADS=1 python studies/serving.py --quick

A seed is a window of a trace from somewhere in it, ten minutes after five that only warm up.
Everything else is as `serving_engine` says. Every way is set beside auto on the same requests.
"""

import argparse
import csv
import datetime as dt
import itertools
import math
import random
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pages import MEASURED, fill, markdown, percent
from serving_engine import (
    BATCHES,
    CONTEXT_EACH,
    CONTEXTS,
    PROMPTS,
    Begun,
    Board,
    Clocking,
    Request,
    Served,
    serve,
)
from underclock.core.statistics.student import student_quantile
from underclock.errors import DataError
from underclock.gpus.models import gpu_model
from underclock.records import AUTO, Clocks, Evidence, GpuInfo, Pass
from underclock.records.serving import Basis, ServingBucket, ServingCost, ServingPlan
from underclock.runtime.policy.governor import Governor, Note
from underclock.runtime.trainer.notes import BEGIN, END
from underclock.runtime.trainer.pace import Pace
from underclock.units import format_duration

FIRST_SEED = 10  # the constants of a pace were chosen on those before
WARM_S, WINDOW_S = 300.0, 600.0  # not counted, and counted
TRACES = ("conv", "code")
COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")  # of a trace
MODELS = {  # what a GPU serves; twelve GB hold no 8 billion parameters
    "h200": {},
    "a100": {},
    "rtx3080ti": {"layers": 16, "hidden": 2048, "intermediate": 8192},
}
BUDGET = 0.01  # of a step over auto, where nothing says how long it may take
KEPT = 0.02  # later than auto in both quantiles: more is not kept
LATENCY_S = 6e-3
LATENCIES_S = (1e-6, 1e-3, 6e-3, 0.02, 0.15)
FIXED = tuple(share / 100 for share in range(98, 48, -3))  # of the highest clock
AIMED = (1.0, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)  # of auto's own token time that most keep
PACED = (0.97, 0.94, 0.9, 0.85, 0.8)  # and of both targets of a pace
LIMITED = (0.9, 0.8, 0.7, 0.6, 0.5)  # of the power limit
QUANTILES = (0.5, 0.99)


class Fixed:
    """One clock for everything."""

    def __init__(self, clock: int) -> None:
        self._clock = clock
        self.changes = 0

    def begin(self, now_s: float, step: Begun) -> None:
        """Change nothing."""

    def comes(self, now_s: float, prompt: int, within_s: float | None) -> None:
        """Change nothing."""

    def running(self, now_s: float) -> int:
        """Return it."""
        del now_s
        return self._clock

    def changes_s(self, now_s: float) -> float:
        """Return that it never changes."""
        del now_s
        return math.inf


class Changing(Fixed):
    """A clock that runs so long after it was asked for."""

    def __init__(self, board: Board, latency_s: float) -> None:
        super().__init__(len(board.core_mhz) - 1)
        self.board, self._latency_s = board, latency_s
        self._coming: deque[tuple[float, int]] = deque()
        self.asked = self._clock

    def ask(self, clock: int, now_s: float) -> None:
        """Ask for a clock."""
        if clock != self.asked:
            self.asked = clock
            self.changes += 1
            self._coming.append((now_s + self._latency_s, clock))

    def running(self, now_s: float) -> int:
        """Return the clock that runs."""
        while self._coming and self._coming[0][0] <= now_s:
            self._clock = self._coming.popleft()[1]
        return self._clock

    def changes_s(self, now_s: float) -> float:
        """Return when the next one runs."""
        del now_s
        return self._coming[0][0] if self._coming else math.inf


class Governed(Changing):
    """What the package's governor asks for."""

    def __init__(self, board: Board, plan: ServingPlan, latency_s: float) -> None:
        super().__init__(board, latency_s)
        self._governor = Governor(plan, latency_s)

    def begin(self, now_s: float, step: Begun) -> None:
        """Tell it of a step."""
        kind = BEGIN if step.batch else END
        within_s = None if step.within_s is None else max(step.within_s, 0.0)
        note = Note(kind, step.phase, step.batch, step.context, within_s)
        self._governor.noted(note, now_s)

    def comes(self, now_s: float, prompt: int, within_s: float | None) -> None:
        """Tell it what comes next."""
        self._governor.noted(Note(BEGIN, Pass.PREFILL, 1, prompt, within_s), now_s)

    def running(self, now_s: float) -> int:
        """Ask for what is due, and return the clock that runs."""
        clocks = self._governor.ask(now_s)
        if clocks is not None:
            self._governor.changed(clocks, now_s)
            self.ask(self.board.index(clocks.core_mhz), now_s)
        return super().running(now_s)

    def changes_s(self, now_s: float) -> float:
        """Return when the next one runs, or something is due."""
        return min(super().changes_s(now_s), max(self._governor.next_s(now_s), now_s + 1e-9))


class Feedback(Changing):
    """Prefill at auto; decode's clock follows what tokens took of late, as in arXiv 2508.16449.

    Ten times a second it goes up by two steps where the mean was above the target, and down by one
    where it was below nine tenths of it.
    """

    EACH_S, UP, DOWN, WELL = 0.1, 2, 1, 0.9

    def __init__(self, board: Board, latency_s: float, target_s: float) -> None:
        super().__init__(board, latency_s)
        self._target_s, self._decode = target_s, self._clock
        self._began_s, self._since_s = -1.0, 0.0
        self._took: list[float] = []

    def begin(self, now_s: float, step: Begun) -> None:
        """Choose anew from what the last step took."""
        if self._began_s >= 0.0:
            self._took.append(now_s - self._began_s)
        self._began_s = now_s if step.batch and step.phase is Pass.DECODE else -1.0
        top = len(self.board.core_mhz) - 1
        if self._took and now_s - self._since_s >= self.EACH_S:
            mean_s = statistics.fmean(self._took)
            if mean_s > self._target_s:
                self._decode = min(top, self._decode + self.UP)
            elif mean_s < self.WELL * self._target_s:
                self._decode = max(0, self._decode - self.DOWN)
            self._since_s, self._took = now_s, []
        self.ask(top if step.phase is Pass.PREFILL else self._decode, now_s)


class Predictive(Changing):
    """Once a second the least clock at which a step would be in time, as in arXiv 2408.05235.

    With prompts that wait it is auto.
    """

    EACH_S = 1.0

    def __init__(self, board: Board, latency_s: float, target_s: float) -> None:
        super().__init__(board, latency_s)
        self._target_s, self._since_s = target_s, -math.inf

    def begin(self, now_s: float, step: Begun) -> None:
        """Choose anew once in a while."""
        top = len(self.board.core_mhz) - 1
        if step.waiting:
            self.ask(top, now_s)
        elif step.phase is Pass.DECODE and step.batch and now_s - self._since_s >= self.EACH_S:
            self._since_s = now_s
            times = self.board.decode_s[step.batch][step.context // CONTEXT_EACH + 1]
            in_time = [clock for clock, each_s in enumerate(times) if each_s <= self._target_s]
            self.ask(min(in_time, default=top), now_s)


def table(board: Board, max_slowdown: float) -> ServingPlan:
    """Plan a board's steps from what they cost, each within a budget over auto."""
    buckets = []
    for phase, batches, contexts in (
        (Pass.DECODE, BATCHES, CONTEXTS),
        (Pass.PREFILL, (1,), PROMPTS),
    ):
        for batch in batches:
            for context in contexts:
                times, joules = _cell(board, phase, batch, context)
                buckets.append(_bucket(board, phase, batch, context, times, joules, max_slowdown))
    return ServingPlan(
        evidence=Evidence.SIMULATED,
        gpu=GpuInfo(name=board.name),
        workload=board.model,
        max_slowdown=max_slowdown,
        fixed=None,
        buckets=tuple(buckets),
    )


def _cell(board: Board, phase: Pass, batch: int, context: int) -> tuple[list[float], list[float]]:
    if phase is Pass.DECODE:
        at = min(context // CONTEXT_EACH, len(board.decode_s[0]) - 1)
        return board.decode_s[batch][at], board.decode_j[batch][at]
    at = context // PROMPTS[0]
    return board.prefill_s[at], board.prefill_j[at]


def _bucket(
    board: Board, phase: Pass, batch: int, context: int, times: list[float], joules: list[float],
    max_slowdown: float,
) -> ServingBucket:  # fmt: skip
    top = len(times) - 1
    costs = [
        ServingCost(
            clocks=AUTO if c == top else Clocks(core_mhz=int(board.core_mhz[c])),
            time_s=times[c],
            time_interval_s=(times[c], times[c]),
            energy_j=joules[c],
            energy_interval_j=(joules[c], joules[c]),
            basis=Basis.MODELLED,
        )
        for c in range(top + 1)
    ]
    frontier: list[ServingCost] = []
    for cost in sorted(costs, key=lambda each: (each.time_s, each.energy_j, each.clocks.rank)):
        if not frontier or cost.energy_j < frontier[-1].energy_j:
            frontier.append(cost)
    within = [each for each in frontier if each.time_s <= times[top] * (1.0 + max_slowdown)]
    return ServingBucket(
        pass_=phase,
        batch=batch,
        context=context,
        tokens=batch if phase is Pass.DECODE else context,
        auto=costs[top],
        chosen=within[-1],
        frontier=tuple(frontier),
    )


class Outcome(NamedTuple):
    """What one way did with a window, each over auto's on the same requests."""

    way: str
    energy: float
    joules_per_token: float
    ttft: tuple[float, float]  # median and 99th percentile
    tpot: tuple[float, float]


def outcomes(name: str, trace: str, seed: int) -> list[Outcome]:
    """Serve one window every way."""
    limit_w = gpu_model(name).limit_w[0]
    board = Board.of(name, "llama3-8b", MODELS[name], limit_w=limit_w)
    requests = window(trace, seed)
    base = serve(requests, board, Fixed(len(board.core_mhz) - 1), counted_s=WARM_S)
    tpot_s, ttft_s = (float(np.quantile(each, QUANTILES[1])) for each in (base.tpot_s, base.ttft_s))
    made = []

    def tried(way: str, clocking: Clocking, pace: Pace | None = None, on: Board = board) -> None:
        served = serve(requests, on, clocking, pace, counted_s=WARM_S)
        made.append(_outcome(way, served, base))

    tried("auto", Fixed(len(board.core_mhz) - 1))
    for share in FIXED:
        tried(f"fixed {share:.0%}", Fixed(board.index(share * board.core_mhz[-1])))
    for share in LIMITED:
        limited = Board.of(name, "llama3-8b", MODELS[name], limit_w=share * limit_w)
        tried(f"limit {share:.0%}", Fixed(len(board.core_mhz) - 1), on=limited)
    plan = table(board, BUDGET)
    tried("table", Governed(board, plan, LATENCY_S))
    for latency_s in LATENCIES_S:
        way = f"pace {format_duration(latency_s)}"
        tried(way, Governed(board, plan, latency_s), Pace(tpot_s, ttft_s))
    for share in PACED:
        pace = Pace(share * tpot_s, share * ttft_s)
        tried(f"aimed {share:.0%}", Governed(board, plan, LATENCY_S), pace)
    for share in AIMED:
        tried(f"feedback {share:.0%}", Feedback(board, LATENCY_S, share * tpot_s))
        tried(f"predictive {share:.0%}", Predictive(board, LATENCY_S, share * tpot_s))
    return made


def _outcome(way: str, served: Served, base: Served) -> Outcome:
    def over(of: Callable[[Served], list[float]]) -> tuple[float, float]:
        half, most = np.quantile(of(served), QUANTILES) / np.quantile(of(base), QUANTILES) - 1.0
        return float(half), float(most)

    return Outcome(
        way=way,
        energy=served.energy_j / base.energy_j - 1.0,
        joules_per_token=served.energy_j / served.tokens,
        ttft=over(lambda each: each.ttft_s),
        tpot=over(lambda each: each.tpot_s),
    )


@cache
def _trace(name: str) -> tuple[Request, ...]:
    return read_trace(MEASURED.parent / "azure_llm" / f"{name}.csv")


def read_trace(path: Path) -> tuple[Request, ...]:
    """Read a trace of requests, counted from the first; those that make no token are left out.

    Raises:
        DataError: It lacks a column, lengths for example, or has no requests.
    """
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        found, rows = reader.fieldnames or (), list(reader)
    if not set(COLUMNS) <= set(found):
        raise DataError(
            f"{path} is no trace of requests: looked for the columns {', '.join(COLUMNS)}, found "
            + (", ".join(found) or "none"),
            hint="a request's time and both its lengths in tokens are needed",
        )
    if not rows:
        raise DataError(f"{path} has no requests", hint="take a trace that has some")
    # Python reads microseconds, the trace has tenths of them.
    times = [dt.datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    return tuple(
        Request(
            (at - times[0]).total_seconds(), int(row["ContextTokens"]), int(row["GeneratedTokens"])
        )
        for at, row in zip(times, rows, strict=True)
        if int(row["GeneratedTokens"]) > 0
    )


def window(trace: str, seed: int) -> list[Request]:
    """Return the requests of a window somewhere in a trace, counted from its begin."""
    requests = _trace(trace)
    draw = random.Random(seed)  # noqa: S311 - which window is tried
    begin_s = draw.uniform(0.0, requests[-1].at_s - WARM_S - WINDOW_S)
    within = (each._replace(at_s=each.at_s - begin_s) for each in requests)
    return [each for each in within if 0.0 <= each.at_s < WARM_S + WINDOW_S]


def _mean(values: Sequence[float]) -> str:
    """Write a mean change, and half its 95 % interval over windows."""
    mean = statistics.fmean(values)
    if len(values) < 2:  # noqa: PLR2004
        return percent(mean, 1)
    half = student_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{percent(mean, 1)} ± {100 * half:.1f}"


def _kept(some: Sequence[Outcome]) -> bool:
    return all(
        statistics.fmean(getattr(each, name)[1] for each in some) <= KEPT
        for name in ("ttft", "tpot")
    )


_NAMES = {
    "table": "governor by the table: a step is 1 % slower at most",
    "fixed": "best fixed clock that is kept",
    "limit": "best power limit that is kept",
    "aimed": "governor with a pace, 6 ms, best aim that is kept",
    "feedback": "feedback on token times, best aim that is kept",
    "predictive": "least clock in time each second, best aim that is kept",
}


def shown(found: Iterable[list[Outcome]]) -> str:
    """Return the table of one GPU and trace."""
    by_way: dict[str, list[Outcome]] = {}
    for each in itertools.chain.from_iterable(found):
        by_way.setdefault(each.way, []).append(each)
    rows: list[Sequence[object]] = [
        ("way", "energy", "TTFT p50", "p99", "TPOT p50", "p99", "kept", "J a token")
    ]
    best = {
        kind: min(
            (way for way, some in by_way.items() if way.startswith(kind) and _kept(some)),
            key=lambda way: statistics.fmean(each.energy for each in by_way[way]),
            default=None,
        )
        for kind in ("fixed", "limit", "aimed", "feedback", "predictive")
    }
    for way, some in by_way.items():
        kind = way.partition(" ")[0]
        if kind in best and way != best[kind]:
            continue
        label = f"{_NAMES[kind]}: {way[len(kind) + 1 :]}" if kind in best else _NAMES.get(way, way)
        rows.append(
            (
                f"governor with a pace, {way[5:]}" if kind == "pace" else label,
                _mean([each.energy for each in some]),
                *(_mean([each.ttft[i] for each in some]) for i in (0, 1)),
                *(_mean([each.tpot[i] for each in some]) for i in (0, 1)),
                "yes" if _kept(some) else "no",
                f"{statistics.fmean(each.joules_per_token for each in some):.3f}",
            )
        )
    return markdown(rows)


def main() -> None:
    """Serve every window on every GPU, and fill the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=FIRST_SEED)
    parser.add_argument("--gpus", nargs="+", default=list(MODELS))
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + (1 if asked.quick else asked.seeds))
    cases = [(name, trace) for name in asked.gpus for trace in TRACES]
    cases = cases[: 1 if asked.quick else None]
    with ProcessPoolExecutor(asked.jobs) as pool:
        running = {case: [pool.submit(outcomes, *case, seed) for seed in seeds] for case in cases}
        parts = {
            f"{name} {trace}": shown([each.result() for each in running[name, trace]])
            for name, trace in cases
        }
    words = f"{len(seeds)} windows of {WINDOW_S / 60:.0f} minutes of each trace, on each GPU."
    fill("serving", parts, repeats=words, whole=not asked.quick)


if __name__ == "__main__":
    main()
