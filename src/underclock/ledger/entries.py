"""What one GPU of one run drew, what the same steps would have drawn at auto, and sums of that.

Sums are by job, GPU or month, and pure arithmetic.

Measured, replayed and simulated joules are never added up, nor are savings against blocks at auto
and promised ones. Where two entries of one GPU overlap in time, as where each of eight ranks names
all GPUs or a rank was started again before the old one was gone, the time is counted once.

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

from underclock.records.common import (
    Evidence,
    Record,
    check_interval,
    check_not_negative,
    check_positive,
)

COUNTER = 0.05
"""Boards' sensors are off by up to so much of what they show (Yang et al., SC'24)."""
HEAT = 0.05
"""Blocks are shorter than heat takes, so both arms run at the heat of both: on simulated boards at
their cap that showed up to so much of a saving that was none (docs/evidence/ledger.md)."""
OTHERWISE = "clocks were neither auto nor as planned: a guard had taken part of the plan back"
Interval = tuple[float, float]
_DIGITS = 16  # as a step's fingerprint has


class SavedAgainst(StrEnum):
    """What a saving is told against."""

    BLOCKS = "blocks"  # at auto, in turns with the plan's in the same run
    PROMISE = "promise"  # of the plan, for the steps that ran under it


class LedgerEntry(Record, frozen=True, kw_only=True):
    """One GPU of one run; one is written again as the run goes on, and replaces the one before.

    Attributes:
        run: Tells the run from others.
        job: What the user calls it, or the batch system; else the workload.
        gpu: As `hashed` makes it of the board's UUID.
        rank: Of the job.
        began_s: Seconds since 1970, UTC.
        lasted_s: Until this was written.
        steps: That were seen.
        held_steps: Of which clocks were held as planned.
        energy_j: That the steps drew by the GPU's counter, but for ``untold_j``; of steps whose
            energy is unknown nothing is in it. ``None`` where none is known.
        held_j: Of which under the plan's clocks.
        auto_j: What the steps in ``energy_j`` would have drawn at auto; ``None`` where nobody can
            tell, and ``untold`` says why.
        auto_interval_j: Its 95 % interval, as far as the comparison goes: what the GPU's counter
            may be wrong by is in sums.
        evidence: Of the saving: the weaker of the run's own and of what it is told against.
        plan: Digest of the plan.
        untold: Why nobody can tell of any of it; empty where they can.
        untold_j: Drawn besides, in steps of which nobody can tell: neither at auto nor as planned.
    """

    run: str
    job: str
    workload: str
    gpu: str
    gpu_name: str
    rank: int
    began_s: float
    lasted_s: float
    steps: int
    held_steps: int
    energy_j: float | None
    held_j: float | None
    auto_j: float | None
    auto_interval_j: tuple[float, float] | None
    against: SavedAgainst
    evidence: Evidence
    plan: str
    untold: str = ""
    untold_j: float = 0.0

    def __post_init__(self) -> None:
        check_positive(self, "began_s")
        check_not_negative(
            self,
            "rank",
            "lasted_s",
            "steps",
            "held_steps",
            "energy_j",
            "held_j",
            "auto_j",
            "untold_j",
        )
        if self.auto_j is not None:
            check_interval(self, "auto_interval_j", self.auto_j)
        told = None not in (self.energy_j, self.auto_j, self.auto_interval_j)
        if told == bool(self.untold):
            raise ValueError("an entry has a saving with an interval, or says why it has none")


def hashed(uuid: str) -> str:
    """Return what tells a board from others, and does not name it."""
    return hashlib.sha256(uuid.encode()).hexdigest()[:_DIGITS]


LedgerPart = tuple[LedgerEntry, float]
"""An entry, and which part of it counts."""


class SavedBy(StrEnum):
    """What entries are summed by."""

    JOB = "job"
    GPU = "gpu"
    MONTH = "month"  # UTC, in which the run began


class SavedTotal(Record, frozen=True, kw_only=True):
    """What some runs saved together.

    Attributes:
        group: Job, GPU or month; empty for all.
        gpu_s: Time of GPUs.
        energy_j: That was drawn in steps.
        saved_j: Against auto, with its 95 % interval; negative where more was drawn.
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
    saved_interval_j: Interval


class UntoldTotal(Record, frozen=True, kw_only=True):
    """What runs drew of which nobody can tell whether it saved anything; it is in no other sum."""

    group: str
    evidence: Evidence
    runs: int
    energy_j: float
    why: tuple[str, ...]


def totals(
    entries: Iterable[LedgerEntry], by: SavedBy | None = None
) -> tuple[tuple[SavedTotal, ...], tuple[UntoldTotal, ...]]:
    """Return sums of what can be told, and apart of what cannot.

    Args:
        by: ``None`` for all runs together.
    """
    told: defaultdict[tuple[str, Evidence, SavedAgainst], list[LedgerPart]] = defaultdict(list)
    untold: defaultdict[tuple[str, Evidence], list[LedgerPart]] = defaultdict(list)
    for part in counted_once(entries):
        entry = part[0]
        group = group_of(entry, by)
        if entry.untold or entry.untold_j:
            untold[group, entry.evidence].append(part)
        if not entry.untold:
            told[group, entry.evidence, entry.against].append(part)
    return (
        tuple(total_of(*key, parts) for key, parts in sorted(told.items())),
        tuple(_untold(*key, parts) for key, parts in sorted(untold.items())),
    )


def untold_j(entry: LedgerEntry) -> float:
    """Return what an entry has of energy of which nobody can tell."""
    return entry.untold_j + ((entry.energy_j or 0.0) if entry.untold else 0.0)


def group_of(entry: LedgerEntry, by: SavedBy | None) -> str:
    """Return the name of the group that an entry belongs to."""
    match by:
        case SavedBy.JOB:
            return entry.job
        case SavedBy.GPU:
            return f"{entry.gpu_name} {entry.gpu}"
        case SavedBy.MONTH:
            return dt.datetime.fromtimestamp(entry.began_s, tz=dt.UTC).strftime("%Y-%m")
        case None:
            return ""


def counted_once(entries: Iterable[LedgerEntry]) -> list[LedgerPart]:
    """Return each entry, and which part of it no other entry of the same GPU has already.

    What can be told comes before what cannot, blocks before promises, and then what began first.
    """
    rank = {SavedAgainst.BLOCKS: 0, SavedAgainst.PROMISE: 1}
    taken: defaultdict[str, list[Interval]] = defaultdict(list)
    parts = []
    for entry in sorted(
        entries, key=lambda e: (bool(e.untold), rank[e.against], e.began_s, e.run, e.rank)
    ):
        before, gpu = taken[entry.gpu], entry.gpu
        taken[gpu] = _joined(before, (entry.began_s, entry.began_s + entry.lasted_s))
        more_s = _length_s(taken[gpu]) - _length_s(before)
        parts.append((entry, max(0.0, more_s / entry.lasted_s) if entry.lasted_s else 1.0))
    return parts


def _joined(spans: Sequence[Interval], whole: Interval) -> list[Interval]:
    """Return disjoint spans with one more."""
    beside = [each for each in spans if each[0] <= whole[1] and each[1] >= whole[0]]
    ends = [*zip(*beside, whole, strict=True)]
    return [*(each for each in spans if each not in beside), (min(ends[0]), max(ends[1]))]


def _length_s(spans: Sequence[Interval]) -> float:
    return math.fsum(to_s - from_s for from_s, to_s in spans)


def total_of(
    group: str, evidence: Evidence, against: SavedAgainst, parts: Sequence[LedgerPart]
) -> SavedTotal:
    """Return the sum of entries that can be told, all of one evidence and told by the same."""
    saved_j = 0.0
    below: defaultdict[str, float] = defaultdict(float)  # half-widths of each comparison
    above: defaultdict[str, float] = defaultdict(float)
    for entry, share in parts:
        if entry.auto_j is None or entry.auto_interval_j is None or entry.energy_j is None:
            raise AssertionError("it can be told")
        low_j, high_j = entry.auto_interval_j
        saved_j += share * (entry.auto_j - entry.energy_j)
        comparison = entry.run if against is SavedAgainst.BLOCKS else ""
        below[comparison] += share * (entry.auto_j - low_j)
        above[comparison] += share * (high_j - entry.auto_j)
    alike_j = saved_j * math.hypot(COUNTER, HEAT if against is SavedAgainst.BLOCKS else 0.0)
    reach_j = [math.hypot(alike_j, *parts_j.values()) for parts_j in (below, above)]
    return SavedTotal(
        group=group,
        evidence=evidence,
        against=against,
        runs=len({entry.run for entry, _ in parts}),
        gpus=len({entry.gpu for entry, _ in parts}),
        gpu_s=math.fsum(share * entry.lasted_s for entry, share in parts),
        steps=round(math.fsum(share * entry.steps for entry, share in parts)),
        energy_j=math.fsum(share * (entry.energy_j or 0.0) for entry, share in parts),
        saved_j=saved_j,
        saved_interval_j=(saved_j - reach_j[0], saved_j + reach_j[1]),
    )


def _untold(group: str, evidence: Evidence, parts: Sequence[LedgerPart]) -> UntoldTotal:
    return UntoldTotal(
        group=group,
        evidence=evidence,
        runs=len({entry.run for entry, _ in parts}),
        energy_j=math.fsum(share * untold_j(entry) for entry, share in parts),
        why=tuple(dict.fromkeys(entry.untold or OTHERWISE for entry, _ in parts)),
    )
