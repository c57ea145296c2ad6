"""Ours beside the paper: Table 1 kernel by kernel, and every number that is quoted from it."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from underclock.app.doctor import GpuFinding
from underclock.paper import published
from underclock.paper.published import TABLE1, PublishedKernel
from underclock.paper.records import (
    Agreement,
    Lever,
    LeverCount,
    PercentChange,
    QuotedNumber,
    Revalidation,
    SecondGpu,
    Study,
    Table1Row,
    Table2Cell,
    Transfer,
)
from underclock.records import AUTO, Clocks, Kernel, Kind, MeasurementSettings, Plan, SampleSet
from underclock.workloads.gpt3 import Shape

_SACRIFICED_PCT = 5.0  # far from both the GEMMs that get faster and those that get 9 % slower
# What the paper calls a kernel that is no matrix product, by the start of our name.
_NOUNS = {
    "encoder_forward": "WTE & WPE",
    "layernorm": "Layernorm",
    "permute": "Permute",
    "unpermute": "Permute",
    "softmax": "Softmax",
    "fused_classifier": "Softmax",
    "fused_residual": "Residual",
    "gelu": "GELU",
    "matmul_backward_bias": "Bias",
    "reduce_add_sum": "Bias reduce",
    "wpe_backward": "WPE",
    "wte_backward": "WTE",
}
_LEVERS = {
    (False, False): Lever.NEITHER,
    (True, False): Lever.CORE,
    (False, True): Lever.MEMORY,
    (True, True): Lever.BOTH,
}


def quoted_numbers(
    study: Study,
    *,
    sizes: dict[str, int],
    gpu: GpuFinding,
    samples: SampleSet,
    measuring: MeasurementSettings,
    gpu_days: float,
) -> tuple[QuotedNumber, ...]:
    """Return every quoted number, in the order of the paper."""
    return (
        *_set_up(sizes, gpu, samples, measuring),
        _quote("Set-up", "exhaustive search", "GPU-days", published.GPU_DAYS, gpu_days),
        *_table2(study),
        *_table1(study.table1),
        *_validation(study),
        *_transfers(study),
    )


def basis_of(group: str, name: str) -> str:
    """Return what a number of ours rests on: Table 1, to which the GPUs were fitted, or nothing.

    Kernel-level choices of Table 2 follow partly from Table 1, which has those of one of them.
    """
    if group == "Set-up":
        return "given"
    if group == "Table 1":
        return "fitted"
    return "informed" if group == "Table 2" and name.startswith("kernel") else "predicted"


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
    group: str,
    name: str,
    paper: PercentChange,
    ours: PercentChange | Table2Cell | Revalidation | Transfer | SecondGpu | None,
) -> Iterator[QuotedNumber]:
    """Quote a change of time, then of energy."""
    time_pct, energy_pct = (ours.time_pct, ours.energy_pct) if ours else (None, None)
    yield _quote(group, f"{name}: time", "%", paper.time_pct, time_pct)
    yield _quote(group, f"{name}: energy", "%", paper.energy_pct, energy_pct)


def _set_up(
    sizes: dict[str, int], gpu: GpuFinding, samples: SampleSet, measuring: MeasurementSettings
) -> Iterator[QuotedNumber]:
    core_mhz, mem_mhz = gpu.core_mhz, gpu.mem_mhz
    grid = sorted({c.core_mhz for c in samples.settings if c.core_mhz is not None})
    least_mem = [c.core_mhz or 0 for c in samples.settings if c.mem_mhz == mem_mhz[0]]
    warm_c = [s.temperature_c or 0.0 for s in samples.samples if s.asked == AUTO]
    at_least_mem = published.GREATEST_CORE_AT_LEAST_MEM_MHZ
    for name, unit, paper, ours in (
        ("parameters", "1e9", published.PARAMETERS_1E9, Shape(**sizes).parameters / 1e9),
        ("layers", "", published.LAYERS, sizes["layers"]),
        ("hidden size", "", published.HIDDEN, sizes["hidden"]),
        ("attention heads", "", published.HEADS, sizes["heads"]),
        ("sequence length", "", published.SEQUENCE, sizes["sequence"]),
        ("batch", "", published.BATCH_SIZE, sizes["batch"]),
        ("kernels before the optimizer", "", len(TABLE1), len(samples.kernels)),
        ("core clocks of the driver", "", published.CORE_CLOCKS, len(core_mhz)),
        ("their spacing", "MHz", published.CORE_SPACING_MHZ, _spacing(core_mhz)),
        ("least core clock visited", "MHz", published.GRID_CORE_MHZ[0], grid[0]),
        ("greatest core clock visited", "MHz", published.GRID_CORE_MHZ[1], grid[-1]),
        ("step between them", "MHz", published.GRID_STEP_MHZ, _spacing(grid)),
        ("memory clocks", "", len(published.MEM_MHZ), len(mem_mhz)),
        ("least memory clock", "MHz", published.MEM_MHZ[0], mem_mhz[0]),
        ("greatest core clock there", "MHz", at_least_mem, max(least_mem, default=None)),
        ("greatest memory clock", "MHz", published.MEM_MHZ[-1], mem_mhz[-1]),
        ("warm-up of the GPU", "s", published.WARM_S, measuring.warm_s),
        ("temperature, hottest kernel under auto", "°C", published.STEADY_C, max(warm_c)),
        ("warm-up of each kernel", "s", published.KERNEL_WARM_S, measuring.kernel_warm_s),
        ("window", "s", published.WINDOW_S, measuring.window_s),
    ):
        yield _quote("Set-up", name, unit, paper, ours)


def _spacing(clocks_mhz: Sequence[int]) -> int | None:
    """Return the least distance between clocks; ``None`` for a single one."""
    return min((b - a for a, b in itertools.pairwise(clocks_mhz)), default=None)


def _table2(study: Study) -> Iterator[QuotedNumber]:
    for cell in study.table2:
        name = f"{cell.granularity}-level, {cell.objective}, {cell.aggregate}"
        paper = PercentChange(time_pct=cell.paper_time_pct, energy_pct=cell.paper_energy_pct)
        yield from _quote_change("Table 2", name, paper, cell)


def _table1(rows: Sequence[Table1Row]) -> Iterator[QuotedNumber]:
    gemms = [row for row in rows if row.kernel == "GEMM"]
    sacrificed = [row for row in gemms if row.time_pct > _SACRIFICED_PCT]
    lowered = [row for row in gemms if row.lever is Lever.MEMORY and row not in sacrificed]
    slow_core = [row for row in rows if row.kernel != "GEMM" and row.lever is Lever.CORE]
    cores = [float(row.core_mhz) for row in slow_core if row.core_mhz is not None]

    def quote(name: str, unit: str, paper: float, ours: float | None) -> QuotedNumber:
        return _quote("Table 1", name, unit, paper, ours)

    def ends(
        what: str, unit: str, paper: tuple[float, float], ours: Sequence[float]
    ) -> Iterator[QuotedNumber]:
        """Quote the least and the greatest of a group, which may be empty with us."""
        group, of = what.split(": ")
        yield quote(f"{group}: least {of}", unit, paper[0], min(ours, default=None))
        yield quote(f"{group}: greatest {of}", unit, paper[1], max(ours, default=None))

    name = "memory-lowered GEMMs"
    yield from ends(f"{name}: time", "%", published.MEMORY_LOWERED_GEMM_TIME_PCT, _times(lowered))
    paper = published.MEMORY_LOWERED_GEMM_ENERGY_PCT
    yield from ends(f"{name}: energy", "%", paper, _energies(lowered))
    name = "sacrificed GEMMs"
    yield quote(name, "", published.SACRIFICED_GEMMS, len(sacrificed))
    yield from ends(f"{name}: time", "%", published.SACRIFICED_GEMM_TIME_PCT, _times(sacrificed))
    paper = published.SACRIFICED_GEMM_ENERGY_PCT
    yield from ends(f"{name}: energy", "%", paper, _energies(sacrificed))
    name = "core-lowered others"
    yield from ends(f"{name}: clock", "MHz", published.CORE_LOWERED_MHZ, cores)
    most_pct = published.CORE_LOWERED_MOST_TIME_PCT
    yield quote(f"{name}: greatest time", "%", most_pct, max(_times(slow_core), default=None))
    yield from ends(f"{name}: energy", "%", published.CORE_LOWERED_ENERGY_PCT, _energies(slow_core))
    theirs, ours = (
        sum(each is Lever.BOTH for each in levers)
        for levers in ([row.paper_lever for row in rows], [row.lever for row in rows])
    )
    yield quote("kernels that lower both clocks", "", theirs, ours)


def _times(rows: Iterable[Table1Row | Transfer]) -> list[float]:
    return [row.time_pct for row in rows]


def _energies(rows: Iterable[Table1Row | Transfer]) -> list[float]:
    return [row.energy_pct for row in rows]


def _validation(study: Study) -> Iterator[QuotedNumber]:
    group, v = "Validation", study.validation
    energy_pct, reaching = v.paper_discovered_energy_pct, v.paper_pairs_reaching_discovered
    yield _quote(group, "repeats", "", published.REPEATS, v.repeats)
    yield _quote(group, "pairs", "", published.REPEATS**2, len(v.pairs))
    yield from _quote_change(group, "mean of all pairs", published.VALIDATED, v)
    yield _quote(group, "discovered energy", "%", energy_pct, v.discovered_energy_pct)
    name = "pairs that reach that energy"
    yield _quote(group, name, "", reaching, v.pairs_reaching_discovered)


def _transfers(study: Study) -> Iterator[QuotedNumber]:
    group = "The discovered clocks elsewhere"
    by_batch = {row.batch: row for row in study.batch_transfer}
    for batch, paper in published.BATCH.items():
        yield from _quote_change(group, f"batch {batch}", paper, by_batch.get(batch))
    smallest = [row for row in study.batch_transfer if row.batch < min(published.BATCH)]
    paper, name = published.SMALLEST_BATCHES, "smaller batches"
    most_pct, least_pct = (
        max(_times(smallest), default=None),
        min(_energies(smallest), default=None),
    )
    yield _quote(group, f"{name}: greatest time", "%", paper.time_pct, most_pct)
    yield _quote(group, f"{name}: least energy", "%", paper.energy_pct, least_pct)
    by_degree = {row.tensor_parallel: row for row in study.tensor_parallel_transfer}
    for degree, change in published.TENSOR_PARALLEL.items():
        name = f"tensor parallel {degree}"
        yield from _quote_change(group, name, change, by_degree.get(degree))
    again = PercentChange(
        time_pct=study.a4000.paper_time_pct, energy_pct=study.a4000.paper_energy_pct
    )
    yield from _quote_change(group, "RTX A4000, searched again", again, study.a4000)
    group, changes = "Not deployed", published.CLOCK_CHANGES_PER_LAYER
    yield _quote(group, "clock changes per layer", "", changes, study.clock_changes_per_layer)
    # Both studies change clocks for free, so there is nothing of ours to set beside it.
    yield _quote(group, "least time a switch took", "s", published.SWITCH_S, None)


def lever(chosen: Clocks, auto: Clocks) -> Lever:
    """Return which clocks a choice lowers.

    A clock held at or above the one that runs under auto lowers nothing: 9501 MHz is a memory
    clock lowered only where auto runs a faster one. A clock left to auto, or not read under auto,
    is not lowered either.

    Args:
        auto: Clocks read back while the same kernel ran under auto.
    """
    return _LEVERS[
        _below(chosen.core_mhz, auto.core_mhz),
        _below(chosen.mem_mhz, auto.mem_mhz),
    ]


def _below(chosen_mhz: int | None, auto_mhz: int | None) -> bool:
    return chosen_mhz is not None and auto_mhz is not None and chosen_mhz < auto_mhz


def beside_table1(plan: Plan, auto: Mapping[str, Clocks]) -> tuple[Table1Row, ...]:
    """Put our choices beside the paper's, kernel by kernel; ``auto`` are clocks read under auto.

    Raises:
        ValueError: The plan is of other kernels than Table 1.
    """
    pairs = _matched(plan.runs)
    return tuple(
        _row(number, kernel, paper, plan, auto[kernel.name])
        for number, (kernel, paper) in enumerate(pairs)
    )


def _matched(kernels: Sequence[Kernel]) -> list[tuple[Kernel, PublishedKernel]]:
    if len(kernels) != len(TABLE1):
        raise ValueError(f"Table 1 has {len(TABLE1)} kernels, the step has {len(kernels)}")
    pairs = list(zip(kernels, TABLE1, strict=True))
    for kernel, paper in pairs:
        if (noun(kernel), kernel.count) != (paper.kernel, paper.invocations):
            raise ValueError(
                f"Table 1 has {paper.invocations} x {paper.kernel} where the step has "
                f"{kernel.count} x {kernel.name}"
            )
    return pairs


def noun(kernel: Kernel) -> str:
    """Return what the paper calls a kernel; its own name where the paper knows none like it."""
    if kernel.kind is Kind.GEMM:
        return "GEMM"
    return next((n for start, n in _NOUNS.items() if kernel.name.startswith(start)), kernel.name)


def _row(
    number: int, kernel: Kernel, paper: PublishedKernel, plan: Plan, auto: Clocks
) -> Table1Row:
    choice = plan.kernels[kernel.name]
    return Table1Row(
        kernel_id=number,
        section=paper.section,
        kernel=paper.kernel,
        name=kernel.name,
        invocations=kernel.count,
        auto_core_mhz=auto.core_mhz,
        auto_mem_mhz=auto.mem_mhz,
        core_mhz=choice.core_mhz,
        mem_mhz=choice.mem_mhz,
        time_pct=100.0 * choice.time_change,
        energy_pct=100.0 * choice.energy_change,
        lever=lever(choice.clocks, auto),
        paper_core_mhz=paper.clocks.core_mhz,
        paper_mem_mhz=paper.clocks.mem_mhz,
        paper_time_pct=paper.change.time_pct,
        paper_energy_pct=paper.change.energy_pct,
        paper_lever=lever(paper.clocks, auto),
    )


def agreement(rows: Sequence[Table1Row]) -> Agreement:
    """Count the kernels for which both choices lower the same clocks."""
    counts = Counter((row.paper_lever, row.lever) for row in rows)
    same = sum(count for (paper, ours), count in counts.items() if paper is ours)
    overlapping = sum(count for pair, count in counts.items() if _overlap(*pair))
    return Agreement(
        kernels=len(rows),
        same=same,
        share=same / len(rows),
        overlapping=overlapping,
        counts=tuple(
            LeverCount(paper=paper, ours=ours, kernels=counts[paper, ours])
            for paper in Lever
            for ours in Lever
            if counts[paper, ours]
        ),
    )


def _overlap(paper: Lever, ours: Lever) -> bool:
    """Return whether two levers have a clock in common; `Lever.NEITHER` only has itself."""
    if paper is ours:
        return True
    return Lever.BOTH in {paper, ours} and Lever.NEITHER not in {paper, ours}


def clock_changes(loops: Iterable[Sequence[Clocks]]) -> int:
    """Count the boundaries at which clocks change when each loop is run over and over.

    A layer is two loops, forward and backward, for its last kernel is followed by the first of the
    next layer.
    """
    return sum(
        sum(clocks != loop[index - 1] for index, clocks in enumerate(loop)) for loop in loops
    )
