"""The nouns of ``underclock paper``: what arXiv 2601.08539 reports, and ours beside it.

Changes are in percent here and named ``_pct``, as the paper prints them; everywhere else in the
program they are fractions. A missing figure is ``None``: the paper does not give it, or the
simulated GPU cannot.
"""

from enum import StrEnum

from underclock.records import (
    SCHEMAS,
    Aggregate,
    Evidence,
    GpuInfo,
    Granularity,
    Objective,
    Record,
)


class Lever(StrEnum):
    """Which clocks a choice holds below the ones that the kernel runs at under auto."""

    CORE = "core"
    MEMORY = "memory"
    BOTH = "both"
    NEITHER = "neither"


class PercentChange(Record, frozen=True, kw_only=True):
    """Time and energy of the step against auto, in percent."""

    time_pct: float
    energy_pct: float


class Table2Cell(Record, frozen=True, kw_only=True):
    """One way of choosing clocks, ours and the paper's."""

    granularity: Granularity
    objective: Objective
    aggregate: Aggregate
    time_pct: float
    energy_pct: float
    paper_time_pct: float
    paper_energy_pct: float


class Table1Row(Record, frozen=True, kw_only=True):
    """One kernel before the optimizer, under the kernel-level, global, strict choice.

    Attributes:
        kernel_id: Its number in the paper, which names its section and the kernel too.
        invocations: Per step.
        auto_core_mhz: Read back under auto, as ``auto_mem_mhz``; ``None`` when not read.
        core_mhz: Chosen, as ``mem_mhz``; ``None`` is auto, of ours and of the paper's.
        lever: What our choice lowers, against the two clocks under auto.
    """

    kernel_id: int
    section: str
    kernel: str
    name: str
    invocations: int
    auto_core_mhz: int | None
    auto_mem_mhz: int | None
    core_mhz: int | None
    mem_mhz: int | None
    time_pct: float
    energy_pct: float
    lever: Lever
    paper_core_mhz: int | None
    paper_mem_mhz: int | None
    paper_time_pct: float
    paper_energy_pct: float
    paper_lever: Lever


class LeverCount(Record, frozen=True, kw_only=True):
    """How many kernels the paper moves one way and we another."""

    paper: Lever
    ours: Lever
    kernels: int


class Agreement(Record, frozen=True, kw_only=True):
    """How often our choice lowers what the paper's lowers.

    Attributes:
        same: Rows with the same lever; ``share`` is of all, 0 to 1.
        overlapping: Rows where both lower at least one clock in common, or both lower none.
        counts: Every pair of levers that occurs.
    """

    kernels: int
    same: int
    share: float
    overlapping: int
    counts: tuple[LeverCount, ...]


class Revalidation(Record, frozen=True, kw_only=True):
    """Auto and the discovered clocks measured again, all pairs compared.

    Attributes:
        repeats: Runs of auto, and of the discovered clocks.
        time_pct: Mean over all pairs, as ``energy_pct``.
        pairs_reaching_discovered: Pairs that save at least the discovered energy.
        pairs: Every pair: all runs of the plan against the first of auto, then the next.
    """

    repeats: int
    time_pct: float
    energy_pct: float
    discovered_time_pct: float
    discovered_energy_pct: float
    pairs_reaching_discovered: int
    paper_time_pct: float
    paper_energy_pct: float
    paper_discovered_energy_pct: float
    paper_pairs_reaching_discovered: int
    pairs: tuple[PercentChange, ...]


class Transfer(Record, frozen=True, kw_only=True):
    """The discovered clocks on a step of another size, against that step under auto.

    Attributes:
        batch: Sequences per step.
        tensor_parallel: GPUs that share the step; the changes are those of one GPU.
        unplanned: Kernels that the discovered clocks do not know, left at auto.
        paper_time_pct: ``None`` where the paper gives no number.
    """

    batch: int
    tensor_parallel: int
    time_pct: float
    energy_pct: float
    unplanned: tuple[str, ...] = ()
    paper_time_pct: float | None = None
    paper_energy_pct: float | None = None


class RelaxedPoint(Record, frozen=True, kw_only=True):
    """The least energy when total time may rise by a stated percentage.

    With one clock pair a pass, and one a kernel: each within the budget by itself, or together.
    """

    max_slowdown_pct: float
    pass_global: PercentChange | None
    kernel_local: PercentChange | None
    kernel_global: PercentChange | None


class SecondGpu(Record, frozen=True, kw_only=True):
    """The clocks searched again on the paper's second GPU.

    Attributes:
        gpu: Its name; ``None`` where it could not be simulated.
        calibration: How far to trust its simulation; ``None`` where there is none.
        time_pct: What our choice changes; ``None`` where there is none.
        missing: Why there is nothing of ours; empty where there is.
    """

    gpu: str | None
    calibration: str | None
    time_pct: float | None
    energy_pct: float | None
    paper_time_pct: float
    paper_energy_pct: float
    missing: str = ""


class QuotedNumber(Record, frozen=True, kw_only=True):
    """One number that is quoted from the paper, and ours.

    Attributes:
        unit: Of all three numbers; empty for a count.
        ours: ``None`` where we have none.
    """

    group: str
    name: str
    unit: str
    paper: float
    ours: float | None = None
    difference: float | None = None


class Study(Record, frozen=True, kw_only=True, tag_field="kind", tag="study"):
    """The whole of the paper's study on a simulated GPU.

    Attributes:
        evidence: Of every number that is not the paper's.
        source: Where the paper's numbers come from.
        clock_changes_per_layer: Boundaries between kernels of a layer where clocks change.
        pass_frontier: Choices that no mixture of others beats, fastest first.
    """

    schema: int = SCHEMAS["study"]
    evidence: Evidence
    gpu: GpuInfo
    calibration: str
    source: str
    workload: str
    grid: str
    seed: int
    table2: tuple[Table2Cell, ...]
    table1: tuple[Table1Row, ...]
    agreement: Agreement
    clock_changes_per_layer: int
    validation: Revalidation
    batch_transfer: tuple[Transfer, ...]
    tensor_parallel_transfer: tuple[Transfer, ...]
    relaxed: tuple[RelaxedPoint, ...]
    a4000: SecondGpu
    pass_frontier: tuple[PercentChange, ...]
    kernel_frontier: tuple[PercentChange, ...]
    quoted: tuple[QuotedNumber, ...]
    warnings: tuple[str, ...] = ()
