"""How long plans of a job and its whole frontier take.

    PYTHONPATH=studies OMP_NUM_THREADS=1 python benchmarks/jobs.py [--quick]

Pipelines of stages of GPT-3 175B and BLOOM as measured on an A40 at 60 clocks (``a40_llm_stages``
beside the checkout), 1F1B, 60 W assumed while a rank waits. A frontier is 50 plans from the least
time to that of least energy, from the job on. Times are of the CPU, on one core.
"""

import csv
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable

import numpy as np

from pages import MEASURED, fill, markdown
from underclock.core.job.relaxation import Relaxation
from underclock.core.job.schedules import Layout, pipeline
from underclock.core.job.tables import JobTable, RowChoice, table_of, taken, total
from underclock.records import GpuInfo
from underclock.records.job import Job, Profile, ProfileRow, Waiting

BLOCKED_W = 60.0
POINTS = 50
REPEATS = 5
PLANS = (("gpt3-175b", 8, 128, REPEATS), ("bloom", 8, 128, REPEATS), ("gpt3-175b", 16, 512, 1))


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
    return Relaxation(table, np.isfinite(table.time_s), waiting_w)


def frontier_of(job: Job) -> list[RowChoice]:
    """Return plans from the least time to that of least energy."""
    program = program_of(table_of(job))
    times_s = np.linspace(*program.range_s, POINTS).tolist()
    return [program.mixed(answer[0]) for answer in program.solved(times_s) if answer]


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


def plan_row(workload: str, stages: int, microbatches: int, repeats: int) -> list[object]:
    """Plan once for 1 % above the least time."""
    job = job_of(workload, stages, microbatches)
    table = table_of(job)
    program = program_of(table)
    asked_s = [1.01 * program.range_s[0]]
    took_s = timed(lambda: program.solved(asked_s), repeats)
    [[duration_s, bound_j]] = filter(None, program.solved(asked_s))
    gap = 1.0 - bound_j / total(table, taken(table, program.mixed(duration_s)))[1]
    row = [
        f"{workload} {stages} x {microbatches}",
        job.instructions,
        words_of(took_s),
        f"{gap:.0e}",
    ]
    return [*row, words_of(timed(lambda: frontier_of(job), 1)) if repeats > 1 else ""]


def main() -> None:
    """Fill in the page, or print a look at the least job."""
    if sys.argv[1:] == ["--quick"]:
        print(*plan_row("gpt3-175b", 4, 16, 2))
        return
    header: list[object] = ["job", "instructions", "s", "gap", "50 plans, s"]
    plans = markdown([header, *(plan_row(*each) for each in PLANS)])
    repeats = f"The median of {REPEATS} runs (1 of 16 x 512), with least and greatest."
    fill("jobs", {"plans": plans}, repeats=repeats)


if __name__ == "__main__":
    main()
