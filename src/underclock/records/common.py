"""What every record rests on: where a number comes from, and clocks."""

import math
from enum import StrEnum

import msgspec

LEAST_MHZ, GREATEST_MHZ = 10, 20_000  # no GPU has had a clock outside; kHz and GHz are


class Evidence(StrEnum):
    """Where a number comes from; a number never travels without it."""

    MEASURED = "measured"  # on this GPU, by us
    REPLAYED = "replayed"  # from a table somebody measured
    SIMULATED = "simulated"  # from a model of a GPU


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every record: immutable, unknown fields refused.

    Frozen and keyword-only are said again at each class: msgspec does not inherit the latter, nor
    type checkers the former.
    """


def check_positive(record: Record, *names: str) -> None:
    """Reject zero, negative and non-finite quantities; ``None`` means unknown and passes."""
    for name in names:
        value = getattr(record, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be positive and finite, got {value}")


def check_mhz(record: Record, *names: str) -> None:
    """Reject clocks that no GPU has had; ``None`` is auto and passes."""
    for name in names:
        mhz = getattr(record, name)
        if mhz is not None and not LEAST_MHZ <= mhz <= GREATEST_MHZ:
            raise ValueError(f"{name} must be from {LEAST_MHZ} to {GREATEST_MHZ} MHz, got {mhz}")


def check_gap(gap: float | None) -> None:
    """Reject what is no distance from an optimum."""
    if gap is not None and not 0 <= gap < math.inf:
        raise ValueError(f"gap must be finite and not negative, got {gap}")


class Clocks(Record, frozen=True, kw_only=True):
    """Clocks to hold on one GPU; ``None`` leaves that domain to the driver (auto).

    Attributes:
        core_mhz: Core (SM) clock.
        mem_mhz: Memory clock.
    """

    core_mhz: int | None = None
    mem_mhz: int | None = None

    def __post_init__(self) -> None:
        """Reject clocks no GPU can have."""
        check_positive(self, "core_mhz", "mem_mhz")

    @property
    def is_auto(self) -> bool:
        """Whether both domains are left to the driver."""
        return self.core_mhz is None and self.mem_mhz is None

    @property
    def rank(self) -> tuple[float, float]:
        """Sort key from slow to fast; auto counts as faster than any number."""
        return (
            math.inf if self.mem_mhz is None else self.mem_mhz,
            math.inf if self.core_mhz is None else self.core_mhz,
        )

    def __str__(self) -> str:
        core = "auto" if self.core_mhz is None else f"{self.core_mhz} MHz"
        mem = "auto" if self.mem_mhz is None else f"{self.mem_mhz} MHz"
        return f"core {core}, memory {mem}"


AUTO = Clocks()
