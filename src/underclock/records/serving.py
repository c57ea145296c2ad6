"""What was decided for serving: a table of clocks by phase, batch and context.

A server runs steps of many sizes, so its plan is a table and no list of kernels. A bucket of it is
a step that was measured or modelled at one batch and one context, and stands for all that are no
greater in both and for which there is no smaller bucket. Clocks of a bucket are chosen for the
step as a whole; `ServingBucket.frontier` has the further choices worth holding, for a governor that
decides anew as requests come.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

from underclock.records.common import (
    SCHEMAS,
    AtLeastOne,
    Budget,
    Clocks,
    Evidence,
    Positive,
    Record,
    ShownRecord,
    check_interval,
)
from underclock.records.samples import GpuInfo
from underclock.records.work import SERVING, Pass
from underclock.units import member


class Basis(StrEnum):
    """What a cost at some clocks rests on; the value is what the user reads."""

    MEASURED = "measured"  # the step ran at these clocks
    STEERED = "steered"  # its kernels ran at these clocks, under a co-load
    MODELLED = "modelled"  # nothing ran at these clocks: the fitted model says so


class ServingCost(Record, frozen=True, kw_only=True):
    """What one step of a bucket costs at some clocks."""

    clocks: Clocks  # clocks held; auto leaves them to the driver
    time_s: Positive  # expected time of a step; of decode, the time per output token
    time_interval_s: tuple[float, float]  # 95 % interval of ``time_s``
    # 99th percentile of the time of single steps; ``None`` where windows do not say
    time_p99_s: Positive | None = None
    energy_j: Positive  # expected energy of a step
    energy_interval_j: tuple[float, float]  # 95 % interval of ``energy_j``
    basis: Basis  # what both rest on

    def __post_init__(self) -> None:
        check_interval(self, "time_interval_s", self.time_s)
        check_interval(self, "energy_interval_j", self.energy_j)
        if min(*self.time_interval_s, *self.energy_interval_j) <= 0:
            raise ValueError("intervals of a step's time and energy must be positive")

    @property
    def power_w(self) -> float:
        """Mean power of the step."""
        return self.energy_j / self.time_s


class ServingBucket(Record, frozen=True, kw_only=True, rename={"pass_": "phase"}):
    """One step of a server, and the clocks chosen for it."""

    pass_: Pass  # its phase (``phase`` in files): decode, prefill, or both in one launch (mixed)
    batch: AtLeastOne  # greatest number of sequences that it stands for
    # most tokens of context of a sequence that it stands for; of prefill, of the prompt
    context: AtLeastOne
    tokens: AtLeastOne  # tokens that a step makes (decode) or reads (prefill, mixed)
    auto: ServingCost  # cost with clocks left to the driver
    # cost at the clocks chosen; that of ``auto`` where no clock is worth holding
    chosen: ServingCost
    # cost at the best fixed clock of the whole table; ``None`` where no clock is that
    fixed: ServingCost | None = None
    # costs that no other beats in both time and energy, fastest first
    frontier: tuple[ServingCost, ...]
    # why no clock keeps the budget, and which budget one would; empty where one does
    obstacle: str = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "pass_", member(Pass, self.pass_, "phase"))
        if self.pass_ not in SERVING:
            raise ValueError(f"a server's phase is {', '.join(SERVING)}, got {self.pass_}")
        if not self.auto.clocks.is_auto:
            raise ValueError(f"auto cannot be at {self.auto.clocks}")
        times_s = [cost.time_s for cost in self.frontier]
        energies_j = [cost.energy_j for cost in self.frontier]
        if not times_s or times_s != sorted(times_s) or energies_j != sorted(energies_j)[::-1]:
            raise ValueError("a frontier has costs, fastest first, each of less energy")

    @property
    def energy_change(self) -> float:
        """What the clocks chosen change of auto's energy per token, as a fraction."""
        return self.chosen.energy_j / self.auto.energy_j - 1.0

    @property
    def time_change(self) -> float:
        """What they change of auto's time, as a fraction."""
        return self.chosen.time_s / self.auto.time_s - 1.0


class ServingPlan(ShownRecord, frozen=True, kw_only=True, tag_field="kind", tag="serving plan"):
    """Clocks by phase, batch and context, and what they promise.

    Attributes:
        workload: Name of the family of steps.
        max_slowdown: Most time that a step may take above auto, as a fraction; ``None`` where only
            times were limited.
        tpot_s: Most time per output token; ``None`` where not limited.
        ttft_s: Most time to the first token, which is prefill's; ``None`` where not limited.
        quantile: Of the times that keep these limits: 0.5 or 0.99.
        fixed: Best fixed clock of the whole table; ``None`` where none keeps the budget.
        idle_w: Power of the GPU while it waits, at auto; ``None`` when unknown.
        buckets: No two of one phase, batch and context.
        version: Of the program that planned; ``None`` when unknown.
    """

    schema: int = SCHEMAS["serving plan"]
    evidence: Evidence
    gpu: GpuInfo
    workload: str
    max_slowdown: Budget | None
    tpot_s: Positive | None = None
    ttft_s: Positive | None = None
    quantile: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.5
    fixed: Clocks | None
    idle_w: Positive | None = None
    buckets: tuple[ServingBucket, ...]
    version: str | None = None
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.buckets:
            raise ValueError("a serving plan needs at least one bucket")
        places = {(each.pass_, each.batch, each.context) for each in self.buckets}
        if len(places) < len(self.buckets):
            raise ValueError("a serving plan has one bucket for each phase, batch and context")

    def bucket(self, phase: Pass, batch: int, context: int = 1) -> ServingBucket | None:
        """Return the smallest bucket that a step fits into; ``None`` beyond all, which is auto.

        Args:
            phase: Decode, prefill or mixed.
            batch: Sequences of the step.
            context: Tokens of the longest of them.
        """
        fitting = (
            each
            for each in self.buckets
            if each.pass_ is phase and each.batch >= batch and each.context >= context
        )
        return min(fitting, key=lambda each: (each.batch, each.context), default=None)

    @property
    def _facts(self) -> tuple[tuple[str, str], ...]:
        changes = [each.energy_change for each in self.buckets]
        return (
            ("buckets", str(len(self.buckets))),
            ("energy per token", f"{min(changes):+.1%} to {max(changes):+.1%}"),
            ("best fixed clock", str(self.fixed or "none")),
        )
