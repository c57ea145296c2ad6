"""Our frontier of a job against that of `lowtime`, Perseus' solver, in one run on the same job.

    PYTHONPATH=studies OMP_NUM_THREADS=1 python benchmarks/jobs.py [LIMIT_S | --quick]

Pipelines of stages of GPT-3 175B and BLOOM as measured on an A40 at 60 clocks (``a40_llm_stages``
beside the checkout), 1F1B, 60 W assumed while a rank waits. Ours is 50 plans from the least time to
that of least energy, from the job on; lowtime walks the whole frontier by 1 ms a step, at most
LIMIT_S (120 s unless given); it is left out where it is not installed. What plans take is
counted by one function. Times are of the CPU, on one core.
"""

import csv
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable

import numpy as np

from pages import MEASURED, fill, markdown, percent
from rivals import phillips
from rivals.rounding import Rounding
from underclock.arrays import Floats
from underclock.core.job.relaxation import Relaxation
from underclock.core.job.schedules import Layout, pipeline
from underclock.core.job.tables import JobTable, RowChoice, table_of, taken, total
from underclock.records import GpuInfo
from underclock.records.job import Job, Profile, ProfileRow, Waiting

BLOCKED_W = 60.0
POINTS = 50
REPEATS = 5
COMPARED = 200  # of lowtime's plans, evenly
UNIT_S = 1e-3
FRONTIERS = (
    ("gpt3-175b", 4, 16),
    ("gpt3-175b", 4, 32),
    ("bloom", 4, 32),
    ("gpt3-175b", 8, 32),
)
PLANS = (("gpt3-175b", 8, 128, REPEATS), ("bloom", 8, 128, REPEATS), ("gpt3-175b", 16, 512, 1))


HEADER: list[object] = [
    *("job", "instructions", "ours, s", "lowtime, s", "its plans", "times as fast"),
    *("energy, mixed", "greatest", "one clock each", "greatest"),
]


def job_of(workload: str, stages: int, microbatches: int) -> Job:
    """Lay out a pipeline of so many of the eight stages that were measured."""
    rows: defaultdict[tuple[int, str], list[ProfileRow]] = defaultdict(list)
    with (MEASURED / "a40_llm_stages.csv").open(encoding="utf-8") as lines:
        for line in csv.DictReader(lines):
            name, stage, instruction = line["kernel"].split("/")
            if name == workload:
                rows[int(stage.removeprefix("stage")), instruction].append(
                    ProfileRow(
                        core_mhz=int(line["core_mhz"]),
                        time_s=float(line["time_s"]),
                        energy_j=float(line["energy_j"]),
                    )
                )
    return pipeline(
        "1f1b",
        Layout(stages=stages, microbatches=microbatches),
        {
            f"stage {stage} {kind}": Profile(rows=tuple(own), auto=len(own) - 1)
            for stage in range(stages)
            for kind in ("forward", "backward")
            for own in [rows[stage * 8 // stages, kind]]
        },
        waiting={stage: (Waiting(power_w=BLOCKED_W),) for stage in range(stages)},
        gpu=GpuInfo(name="A40"),
        workload=workload,
    )


def program_of(table: JobTable) -> Relaxation:
    """State the program of a job, every row of its profiles allowed."""
    waiting_w = np.full(len(table.rank_weight), BLOCKED_W)
    return Relaxation.of(table, np.isfinite(table.time_s), waiting_w)


def frontier_of(job: Job) -> list[RowChoice]:
    """Return plans from the least time to that of least energy."""
    program = program_of(table_of(job))
    times_s = np.linspace(*program.range_s, POINTS).tolist()
    return [answer.choice for answer in program.solved(times_s) if answer]


def timed(work: Callable[[], object], repeats: int) -> list[float]:
    """Return the CPU time in s that each of some repeats took: others may run here."""
    took_s = []
    for _ in range(repeats):
        start_s = time.process_time()
        work()
        took_s.append(time.process_time() - start_s)
    return took_s


def words_of(took_s: list[float]) -> str:
    """Write a median and its spread."""
    spread = f" ({min(took_s):.2f} to {max(took_s):.2f})" if len(took_s) > 1 else ""
    return f"{statistics.median(took_s):.2f}{spread}"


def compared(table: JobTable, walk: phillips.Walk) -> tuple[Floats, Floats]:
    """Plan for the times that plans of lowtime take.

    Returns:
        Energy of our plans over that of its own, as changes: instructions mixed of two clocks, and
        one clock each. Shapes (plans,).
    """
    at = np.unique(np.linspace(0, len(walk.rows) - 1, COMPARED).astype(int))
    theirs = [total(table, taken(table, RowChoice.rows(rows))) for rows in walk.rows[at]]
    program, changes = program_of(table), []
    rounding = Rounding(program=program, rows=np.isfinite(table.time_s), latency_s=0.0, dwell_s=0.0)
    for (their_s, their_j), plan in zip(
        theirs, program.solved([float(time_s) for time_s, _ in theirs]), strict=True
    ):
        if plan is None:
            raise AssertionError("there is no plan for a time that a plan takes")
        faster = RowChoice.rows(plan.choice.row)
        rounded = (rounding.improved(faster, float(their_s), near) for near in (None, plan.choice))
        ours = [total(table, taken(table, choice)) for choice in (plan.choice, faster, *rounded)]
        if max(our_s for our_s, _ in ours) > their_s * (1.0 + 1e-9):
            raise AssertionError("a plan is later than the one that it is compared with")
        mixed_j, *rounded_j = (our_j / their_j - 1.0 for _, our_j in ours)
        changes.append((mixed_j, min(rounded_j)))
    mixed, one_each = np.array(changes).T
    return mixed, one_each


def frontier_row(workload: str, stages: int, microbatches: int, limit_s: float) -> list[object]:
    """Run both on one job."""
    job = job_of(workload, stages, microbatches)
    ours_s = timed(lambda: frontier_of(job), REPEATS)
    row: list[object] = [
        f"{workload} {stages} x {microbatches}",
        job.instructions,
        words_of(ours_s),
    ]
    if not phillips.is_installed():
        return [*row, "not installed", *[""] * 6]
    table = table_of(job)
    walk = phillips.walk(table, BLOCKED_W, unit_s=UNIT_S, limit_s=limit_s)
    least = "" if walk.ended else "> "
    times = walk.time_s / statistics.median(ours_s)
    changes = [
        percent(float(change), 3)
        for each in compared(table, walk)
        for change in (each.mean(), each.max())
    ]
    return [*row, f"{least}{walk.time_s:.1f}", len(walk.rows), f"{least}{times:.0f}", *changes]


def plan_row(workload: str, stages: int, microbatches: int, repeats: int) -> list[object]:
    """Plan once for 1 % above the least time."""
    job = job_of(workload, stages, microbatches)
    table = table_of(job)
    program = program_of(table)
    asked_s = [1.01 * program.range_s[0]]
    took_s = timed(lambda: program.solved(asked_s), repeats)
    [answer] = filter(None, program.solved(asked_s))
    gap = 1.0 - answer.bound_j / total(table, taken(table, answer.choice))[1]
    row = [
        f"{workload} {stages} x {microbatches}",
        job.instructions,
        words_of(took_s),
        f"{gap:.0e}",
    ]
    return [*row, words_of(timed(lambda: frontier_of(job), 1)) if repeats > 1 else ""]


def main(limit_s: float) -> None:
    """Fill in the page, or print a look at the least job."""
    if not limit_s:
        print(*plan_row(*FRONTIERS[0], 2), *frontier_row(*FRONTIERS[0], 1.0))
        return
    plans: list[list[object]] = [["job", "instructions", "s", "gap", "50 plans, s"]]
    plans += [plan_row(*each) for each in PLANS]
    print(markdown(plans), flush=True)
    frontiers = [HEADER]
    for each in FRONTIERS:
        frontiers.append(frontier_row(*each, limit_s))
        print(*frontiers[-1], flush=True)
    fill(
        "jobs",
        {"frontiers": markdown(frontiers), "plans": markdown(plans)},
        repeats=f"Ours is the median of {REPEATS} runs (1 of 16 x 512), with least and greatest; "
        f"lowtime {phillips.VERSION} ran once, at most {limit_s:g} s.",
    )


if __name__ == "__main__":
    asked = [0.0 if each == "--quick" else float(each) for each in sys.argv[1:]]
    main(asked[0] if asked else 120.0)
