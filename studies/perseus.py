"""Learns executed pipelines from half of their plans, predicts the others. Writes docs/evidence.

    OMP_NUM_THREADS=1 python studies/perseus.py
    OMP_NUM_THREADS=1 python studies/perseus.py --data DIR --predict DIR2 --only A100

``--data`` is a folder with ``plans.csv``, ``microbatches_<gpu>_<workload>.csv``. Every second plan
is learned from and the others are predicted, and the other way round; with ``--predict`` all plans
of the first folder are learned from and those of the second are predicted.
"""

import argparse
import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from learned_jobs.executed import FittedJob, Prediction, job_of_executed
from learned_jobs.runs import PASSES, ExecutedRuns, MicrobatchRun, RankRun
from pages import ROOT, fill, markdown, percent
from underclock.arrays import Bools, Floats, Ints
from underclock.core.job.planning import usable
from underclock.core.job.relaxation import Relaxation
from underclock.core.job.sharing import shared
from underclock.core.job.tables import RowChoice, table_of, taken, total
from underclock.core.job.timeline import auto_clocks
from underclock.records import GpuInfo
from underclock.records.job import Held, Job, RankClocks

DATA = ROOT.parent / "shared" / "data" / "perseus"
BETWEEN_NODES = {("A100", 4, 1): 1, ("A40", 8, 1): 3}
"""The slow boundary by GPU, stages and tensor parallelism, as the data's description says."""
COLD = 0  # the warm-up run, where it asked for the top clock everywhere
BUDGETS = (0.01, 0.05)
NO_WORSE = 0.003  # of baseline energy, against executed plans at equal modelled time


def read(plans: Path, passes: str, source: str = "perseus") -> Iterator[ExecutedRuns]:
    """Yield every workload of a folder.

    Args:
        plans: The file of ranks.
        passes: What files of microbatches beside or below it are called, with ``{}`` for GPU and
            workload.
        source: Who made the plans.
    """
    ranks: dict[tuple[str, str], list[dict[str, str]]] = {}
    with plans.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["source"] == source:
                ranks.setdefault((row["gpu"], row["workload"]), []).append(row)
    for (gpu, workload), rows in ranks.items():
        path = plans.parent / passes.format(f"{gpu}_{workload}")
        with path.open(encoding="utf-8") as file:
            found = [
                MicrobatchRun(
                    int(row["plan"]),
                    int(row["stage"]),
                    PASSES["FB".index(row["instruction"])],
                    int(row["microbatch"]),
                    int(row["clock_mhz"]),
                    1e-6 * float(row["time_us"]),
                )
                for row in csv.DictReader(file)
            ]
        first = rows[0]
        stages, data, tensor = (int(first[name]) for name in ("pp", "dp", "tp"))
        runs = ExecutedRuns.of_rows(
            (
                RankRun(
                    int(row["plan"]),
                    int(row["stage"]),
                    float(row["iter_time_s"]),
                    float(row["iter_energy_j"]),
                    float(row["load_sum_s"]) if row["load_sum_s"] else None,
                )
                for row in rows
            ),
            found,
            gpu=GpuInfo(name=gpu),
            workload=workload,
            cold=[COLD] if data == 1 else [],
        )
        between = BETWEEN_NODES.get((gpu, stages, tensor))
        yield replace(runs, data=data, tensor=tensor, between_nodes=between)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Predicted plans beside what they took, all relative. Shapes (plans,)."""

    time: Floats
    energy: Floats
    time_held: Bools
    energy_held: Bools
    slack: Floats
    cold: Bools

    @classmethod
    def of(cls, found: Prediction, runs: ExecutedRuns) -> "Judged":
        """Compare."""
        taken_s, taken_j = runs.iteration_s, runs.total_j
        return cls(
            time=found.time_s / taken_s - 1.0,
            energy=found.energy_j / taken_j - 1.0,
            time_held=(found.time_low_s <= taken_s) & (taken_s <= found.time_high_s),
            energy_held=(found.energy_low_j <= taken_j) & (taken_j <= found.energy_high_j),
            slack=found.slack_s / found.time_s,
            cold=runs.cold,
        )

    @classmethod
    def joined(cls, parts: Sequence["Judged"]) -> "Judged":
        """Put several together."""
        names = ("time", "energy", "time_held", "energy_held", "slack", "cold")
        return cls(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in names})

    def warm(self) -> "Judged":
        """Leave cold plans out."""
        names = ("time", "energy", "time_held", "energy_held", "slack", "cold")
        return Judged(**{name: getattr(self, name)[~self.cold] for name in names})


def errors(of: Floats) -> str:
    """Write mean and greatest error."""
    return f"{100 * np.abs(of).mean():.2f}, {100 * np.abs(of).max():.2f}"


def share(of: Bools) -> str:
    """Write how many held."""
    return f"{of.sum()} of {len(of)}"


def name(runs: ExecutedRuns) -> str:
    """Write which workload."""
    return f"{runs.gpu.name} {runs.workload}"


def halves(runs: ExecutedRuns) -> Judged:
    """Learn from every second plan and predict the others, both ways."""
    even = np.arange(len(runs.plans)) % 2 == 0
    return Judged.joined(
        [
            Judged.of(
                job_of_executed(runs.of(half)).predict(runs.of(~half).clocks_mhz), runs.of(~half)
            )
            for half in (even, ~even)
        ]
    )


def predicted_rows(every: Sequence[tuple[ExecutedRuns, Judged]]) -> Iterator[tuple[str, ...]]:
    """Yield the table of predictions."""
    yield (
        "workload",
        "plans",
        "time %",
        "energy %",
        "time held",
        "energy held",
        "slack %",
        "cold: time, energy %",
    )
    for runs, judged in every:
        warm = judged.warm()
        cold = judged.cold
        yield (
            name(runs),
            str(len(warm.time)),
            errors(warm.time),
            errors(warm.energy),
            share(warm.time_held),
            share(warm.energy_held),
            f"{100 * warm.slack.max():.2f}",
            ", ".join(f"{100 * of[cold][0]:+.1f}" for of in (judged.time, judged.energy))
            if cold.any()
            else "none",
        )
    whole = Judged.joined([judged for _, judged in every]).warm()
    yield (
        "all",
        str(len(whole.time)),
        errors(whole.time),
        errors(whole.energy),
        f"{100 * whole.time_held.mean():.1f} %",
        f"{100 * whole.energy_held.mean():.1f} %",
        "",
        "",
    )


def planned(fit: FittedJob) -> tuple[str, ...]:
    """Plan what was learned, beside what was executed: both on the same job, as it was learned.

    Savings are against the top clock everywhere. One clock change is taken for nothing: passes take
    ten times as long and more.
    """
    runs, job = fit.runs, fit.job
    full = table_of(job)
    table, _ = shared(job, full)
    rows = np.zeros(table.time_s.shape, dtype=bool)
    for at, (_, name_) in enumerate(table.pairs):
        rows[at, : len(job.profiles[name_].rows)] = usable(job.profiles[name_])
    program = Relaxation.of(table, rows, table.auto_wait_w)
    auto_s, auto_j = total(full, taken(full, RowChoice.held(auto_clocks(job))))
    theirs = np.array(
        [
            total(full, taken(full, RowChoice.held(_as_held(job, clocks))))
            for clocks in runs.clocks_mhz[~runs.cold]
        ]
    )
    slower, saved = theirs[:, 0] / auto_s - 1.0, 1.0 - theirs[:, 1] / auto_j
    times_s = np.concatenate([auto_s * (1.0 + np.array(BUDGETS)), theirs[:, 0]])
    ours = np.full(len(times_s), np.nan)
    for at, answer in enumerate(program.solved(times_s.tolist())):
        if answer is not None:
            ours[at] = 1.0 - total(table, taken(table, answer.choice))[1] / auto_j
    cells = []
    for at, budget in enumerate(BUDGETS):
        within = slower <= budget
        executed = percent(-float(saved[within].max()), 1) if within.any() else "none"
        cells.append(f"{percent(-float(ours[at]), 1)} ({executed})")
    gains = ours[len(BUDGETS) :] - saved
    print(name(runs), *cells, np.round(100 * gains, 2).tolist(), flush=True)
    return name(runs), *cells, f"{100 * np.nanmin(gains):+.1f}", str(int((gains < -NO_WORSE).sum()))


def _as_held(job: Job, clocks_mhz: Ints) -> tuple[RankClocks, ...]:
    """Return an executed plan's clocks, shape (S, K, M), as a job's."""
    at_mhz = {
        name_: {row.core_mhz: at for at, row in enumerate(profile.rows)}
        for name_, profile in job.profiles.items()
    }
    return tuple(
        tuple(
            None
            if each.profile is None
            else Held(
                at_mhz[each.profile][
                    int(clocks_mhz[rank.stage, PASSES.index(each.kind), each.microbatch or 0])
                ]
            )
            for each in rank.instructions
        )
        for rank in job.ranks
    )


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA / "even")
    parser.add_argument("--predict", type=Path, help="a folder of other plans of the same jobs")
    parser.add_argument("--only", default="", help="part of a GPU's and workload's name")
    parser.add_argument("--no-plans", action="store_true", help="do not plan what was learned")
    return parser.parse_args()


def judged_runs(args: argparse.Namespace) -> Iterator[tuple[ExecutedRuns, Judged]]:
    """Yield every workload, learned and predicted as asked."""
    files = "plans.csv", "microbatches_{}.csv"
    others = (
        {name(each): each for each in read(args.predict / files[0], files[1])}
        if args.predict
        else {}
    )
    for runs in read(args.data / files[0], files[1]):
        if args.only not in name(runs):
            continue
        if not args.predict:
            judged = halves(runs)
        elif name(runs) in others:
            other = others[name(runs)]
            judged = Judged.of(job_of_executed(runs).predict(other.clocks_mhz), other)
        else:
            continue
        yield runs, judged
        print(
            name(runs),
            "time",
            errors(judged.warm().time),
            "energy",
            errors(judged.warm().energy),
            flush=True,
        )


def rival_rows(runs: Iterable[ExecutedRuns], only: str) -> Iterator[tuple[str, ...]]:
    """Yield what EnvPipe's plans take, predicted by what was learned from Perseus'."""
    yield "EnvPipe on", "plans", "time %", "energy %", "time held", "energy held"
    known = {name(each): each for each in runs}
    for other in read(DATA / "rivals.csv", "rivals/microbatches_envpipe_{}.csv", "envpipe"):
        if name(other) in known and only in name(other):
            judged = Judged.of(job_of_executed(known[name(other)]).predict(other.clocks_mhz), other)
            warm = judged.warm()
            held = share(warm.time_held), share(warm.energy_held)
            yield name(other), str(len(warm.time)), errors(warm.time), errors(warm.energy), *held


def main() -> None:
    """Learn, predict, plan, and write the page."""
    args = options()
    every = list(judged_runs(args))
    parts = {"predicted": markdown(predicted_rows(every))}
    if not args.no_plans:
        rows = [planned(job_of_executed(runs)) for runs, _ in every]
        header = (
            "workload",
            "≤ 1 % (executed)",
            "≤ 5 % (executed)",
            "least gain, points",
            "worse by > 0.3",
        )
        parts["planned"] = markdown([header, *rows])
        if args.data == DATA / "even":
            parts["rivals"] = markdown(rival_rows([runs for runs, _ in every], args.only))
    whole = args.data == DATA / "even" and not (args.only or args.predict)
    fill("executed_jobs", parts, repeats="Both halves of the plans given, once.", whole=whole)


if __name__ == "__main__":
    main()
