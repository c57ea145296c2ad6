"""Our choice per kernel beside Table 1: matched by order, and compared by what each lowers."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from underclock.paper.published import TABLE1, PublishedKernel
from underclock.paper.records import Agreement, Lever, LeverCount, Table1Row
from underclock.records import Clocks, Kernel, Kind, Plan

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


def lever(chosen: Clocks, auto: Clocks) -> Lever:
    """Return which clocks a choice lowers.

    A clock held at or above the one that runs under auto lowers nothing: 9501 MHz is a memory
    clock lowered only where auto runs a faster one. A clock left to auto, or not read under auto,
    is not lowered either.

    Args:
        chosen: Clocks asked for.
        auto: Clocks read back while the same kernel ran under auto.
    """
    return _LEVERS[
        _below(chosen.core_mhz, auto.core_mhz),
        _below(chosen.mem_mhz, auto.mem_mhz),
    ]


def _below(chosen_mhz: int | None, auto_mhz: int | None) -> bool:
    return chosen_mhz is not None and auto_mhz is not None and chosen_mhz < auto_mhz


def beside_table1(plan: Plan, auto: Mapping[str, Clocks]) -> tuple[Table1Row, ...]:
    """Put our choices beside the paper's, kernel by kernel.

    Args:
        plan: Of the paper's step, without its optimizer.
        auto: Clocks read back under auto, by kernel.

    Raises:
        ValueError: The plan is of other kernels than Table 1.
    """
    pairs = _matched(plan.runs)
    return tuple(
        _row(number, kernel, published, plan, auto[kernel.name])
        for number, (kernel, published) in enumerate(pairs)
    )


def _matched(kernels: Sequence[Kernel]) -> list[tuple[Kernel, PublishedKernel]]:
    if len(kernels) != len(TABLE1):
        raise ValueError(f"Table 1 has {len(TABLE1)} kernels, the step has {len(kernels)}")
    pairs = list(zip(kernels, TABLE1, strict=True))
    for kernel, published in pairs:
        if (noun(kernel), kernel.count) != (published.kernel, published.invocations):
            raise ValueError(
                f"Table 1 has {published.invocations} x {published.kernel} where the step has "
                f"{kernel.count} x {kernel.name}"
            )
    return pairs


def noun(kernel: Kernel) -> str:
    """Return what the paper calls a kernel; its own name where the paper knows none like it."""
    if kernel.kind is Kind.GEMM:
        return "GEMM"
    return next((n for start, n in _NOUNS.items() if kernel.name.startswith(start)), kernel.name)


def _row(
    number: int, kernel: Kernel, published: PublishedKernel, plan: Plan, auto: Clocks
) -> Table1Row:
    choice = plan.kernels[kernel.name]
    return Table1Row(
        kernel_id=number,
        section=published.section,
        kernel=published.kernel,
        name=kernel.name,
        invocations=kernel.count,
        auto_core_mhz=auto.core_mhz,
        auto_mem_mhz=auto.mem_mhz,
        core_mhz=choice.core_mhz,
        mem_mhz=choice.mem_mhz,
        time_pct=100.0 * choice.time_change,
        energy_pct=100.0 * choice.energy_change,
        lever=lever(choice.clocks, auto),
        paper_core_mhz=published.clocks.core_mhz,
        paper_mem_mhz=published.clocks.mem_mhz,
        paper_time_pct=published.change.time_pct,
        paper_energy_pct=published.change.energy_pct,
        paper_lever=lever(published.clocks, auto),
    )


def agreement(rows: Sequence[Table1Row]) -> Agreement:
    """Count the kernels for which both choices lower the same clocks.

    Args:
        rows: At least one.
    """
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
