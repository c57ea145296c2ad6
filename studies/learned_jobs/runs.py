"""A pipeline that was executed under several plans of clocks, as arrays.

Shape letters: P plans, S stages, K = 2 passes (forward, backward), M microbatches.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.errors import DataError
from underclock.records import GpuInfo
from underclock.records.job import InstructionKind

PASSES = (InstructionKind.FORWARD, InstructionKind.BACKWARD)
LEAST_PLANS = 3


class RankRun(NamedTuple):
    """One rank of an executed plan: medians over its iterations.

    Attributes:
        plan: Number of the plan.
        stage: Of the pipeline.
        iteration_s: What an iteration took.
        energy_j: What the rank took in it.
        load_s: What loading data took, all microbatches together; ``None`` where not recorded.
    """

    plan: int
    stage: int
    iteration_s: float
    energy_j: float
    load_s: float | None = None


class MicrobatchRun(NamedTuple):
    """One pass of one microbatch through a stage: the clock asked for and the time it took."""

    plan: int
    stage: int
    kind: InstructionKind
    microbatch: int
    core_mhz: int
    time_s: float


@dataclass(frozen=True, kw_only=True)
class ExecutedRuns:
    """What a 1F1B pipeline took under several plans.

    Attributes:
        gpu: What ranks ran on.
        workload: What was trained.
        data: Pipelines that trained together.
        tensor: Ranks that shared each stage.
        between_nodes: Which boundary between stages is the slow one; ``None`` for not known.
        plans: Their numbers. Shape (P,).
        cold: Plans that ran before the boards were warm: their energy counts little. Shape (P,).
        clocks_mhz: Asked for. Shape (P, S, K, M).
        times_s: Of each pass. Shape (P, S, K, M).
        loads_s: Of data, a microbatch; 0 where none is loaded. Shape (P, S).
        iteration_s: Of the rank that took longest. Shape (P,).
        energy_j: Mean of the ranks of a stage. Shape (P, S).
    """

    gpu: GpuInfo
    workload: str
    data: int = 1
    tensor: int = 1
    between_nodes: int | None = None
    plans: Ints
    cold: Bools
    clocks_mhz: Ints
    times_s: Floats
    loads_s: Floats
    iteration_s: Floats
    energy_j: Floats

    @classmethod
    def of_rows(
        cls,
        ranks: Iterable[RankRun],
        passes: Iterable[MicrobatchRun],
        *,
        gpu: GpuInfo,
        workload: str,
        cold: Sequence[int] = (),
    ) -> Self:
        """Put rows of one workload together, of one pipeline whose boundaries are alike.

        Raises:
            DataError: A plan lacks a stage or a pass, or stages took unequal microbatches.
        """
        by_plan: dict[int, dict[int, list[RankRun]]] = defaultdict(lambda: defaultdict(list))
        for rank in ranks:
            by_plan[rank.plan][rank.stage].append(rank)
        found = {row[:4]: row for row in passes}
        if not by_plan or not found:
            raise DataError(
                f"there is no run of {workload}", hint="give rows of ranks and of microbatches"
            )
        shape = (
            len(by_plan),
            1 + max(stage for stages in by_plan.values() for stage in stages),
            len(PASSES),
            1 + max(row.microbatch for row in found.values()),
        )
        clocks, times = np.zeros(shape, dtype=np.int64), np.zeros(shape)
        plans = sorted(by_plan)
        for p, s, k, m in np.ndindex(*shape):
            row = found.get((plans[p], s, PASSES[k], m))
            if row is None:
                raise DataError(
                    f"plan {plans[p]} of {workload} has no {PASSES[k]} of microbatch {m} on stage "
                    f"{s}",
                    hint=f"every plan has each of {shape[3]} microbatches on each of {shape[1]} "
                    "stages, forward and backward: leave other plans out",
                )
            clocks[p, s, k, m], times[p, s, k, m] = row.core_mhz, row.time_s
        means = np.zeros((*shape[:2], 2))
        for p, s in np.ndindex(*shape[:2]):
            rows = by_plan[plans[p]].get(s)
            if not rows:
                raise DataError(
                    f"plan {plans[p]} of {workload} has no rank of stage {s}",
                    hint="leave the plan out, or add its rank's iteration time and energy",
                )
            means[p, s] = np.mean([(row.energy_j, row.load_s or 0.0) for row in rows], axis=0)
        longest = [max(r.iteration_s for rows in by_plan[p].values() for r in rows) for p in plans]
        return cls(
            gpu=gpu,
            workload=workload,
            plans=np.array(plans),
            cold=np.isin(plans, cold),
            clocks_mhz=clocks,
            times_s=times,
            loads_s=means[..., 1] / shape[3],
            iteration_s=np.array(longest),
            energy_j=means[..., 0],
        )

    def __post_init__(self) -> None:
        for name in ("clocks_mhz", "times_s", "iteration_s", "energy_j"):
            least = getattr(self, name).min()
            if not 0.0 < least < np.inf:
                raise DataError(
                    f"{self.workload}: the least of {name} is {least}",
                    hint="clocks, times and energies are positive: leave such plans out",
                )

    @property
    def stages(self) -> int:
        """Of the pipeline."""
        return int(self.times_s.shape[1])

    @property
    def microbatches(self) -> int:
        """That the pipeline takes in an iteration."""
        return int(self.times_s.shape[3])

    @property
    def total_j(self) -> Floats:
        """What all ranks take in an iteration. Shape (P,)."""
        total: Floats = self.energy_j.sum(axis=1) * self.data * self.tensor
        return total

    def of(self, which: Ints | Bools) -> Self:
        """Return some of the plans."""
        names = ("plans", "cold", "clocks_mhz", "times_s", "loads_s", "iteration_s", "energy_j")
        return replace(self, **{name: getattr(self, name)[which] for name in names})
