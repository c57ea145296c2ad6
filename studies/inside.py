"""Clocks that change inside instructions, against one for each; writes its page of evidence.

OMP_NUM_THREADS=1 python studies/inside.py
"""

import argparse
import itertools
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from executed import latency_text, switching
from pages import EVIDENCE, fill, markdown, percent
from simulated_steps import execute
from underclock import measure, trace
from underclock.app.planning import costs_of
from underclock.campaign.survey import Campaign, Grid
from underclock.core.job.frontiers import stage_profiles
from underclock.core.job.relaxation import Relaxation
from underclock.core.job.schedules import Layout, pipeline
from underclock.core.job.tables import RowChoice, table_of, taken, total
from underclock.core.planning.sequence import Rules
from underclock.core.solvers import Problem, supported
from underclock.core.step.table import CostTable
from underclock.hw.measurer import BRISK
from underclock.hw.simulated.rig import simulated_rig
from underclock.records import AUTO, Clocks, Evidence, Pass, SampleSet
from underclock.records.job import Job, Profile, ProfileRow, Waiting
from underclock.records.latencies import LatencyTable
from underclock.runtime.simulated import Scheduled
from underclock.store import read_samples

SIMULATED = {"rtx3080ti": 8, "h200": 40}  # sequences of a microbatch
MEASURED = ("steered-xl-5", "steered-llama-6")
LAYERS = 6
SLOWER = (0.0, 0.02, 0.05, 0.10, 0.20)
LATENCIES_S = (1e-3, 6e-3, 20e-3, 0.0)
BUDGETS = (0.0, 0.01, 0.05)
KINDS = ("forward", "backward", "optimizer")
STEPS, RUNS, WARM_S, AGAIN_S = 3, 4, 200.0, 3.0


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Samples of a stage's step, and what they say.

    Attributes:
        name: What it is.
        sample_set: As measured.
        table: What its kernels cost.
        profiles: Of its instructions, by what changing clocks inside takes; ``None``: none do.
    """

    name: str
    sample_set: SampleSet
    table: CostTable
    profiles: dict[float | None, dict[str, Profile]]

    @classmethod
    def of(
        cls, name: str, sample_set: SampleSet, latencies_s: Sequence[float] = LATENCIES_S
    ) -> "Stage":
        """Fit samples once, and make profiles of them."""
        costs = costs_of(sample_set, None, raw=None, isolated=False)
        profiles = {}
        for latency_s in (None, *latencies_s):
            rules = latency_s is not None and Rules(latencies=LatencyTable.constant(latency_s))
            found = stage_profiles(costs.table, sample_set.order, None, rules or None)
            profiles[latency_s] = {str(kind): each for kind, each in found.profiles.items()}
        return cls(name=name, sample_set=sample_set, table=costs.table, profiles=profiles)


def stages(folder: Path, *, quick: bool) -> Iterator[Stage]:
    """Yield simulated and measured stages; quickly the first measured one."""
    for gpu, batch in () if quick else SIMULATED.items():
        path = folder / f"{gpu}.db"
        if not path.exists():
            step = trace("gpt3-xl", layers=LAYERS, batch=batch)
            campaign = Campaign(grid=Grid.ADAPTIVE)
            measure(step, gpu=f"sim:{gpu}", to=path, campaign=campaign, measuring=BRISK)
        yield Stage.of(f"`sim:{gpu}`", read_samples(path))
    for name in MEASURED[:1] if quick else MEASURED:
        found = (EVIDENCE / "h200" / f"{name}.json").read_bytes()
        latencies_s = LATENCIES_S[-2:-1] if quick else LATENCIES_S
        yield Stage.of(f"`{name}`", msgspec.json.decode(found, type=SampleSet), latencies_s)


def least_j(profile: Profile, time_s: float, *, inside: bool) -> float:
    """Return the least energy of an instruction in a time, rows mixed."""
    rows = [row for row in profile.rows if inside or not row.inside]
    times_s, energies_j = np.array([(row.time_s, row.energy_j) for row in rows]).T
    hull_s, hull_j = supported(Problem(time_s=times_s[None], energy_j=energies_j[None]))
    return float(np.interp(time_s, hull_s, hull_j))


def instructions(stage: Stage) -> Iterator[list[str]]:
    """Yield what one clock saves of each instruction, and how much more clocks inside do."""
    for kind in KINDS[:2]:
        profile = stage.profiles[None][kind]
        auto = profile.rows[profile.auto]
        auto_j = auto.energy_j or 0.0
        times_s = [auto.time_s * (1.0 + slower) for slower in SLOWER]
        plain_j = [least_j(profile, each_s, inside=False) for each_s in times_s]
        saved = [percent(each / auto_j - 1.0) for each in plain_j]
        yield [f"{stage.name} {kind}", f"{1e3 * auto.time_s:.0f} ms", "one clock", *saved]
        for latency_s in [each for each in stage.profiles if each is not None]:
            inside_j = (
                least_j(stage.profiles[latency_s][kind], each_s, inside=True) for each_s in times_s
            )
            more = [(a - b) / auto_j for a, b in zip(inside_j, plain_j, strict=True)]
            yield ["", "", f"inside, {latency_text(latency_s)}", *map(percent, more)]


def job_of(stage: Stage, latency_s: float | None) -> Job:
    """Return a pipeline of stages that are all alike; waiting draws a fifth of the most."""
    known = stage.profiles[latency_s]
    most_w = max((row.energy_j or 0.0) / row.time_s for of in known.values() for row in of.rows)
    return pipeline(
        "1f1b",
        Layout(stages=4, microbatches=16),
        {f"stage {at} {kind}": each for at in range(4) for kind, each in known.items()},
        waiting=dict.fromkeys(range(4), (Waiting(power_w=0.2 * most_w),)),
        gpu=stage.sample_set.gpu,
        workload=stage.sample_set.workload,
        evidence=stage.sample_set.evidence,
    )


def jobs(stage: Stage) -> Iterator[list[str]]:
    """Yield the least that a pipeline of such stages can take, on the relaxation."""
    shown: list[list[str]] = []
    for latency_s in (None, 6e-3, 0.0):
        job = job_of(stage, latency_s)
        table = table_of(job)
        waiting_w = np.array([rank.waiting[-1].power_w for rank in job.ranks])
        program = Relaxation.of(table, np.isfinite(table.time_s), waiting_w)
        auto_s, auto_j = total(table, taken(table, RowChoice.rows(table.auto[table.pair])))
        times_s = [float(auto_s) * (1.0 + budget) for budget in BUDGETS]
        found = [math.nan if each is None else each.bound_j for each in program.solved(times_s)]
        shown.append([percent(each / float(auto_j) - 1.0) for each in found])
    for budget, *saved in zip(BUDGETS, *shown, strict=True):
        yield [stage.name, f"{budget:.0%}", *saved]


def nearest(profile: Profile, slower: float, *, inside: bool) -> ProfileRow:
    """Return the row of least energy that is about so much slower than auto."""
    wanted_s = profile.rows[profile.auto].time_s * (1.0 + slower)
    kept = [row for row in profile.rows if bool(row.inside) == inside and row.clocks != AUTO]
    near_s = min(abs(row.time_s - wanted_s) for row in kept)
    near = [row for row in kept if abs(row.time_s - wanted_s) <= near_s + 0.004 * wanted_s]
    return min(near, key=lambda row: row.energy_j or 0.0)


def runs(stage: Stage) -> Iterator[list[str]]:
    """Yield what a stage's step truly takes on a simulated GPU, each instruction by a row."""
    order, gpu = list(stage.sample_set.order), stage.name.strip("`").removeprefix("sim:")
    passes = [stage.sample_set.kernels[k].pass_ for k in order]
    switches = any(row.inside for each in stage.profiles[6e-3].values() for row in each.rows)
    for latency_s, slower in itertools.product((None, 6e-3) if switches else (None,), (0.02, 0.1)):
        clocks: list[Clocks] = []
        planned = np.zeros(2)
        for kind, profile in stage.profiles[latency_s].items():
            some = any(row.inside for row in profile.rows)
            row = nearest(profile, slower, inside=some)
            lasts = [(each.clocks, each.launches) for each in row.inside]
            for each, count in lasts or [(row.clocks, passes.count(Pass(kind)))]:
                clocks += [each] * count
            planned += row.time_s, row.energy_j or 0.0
        at = order, [stage.table.settings.index(each) for each in clocks]
        schedule = Scheduled(
            clocks=tuple(clocks),
            table=LatencyTable.constant(6e-3),
            predicted_s=tuple(stage.table.launches.time_s[at].tolist()),
        )
        launches = list(stage.sample_set.launches)
        with simulated_rig(switching(gpu, 6e-3), seed=1) as rig:
            done = [
                execute(rig, launches, schedule, steps=STEPS, warm_s=AGAIN_S if run else WARM_S)
                for run in range(RUNS)
            ]
        ran = np.mean([(each.time_s, each.energy_j) for each in done], axis=(0, 2))
        changes = sum(a != b for a, b in zip(clocks, [clocks[-1], *clocks], strict=False))
        how = "one clock each" if latency_s is None else f"inside, {latency_text(latency_s)}"
        off = [percent(each) for each in ran / planned - 1.0]
        yield [stage.name, how, f"{slower:+.0%}", str(changes), *off]


def main() -> None:
    """Measure, make profiles, plan, run; write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, help="Where samples of simulated GPUs are kept.")
    parser.add_argument("--quick", action="store_true", help="One measured stage, printed.")
    asked = parser.parse_args()
    folder = asked.folder or Path(tempfile.mkdtemp())
    found = list(stages(folder, quick=asked.quick))
    slower = [f"{each:+.0%} time" for each in SLOWER]
    heads = {
        "instructions": ["instruction", "at auto", "clocks", *slower],
        "jobs": ["stages", "budget", "one clock each", "inside, 6 ms", "inside, free"],
        "runs": ["stage", "clocks", "asked", "changes", "time", "energy"],
    }
    rows = {
        "instructions": [row for stage in found for row in instructions(stage)],
        "jobs": [row for stage in found if not asked.quick for row in jobs(stage)],
        "runs": [
            row
            for stage in found
            if stage.sample_set.evidence is Evidence.SIMULATED
            for row in runs(stage)
        ],
    }
    parts = {name: markdown([head, *rows[name]]) for name, head in heads.items()}
    fill(
        "jobs_inside",
        parts,
        repeats=f"Each executed row is {RUNS} runs of {STEPS} steps.",
        whole=not asked.quick,
    )


if __name__ == "__main__":
    main()
