"""What the GPUs of a run drew, what the same steps would have drawn at auto, and sums of that.

Measured, replayed and simulated joules are never added up, nor are savings against blocks at auto
and promised ones.

Intervals have parts that are independent of each other. What a comparison may be wrong by: errors
within one are taken as fully correlated, those of different ones as independent. A comparison is a
run that had blocks at auto; all promises are one, for plans share what their models are wrong by.
And what energy counters may be wrong by, and of blocks heat, in all runs alike.
"""

import datetime as dt
import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated

import msgspec

from underclock.records.common import Evidence, Record, check_interval

COUNTER = 0.05
"""Boards' sensors are off by up to so much of what they show (Yang et al., SC'24)."""
HEAT = 0.05
"""Blocks are shorter than heat takes, so both arms run at the heat of both: on simulated boards at
their cap that showed up to so much of a saving that was none (docs/evidence/ledger.md)."""
OTHERWISE = "clocks were neither auto nor as planned: a guard had taken part of the plan back"
_DIGITS = 16  # as a step's fingerprint has
_Date = Annotated[float, msgspec.Meta(gt=0, lt=253_402_300_800)]  # s since 1970, until year 9999
_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=10**15)]


class SavedAgainst(StrEnum):
    """What a saving is told against."""

    BLOCKS = "blocks"  # at auto, in turns with the plan's in the same run
    PROMISE = "promise"  # of the plan, for the steps that ran under it


class LedgerGpu(Record, frozen=True, kw_only=True):
    """One GPU of one run.

    Attributes:
        gpu: As `hashed` makes it of the board's UUID.
        rank: Of the job.
        steps: That were seen.
        held_steps: Of which clocks were held as planned.
        energy_j: That the steps drew by the GPU's counter, but for ``untold_j``; of steps whose
            energy is unknown nothing is in it. ``None`` where none is known.
        auto_j: What the steps in ``energy_j`` would have drawn at auto; ``None`` where that cannot
            be told, and ``untold`` says why.
        auto_interval_j: Its 95 % interval, as far as the comparison goes: what the GPU's counter
            may be wrong by is in sums.
        untold_j: Drawn besides, in steps that were neither at auto nor as planned.
    """

    gpu: str
    name: str
    rank: _Count
    steps: _Count
    held_steps: _Count
    energy_j: _Amount | None
    auto_j: _Amount | None
    auto_interval_j: tuple[float, float] | None
    untold: str = ""
    untold_j: _Amount = 0.0

    def __post_init__(self) -> None:
        if self.auto_j is not None:
            check_interval(self, "auto_interval_j", self.auto_j)
        if (None in {self.energy_j, self.auto_j, self.auto_interval_j}) != bool(self.untold):
            raise ValueError("a GPU of a run has a saving with an interval, or why it has none")


class LedgerRun(Record, frozen=True, kw_only=True, tag_field="kind", tag="ledger"):
    """One run: a line of the ledger. It is written again as the run goes on; the last one counts.

    Attributes:
        run: Tells the run from others.
        job: What the user calls it, or the batch system; else the workload.
        plan: Digest of the plan.
        began_s: Seconds since 1970, UTC.
        lasted_s: Until this was written.
        evidence: Of the saving: the weaker of the run's own and of what it is told against.
    """

    run: str
    job: str
    plan: str
    began_s: _Date
    lasted_s: _Amount
    evidence: Evidence
    against: SavedAgainst
    gpus: tuple[LedgerGpu, ...]


def hashed(uuid: str) -> str:
    """Return what tells a board from others, and does not name it."""
    return hashlib.sha256(uuid.encode()).hexdigest()[:_DIGITS]


class SavedBy(StrEnum):
    """What runs are summed by."""

    JOB = "job"
    GPU = "gpu"
    MONTH = "month"  # UTC, in which the run began


class SavedTotal(Record, frozen=True, kw_only=True):
    """What some runs saved together: ``group`` is a job, GPU or month, empty for all.

    Against auto, with its 95 % interval; negative where more was drawn.
    """

    group: str
    evidence: Evidence
    against: SavedAgainst
    runs: int
    gpus: int
    gpu_s: float
    steps: int
    energy_j: float
    saved_j: float
    saved_interval_j: tuple[float, float]


class UntoldTotal(Record, frozen=True, kw_only=True):
    """What runs drew of which it cannot be told what was saved; it is in no other sum."""

    group: str
    evidence: Evidence
    runs: int
    energy_j: float
    why: tuple[str, ...]


_Part = tuple[LedgerRun, LedgerGpu]


def totals(
    runs: Iterable[LedgerRun], by: SavedBy | None = None
) -> tuple[tuple[SavedTotal, ...], tuple[UntoldTotal, ...]]:
    """Return sums of what can be told, and apart of what cannot; of all runs for ``None``."""
    told: defaultdict[tuple[str, Evidence, SavedAgainst], list[_Part]] = defaultdict(list)
    untold: defaultdict[tuple[str, Evidence], list[_Part]] = defaultdict(list)
    for run, gpu in ((each, gpu) for each in runs for gpu in each.gpus):
        group = {
            SavedBy.JOB: run.job,
            SavedBy.GPU: f"{gpu.name} {gpu.gpu}",
            SavedBy.MONTH: dt.datetime.fromtimestamp(run.began_s, tz=dt.UTC).strftime("%Y-%m"),
            None: "",
        }[by]
        if gpu.untold or gpu.untold_j:
            untold[group, run.evidence].append((run, gpu))
        if not gpu.untold:
            told[group, run.evidence, run.against].append((run, gpu))
    return (
        tuple(_total(*key, parts) for key, parts in sorted(told.items())),
        tuple(_untold(*key, parts) for key, parts in sorted(untold.items())),
    )


def _total(
    group: str, evidence: Evidence, against: SavedAgainst, parts: Sequence[_Part]
) -> SavedTotal:
    energy_j = math.fsum(gpu.energy_j or 0.0 for _, gpu in parts)
    saved_j = math.fsum(gpu.auto_j or 0.0 for _, gpu in parts) - energy_j
    below: defaultdict[str, float] = defaultdict(float)  # half-widths of each comparison
    above: defaultdict[str, float] = defaultdict(float)
    for run, gpu in parts:
        low_j, high_j = gpu.auto_interval_j or (0.0, 0.0)
        comparison = run.run if against is SavedAgainst.BLOCKS else ""
        below[comparison] += (gpu.auto_j or 0.0) - low_j
        above[comparison] += high_j - (gpu.auto_j or 0.0)
    alike_j = saved_j * math.hypot(COUNTER, HEAT if against is SavedAgainst.BLOCKS else 0.0)
    reach_j = [math.hypot(alike_j, *parts_j.values()) for parts_j in (below, above)]
    return SavedTotal(
        group=group,
        evidence=evidence,
        against=against,
        runs=len({run.run for run, _ in parts}),
        gpus=len({gpu.gpu for _, gpu in parts}),
        gpu_s=math.fsum(run.lasted_s for run, _ in parts),
        steps=sum(gpu.steps for _, gpu in parts),
        energy_j=energy_j,
        saved_j=saved_j,
        saved_interval_j=(saved_j - reach_j[0], saved_j + reach_j[1]),
    )


def _untold(group: str, evidence: Evidence, parts: Sequence[_Part]) -> UntoldTotal:
    whole_j = [gpu.energy_j or 0.0 for _, gpu in parts if gpu.untold]
    return UntoldTotal(
        group=group,
        evidence=evidence,
        runs=len({run.run for run, _ in parts}),
        energy_j=math.fsum((*whole_j, *(gpu.untold_j for _, gpu in parts))),
        why=tuple(dict.fromkeys(gpu.untold or OTHERWISE for _, gpu in parts)),
    )
