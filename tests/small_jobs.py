"""Small jobs of many GPUs, for tests."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from underclock.arrays import Floats
from underclock.core.job.schedules import Layout, pipeline
from underclock.records import Evidence, GpuInfo
from underclock.records.job import (
    Instruction,
    InstructionKind,
    Job,
    Profile,
    ProfileRow,
    Rank,
    Wait,
    Waiting,
)

GPU = GpuInfo(name="a GPU")
WAITING = (Waiting(power_w=50.0),)


def profile(time_s: float, *, clocks: tuple[int, ...] = (1000, 1200, 1400)) -> Profile:
    """Return what something costs that the core bounds: slower clocks save energy."""
    top = clocks[-1]
    rows = tuple(
        ProfileRow(
            core_mhz=mhz, time_s=time_s * top / mhz, energy_j=300.0 * time_s * (mhz / top) ** 1.5
        )
        for mhz in clocks
    )
    return Profile(rows=rows, auto=len(rows) - 1)


def profiles(stages: int, **more: Profile) -> dict[str, Profile]:
    """Return unequal stages' forwards and backwards."""
    made = {}
    for stage in range(stages):
        made[f"stage {stage} forward"] = profile(0.1 + 0.02 * stage)
        made[f"stage {stage} backward"] = profile(0.2 + 0.03 * stage)
    return made | more


def small_job(
    schedule: str = "1f1b",
    stages: int = 2,
    microbatches: int = 3,
    given: Mapping[str, Profile] | None = None,
    **shape: Any,
) -> Job:
    """Return a job by a schedule's name."""
    return pipeline(
        schedule,
        Layout(stages=stages, microbatches=microbatches, **shape),
        profiles(stages * shape.get("chunks", 1)) if given is None else given,
        waiting=dict.fromkeys(range(stages), WAITING),
        gpu=GPU,
        workload="a model",
    )


def job_of_ranks(*ranks: tuple[Instruction, ...], waits: tuple[Wait, ...] = ()) -> Job:
    """Return a job of instructions with times of their own, a stage a rank."""
    return Job(
        evidence=Evidence.SIMULATED,
        gpu=GPU,
        workload="by hand",
        schedule="by hand",
        microbatches=1,
        ranks=tuple(
            Rank(stage=at, waiting=WAITING, instructions=each) for at, each in enumerate(ranks)
        ),
        waits=waits,
        profiles={},
    )


def fixed(
    time_s: float,
    kind: InstructionKind = InstructionKind.OTHER,
    **more: Any,
) -> Instruction:
    """Return an instruction to which clocks do not matter."""
    return Instruction(kind=kind, time_s=time_s, **more)


def at_auto(job: Job) -> Floats:
    """Return what instructions take at auto."""
    every = [each for rank in job.ranks for each in rank.instructions]
    rows = [None if each.profile is None else job.profiles[each.profile] for each in every]
    return np.array(
        [
            each.time_s if row is None else row.rows[row.auto].time_s
            for each, row in zip(every, rows, strict=True)
        ]
    )
