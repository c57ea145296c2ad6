"""How the kernels of a step that was never measured are known from another step's samples."""

from collections import Counter
from enum import StrEnum

from underclock.records.common import Record, check_not_negative


class MatchWay(StrEnum):
    """How a kernel is known from others; the value is the words shown to the user."""

    SAME = "same"
    ROLE = "same role, other shape"
    KIND = "same kind"
    LINK = "unmatched, its link assumed"
    NONE = "unmatched"

    @property
    def is_told(self) -> bool:
        """Whether samples tell what clocks do to such a kernel."""
        return self not in {MatchWay.LINK, MatchWay.NONE}


class KernelMatch(Record, frozen=True, kw_only=True):
    """What one kernel was told by.

    Attributes:
        source: The measured kernel of its role; ``None`` where its kind told it, or nothing did.
        time_spread: Relative standard deviation of its time at auto, as a fraction.
        energy_spread: The same of its energy.
    """

    way: MatchWay
    source: str | None = None
    time_spread: float
    energy_spread: float

    def __post_init__(self) -> None:
        check_not_negative(self, "time_spread", "energy_spread")
        if (self.source is None) == (self.way in {MatchWay.SAME, MatchWay.ROLE}):
            raise ValueError(f"a kernel matched as {self.way!r} has source {self.source!r}")


class CarriedOver(Record, frozen=True, kw_only=True):
    """What a plan rests on whose step was not measured.

    Attributes:
        workload: The step that was measured.
        fingerprint: Of that step.
        matches: Of each kernel of the plan, by its name.
        confirmed: Kernels of the new step that were measured after all.
        regret_time: Time of this plan over that of one planned on samples of the step itself, as
            those samples have both, less one; ``None`` without such samples.
        regret_energy: The same of energy.
    """

    workload: str
    fingerprint: str | None = None
    matches: dict[str, KernelMatch]
    confirmed: tuple[str, ...] = ()
    regret_time: float | None = None
    regret_energy: float | None = None

    @property
    def counts(self) -> dict[MatchWay, int]:
        """How many kernels were matched in each way; ways of none are left out."""
        found = Counter(match.way for match in self.matches.values())
        return {way: found[way] for way in MatchWay if found[way]}
