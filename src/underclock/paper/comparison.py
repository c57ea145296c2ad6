"""Ours beside the paper: Table 1 kernel by kernel, and every number that is quoted from it."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from underclock.app.doctor import GpuFinding
from underclock.paper import published
from underclock.paper.published import TABLE1, PublishedKernel
from underclock.paper.records import (
    Agreement,
    Lever,
    LeverCount,
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

_BOTH = "kernels that lower both clocks"
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
    ours = {
        **_set_up(sizes, gpu, samples, measuring),
        "exhaustive search": gpu_days,
        **_table2(study),
        **_table1(study.table1),
        **_validation(study.validation),
        **_transfers(study),
        "clock changes per layer": study.clock_changes_per_layer,
        "least time a switch took": None,  # both studies change clocks for free
    }
    # Which clocks the paper's choices lower depends on those that the GPU at hand runs at.
    counted = {_BOTH: sum(row.paper_lever is Lever.BOTH for row in study.table1)}
    return tuple(
        _beside(quoted, counted.get(quoted.name, quoted.paper), ours[quoted.name])
        for quoted in published.QUOTED.values()
    )


def _beside(quoted: QuotedNumber, paper: float, ours: float | None) -> QuotedNumber:
    difference = None if ours is None else float(ours) - float(paper)
    found = None if ours is None else float(ours)
    return replace(quoted, paper=float(paper), ours=found, difference=difference)


def basis_of(group: str, name: str) -> str:
    """Return what a number of ours rests on: Table 1, to which the GPUs were fitted, or nothing.

    Kernel-level choices of Table 2 follow partly from Table 1, which has those of one of them.
    """
    if group == "Set-up":
        return "given"
    if group == "Table 1":
        return "fitted"
    return "informed" if group == "Table 2" and name.startswith("kernel") else "predicted"


_Ours = dict[str, float | None]
"""Our numbers by their names in the paper; ``None`` where we have none."""


def _change(name: str, ours: Table2Cell | Revalidation | Transfer | SecondGpu | None) -> _Ours:
    """Return a change of time and one of energy."""
    time_pct, energy_pct = (ours.time_pct, ours.energy_pct) if ours else (None, None)
    return {f"{name}: time": time_pct, f"{name}: energy": energy_pct}


def _ends(group: str, of: str, ours: Sequence[float]) -> _Ours:
    """Return the least and the greatest of a group, which may be empty with us."""
    return {
        f"{group}: least {of}": min(ours, default=None),
        f"{group}: greatest {of}": max(ours, default=None),
    }


def _set_up(
    sizes: dict[str, int], gpu: GpuFinding, samples: SampleSet, measuring: MeasurementSettings
) -> _Ours:
    core_mhz, mem_mhz = gpu.core_mhz, gpu.mem_mhz
    grid = sorted({c.core_mhz for c in samples.settings if c.core_mhz is not None})
    least_mem = [c.core_mhz or 0 for c in samples.settings if c.mem_mhz == mem_mhz[0]]
    warm_c = [s.temperature_c or 0.0 for s in samples.samples if s.asked == AUTO]
    return {
        "parameters": Shape(**sizes).parameters / 1e9,
        "layers": sizes["layers"],
        "hidden size": sizes["hidden"],
        "attention heads": sizes["heads"],
        "sequence length": sizes["sequence"],
        "batch": sizes["batch"],
        "kernels before the optimizer": len(samples.kernels),
        "core clocks of the driver": len(core_mhz),
        "their spacing": _spacing(core_mhz),
        "least core clock visited": grid[0],
        "greatest core clock visited": grid[-1],
        "step between them": _spacing(grid),
        "memory clocks": len(mem_mhz),
        "least memory clock": mem_mhz[0],
        "greatest core clock there": max(least_mem, default=None),
        "greatest memory clock": mem_mhz[-1],
        "warm-up of the GPU": measuring.warm_s,
        "temperature, hottest kernel under auto": max(warm_c),
        "warm-up of each kernel": measuring.kernel_warm_s,
        "window": measuring.window_s,
    }


def _spacing(clocks_mhz: Sequence[int]) -> int | None:
    """Return the least distance between clocks; ``None`` for a single one."""
    return min((b - a for a, b in itertools.pairwise(clocks_mhz)), default=None)


def _table2(study: Study) -> _Ours:
    ours: _Ours = {}
    for cell in study.table2:
        name = published.way(cell.granularity, cell.objective, cell.aggregate)
        ours |= _change(name, cell)
    return ours


def _table1(rows: Sequence[Table1Row]) -> _Ours:
    gemms = [row for row in rows if row.kernel == "GEMM"]
    sacrificed = [row for row in gemms if row.time_pct > _SACRIFICED_PCT]
    lowered = [row for row in gemms if row.lever is Lever.MEMORY and row not in sacrificed]
    slow_core = [row for row in rows if row.kernel != "GEMM" and row.lever is Lever.CORE]
    cores = [float(row.core_mhz) for row in slow_core if row.core_mhz is not None]
    ours: _Ours = {"sacrificed GEMMs": len(sacrificed)}
    for group, some in (
        ("memory-lowered GEMMs", lowered),
        ("sacrificed GEMMs", sacrificed),
        ("core-lowered others", slow_core),
    ):
        ours |= _ends(group, "time", _times(some)) | _ends(group, "energy", _energies(some))
    ours |= _ends("core-lowered others", "clock", cores)
    return ours | {_BOTH: sum(row.lever is Lever.BOTH for row in rows)}


def _times(rows: Iterable[Table1Row | Transfer]) -> list[float]:
    return [row.time_pct for row in rows]


def _energies(rows: Iterable[Table1Row | Transfer]) -> list[float]:
    return [row.energy_pct for row in rows]


def _validation(validation: Revalidation) -> _Ours:
    return {
        "repeats": validation.repeats,
        "pairs": len(validation.pairs),
        **_change("mean of all pairs", validation),
        "discovered energy": validation.discovered_energy_pct,
        "pairs that reach that energy": validation.pairs_reaching_discovered,
    }


def _transfers(study: Study) -> _Ours:
    by_batch = {row.batch: row for row in study.batch_transfer}
    by_degree = {row.tensor_parallel: row for row in study.tensor_parallel_transfer}
    smallest = [row for row in study.batch_transfer if row.batch < min(published.BATCH)]
    ours: _Ours = {
        "smaller batches: greatest time": max(_times(smallest), default=None),
        "smaller batches: least energy": min(_energies(smallest), default=None),
        **_change("RTX A4000, searched again", study.a4000),
    }
    for batch in published.BATCH:
        ours |= _change(f"batch {batch}", by_batch.get(batch))
    for degree in published.TENSOR_PARALLEL:
        ours |= _change(f"tensor parallel {degree}", by_degree.get(degree))
    return ours


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
