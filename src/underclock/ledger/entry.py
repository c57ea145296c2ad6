"""What one GPU of one run drew, and what the same steps would have drawn at auto clocks."""

import hashlib
from enum import StrEnum

from underclock.records.common import (
    Evidence,
    Record,
    check_interval,
    check_not_negative,
    check_positive,
)

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
