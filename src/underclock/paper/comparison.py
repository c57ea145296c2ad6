"""Every number quoted from the paper, with ours and the difference."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from underclock.paper import published
from underclock.paper.records import (
    Lever,
    PercentChange,
    QuotedNumber,
    Study,
    Table1Row,
    Transfer,
)
from underclock.records import AUTO, MeasurementSettings, SampleSet
from underclock.workloads import Shape

_TABLE1 = "Table 1"
_SACRIFICED_PCT = 5.0  # far from both the GEMMs that get faster and those that get 9 % slower


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How ours was measured.

    Attributes:
        parameters: Sizes of the workload, by name.
        core_mhz: Core clocks the driver lists, ascending.
        mem_mhz: Memory clocks the driver lists, ascending.
        sample_set: The search itself.
        measuring: How long was waited and measured.
        gpu_days: How long the search kept the GPU busy.
    """

    parameters: dict[str, int]
    core_mhz: tuple[int, ...]
    mem_mhz: tuple[int, ...]
    sample_set: SampleSet
    measuring: MeasurementSettings
    gpu_days: float


def quoted_numbers(study: Study, setup: Setup) -> tuple[QuotedNumber, ...]:
    """Return every quoted number, in the order of the paper."""
    return (
        *_set_up(setup),
        *_table2(study),
        *_table1(study.table1),
        *_validation(study),
        *_transfers(study),
    )


def _quote(group: str, name: str, unit: str, paper: float, ours: float | None) -> QuotedNumber:
    return QuotedNumber(
        group=group,
        name=name,
        unit=unit,
        paper=float(paper),
        ours=None if ours is None else float(ours),
        difference=None if ours is None else float(ours) - float(paper),
    )


def _quote_change(
    group: str, name: str, paper: PercentChange, ours: PercentChange | None
) -> Iterable[QuotedNumber]:
    """Quote a change of time, then of energy."""
    time_pct, energy_pct = (ours.time_pct, ours.energy_pct) if ours else (None, None)
    yield _quote(group, f"{name}: time", "%", paper.time_pct, time_pct)
    yield _quote(group, f"{name}: energy", "%", paper.energy_pct, energy_pct)


def _set_up(setup: Setup) -> Iterable[QuotedNumber]:
    group, sizes, measuring = "Set-up", setup.parameters, setup.measuring
    settings = setup.sample_set.settings
    grid = sorted({c.core_mhz for c in settings if c.core_mhz is not None})
    least_mem = [c.core_mhz or 0 for c in settings if c.mem_mhz == setup.mem_mhz[0]]
    warm_c = [s.temperature_c or 0.0 for s in setup.sample_set.samples if s.asked == AUTO]
    for name, unit, paper, ours in (
        ("parameters", "1e9", published.PARAMETERS_1E9, Shape(**sizes).parameters / 1e9),
        ("layers", "", published.LAYERS, sizes["layers"]),
        ("hidden size", "", published.HIDDEN, sizes["hidden"]),
        ("attention heads", "", published.HEADS, sizes["heads"]),
        ("sequence length", "", published.SEQUENCE, sizes["sequence"]),
        ("batch", "", published.BATCH_SIZE, sizes["batch"]),
        ("kernels before the optimizer", "", len(published.TABLE1), len(setup.sample_set.kernels)),
        ("core clocks of the driver", "", published.CORE_CLOCKS, len(setup.core_mhz)),
        ("their spacing", "MHz", published.CORE_SPACING_MHZ, _spacing(setup.core_mhz)),
        ("least core clock visited", "MHz", published.GRID_CORE_MHZ[0], grid[0]),
        ("greatest core clock visited", "MHz", published.GRID_CORE_MHZ[1], grid[-1]),
        ("step between them", "MHz", published.GRID_STEP_MHZ, _spacing(grid)),
        ("memory clocks", "", len(published.MEM_MHZ), len(setup.mem_mhz)),
        ("least memory clock", "MHz", published.MEM_MHZ[0], setup.mem_mhz[0]),
        (
            "greatest core clock there",
            "MHz",
            published.GREATEST_CORE_AT_LEAST_MEM_MHZ,
            max(least_mem, default=None),
        ),
        ("greatest memory clock", "MHz", published.MEM_MHZ[-1], setup.mem_mhz[-1]),
        ("warm-up of the GPU", "s", published.WARM_S, measuring.warm_s),
        ("temperature, hottest kernel under auto", "°C", published.STEADY_C, max(warm_c)),
        ("warm-up of each kernel", "s", published.KERNEL_WARM_S, measuring.kernel_warm_s),
        ("window", "s", published.WINDOW_S, measuring.window_s),
        ("exhaustive search", "GPU-days", published.GPU_DAYS, setup.gpu_days),
    ):
        yield _quote(group, name, unit, paper, ours)


def _spacing(clocks_mhz: Sequence[int]) -> int | None:
    """Return the least distance between clocks; ``None`` for a single one."""
    return min((b - a for a, b in itertools.pairwise(clocks_mhz)), default=None)


def _table2(study: Study) -> Iterable[QuotedNumber]:
    for cell in study.table2:
        name = f"{cell.granularity}-level, {cell.objective}, {cell.aggregate}"
        paper = PercentChange(time_pct=cell.paper_time_pct, energy_pct=cell.paper_energy_pct)
        ours = PercentChange(time_pct=cell.time_pct, energy_pct=cell.energy_pct)
        yield from _quote_change("Table 2", name, paper, ours)


def _table1(rows: Sequence[Table1Row]) -> Iterable[QuotedNumber]:
    gemms = [row for row in rows if row.kernel == "GEMM"]
    sacrificed = [row for row in gemms if row.time_pct > _SACRIFICED_PCT]
    lowered = [row for row in gemms if row.lever is Lever.MEMORY and row not in sacrificed]
    slow_core = [row for row in rows if row.kernel != "GEMM" and row.lever is Lever.CORE]
    cores = [float(row.core_mhz) for row in slow_core if row.core_mhz is not None]
    name = "memory-lowered GEMMs"
    yield from _quote_range(
        name, "time", "%", published.MEMORY_LOWERED_GEMM_TIME_PCT, _times(lowered)
    )
    yield from _quote_range(
        name, "energy", "%", published.MEMORY_LOWERED_GEMM_ENERGY_PCT, _energies(lowered)
    )
    name = "sacrificed GEMMs"
    yield _quote(_TABLE1, name, "", published.SACRIFICED_GEMMS, len(sacrificed))
    yield from _quote_range(
        name, "time", "%", published.SACRIFICED_GEMM_TIME_PCT, _times(sacrificed)
    )
    yield from _quote_range(
        name, "energy", "%", published.SACRIFICED_GEMM_ENERGY_PCT, _energies(sacrificed)
    )
    name = "core-lowered others"
    yield from _quote_range(name, "clock", "MHz", published.CORE_LOWERED_MHZ, cores)
    yield _quote(
        _TABLE1,
        f"{name}: greatest time",
        "%",
        published.CORE_LOWERED_MOST_TIME_PCT,
        max(_times(slow_core), default=None),
    )
    yield from _quote_range(
        name, "energy", "%", published.CORE_LOWERED_ENERGY_PCT, _energies(slow_core)
    )
    yield _quote(
        _TABLE1,
        "kernels that lower both clocks",
        "",
        sum(row.paper_lever is Lever.BOTH for row in rows),
        sum(row.lever is Lever.BOTH for row in rows),
    )


def _times(rows: Iterable[Table1Row]) -> list[float]:
    return [row.time_pct for row in rows]


def _energies(rows: Iterable[Table1Row]) -> list[float]:
    return [row.energy_pct for row in rows]


def _quote_range(
    name: str, what: str, unit: str, paper: tuple[float, float], ours: Sequence[float]
) -> Iterable[QuotedNumber]:
    """Quote the least and the greatest of a group, which may be empty with us."""
    yield _quote(_TABLE1, f"{name}: least {what}", unit, paper[0], min(ours, default=None))
    yield _quote(_TABLE1, f"{name}: greatest {what}", unit, paper[1], max(ours, default=None))


def _validation(study: Study) -> Iterable[QuotedNumber]:
    group, validation = "Validation", study.validation
    yield _quote(group, "repeats", "", published.REPEATS, validation.repeats)
    yield _quote(group, "pairs", "", published.REPEATS**2, len(validation.pairs))
    ours = PercentChange(time_pct=validation.time_pct, energy_pct=validation.energy_pct)
    yield from _quote_change(group, "mean of all pairs", published.VALIDATED, ours)
    yield _quote(
        group,
        "discovered energy",
        "%",
        validation.paper_discovered_energy_pct,
        validation.discovered_energy_pct,
    )
    yield _quote(
        group,
        "pairs that reach that energy",
        "",
        validation.paper_pairs_reaching_discovered,
        validation.pairs_reaching_discovered,
    )


def _transfers(study: Study) -> Iterable[QuotedNumber]:
    group = "The discovered clocks elsewhere"
    by_batch = {row.batch: row for row in study.batch_transfer}
    for batch, paper in published.BATCH.items():
        yield from _quote_change(group, f"batch {batch}", paper, _of(by_batch.get(batch)))
    smallest = [row for row in study.batch_transfer if row.batch < min(published.BATCH)]
    paper = published.SMALLEST_BATCHES
    times, energies = [r.time_pct for r in smallest], [r.energy_pct for r in smallest]
    name = "smaller batches"
    yield _quote(group, f"{name}: greatest time", "%", paper.time_pct, max(times, default=None))
    yield _quote(group, f"{name}: least energy", "%", paper.energy_pct, min(energies, default=None))
    by_degree = {row.tensor_parallel: row for row in study.tensor_parallel_transfer}
    for degree, change in published.TENSOR_PARALLEL.items():
        yield from _quote_change(
            group, f"tensor parallel {degree}", change, _of(by_degree.get(degree))
        )
    again = study.a4000
    for what, theirs, ours in (
        ("time", again.paper_time_pct, again.time_pct),
        ("energy", again.paper_energy_pct, again.energy_pct),
    ):
        yield _quote(group, f"RTX A4000, searched again: {what}", "%", theirs, ours)
    group = "Not deployed"
    yield _quote(
        group,
        "clock changes per layer",
        "",
        published.CLOCK_CHANGES_PER_LAYER,
        study.clock_changes_per_layer,
    )
    # Both studies change clocks for free, so there is nothing of ours to set beside it.
    yield _quote(group, "least time a switch took", "s", published.SWITCH_S, None)


def _of(row: Transfer | None) -> PercentChange | None:
    return PercentChange(time_pct=row.time_pct, energy_pct=row.energy_pct) if row else None
