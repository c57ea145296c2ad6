"""The discovered clocks on other steps: smaller batches, and one GPU's share of a sharded step."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from underclock.campaign.turns import measured
from underclock.hw.base import Measurer
from underclock.paper.published import BATCH, BATCH_SIZE, TENSOR_PARALLEL
from underclock.paper.records import PercentChange, Transfer
from underclock.records import AUTO, Pass, Plan, Step
from underclock.tracing.trace import trace

WORKLOAD = "gpt3-xl"
BATCHES = (1, 2, 4, 8, 16, 24, 32, BATCH_SIZE)
DEGREES = (2, *TENSOR_PARALLEL)


def before_optimizer(step: Step) -> Step:
    """Return the step without its optimizer, which the paper leaves as it is.

    Raises:
        ValueError: The step is nothing but an optimizer.
    """
    kept = [i for i, kernel in enumerate(step.kernels) if kernel.pass_ is not Pass.OPTIMIZER]
    place = {old: new for new, old in enumerate(kept)}
    return Step(
        name=step.name,
        kernels=tuple(step.kernels[i] for i in kept),
        order=tuple(place[i] for i in step.order if i in place),
        parameters=step.parameters,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """The discovered clocks on every other step.

    Attributes:
        by_batch: Ascending.
        by_tensor_parallel: By number of GPUs, ascending.
    """

    by_batch: tuple[Transfer, ...]
    by_tensor_parallel: tuple[Transfer, ...]


def transfers(measurer: Measurer, plan: Plan, *, tell: Callable[[str], None]) -> Transfers:
    """Measure the plan's clocks, and auto, on every other step.

    Args:
        measurer: On the plan's GPU; it can run kernels.
        plan: Of the paper's step.
        tell: Is told of every step.
    """
    tell("warming the GPU to a steady temperature")
    measurer.warm([plan.runs[index] for index in plan.order])
    return Transfers(
        by_batch=tuple(
            _transfer(measurer, plan, batch, 1, BATCH.get(batch), tell=tell) for batch in BATCHES
        ),
        by_tensor_parallel=tuple(
            _transfer(measurer, plan, BATCH_SIZE, degree, TENSOR_PARALLEL.get(degree), tell=tell)
            for degree in DEGREES
        ),
    )


def _transfer(
    measurer: Measurer,
    plan: Plan,
    batch: int,
    degree: int,
    published: PercentChange | None,
    *,
    tell: Callable[[str], None],
) -> Transfer:
    tell(f"the discovered clocks at batch {batch}, {degree} GPUs")
    kernels = before_optimizer(trace(WORKLOAD, batch=batch, tp=degree)).kernels
    # Narrower layers take a second stage of the bias reduction that the plan has not seen.
    unplanned = tuple(kernel.name for kernel in kernels if kernel.name not in plan.kernels)
    wanted = [
        plan.kernels[kernel.name].clocks if kernel.name in plan.kernels else AUTO
        for kernel in kernels
    ]
    counts = [kernel.count for kernel in kernels]
    auto, planned = (
        measured(measurer, kernels, clocks, 0) for clocks in ([AUTO] * len(kernels), wanted)
    )
    return Transfer(
        batch=batch,
        tensor_parallel=degree,
        time_pct=_change_pct([r.time_s for r in auto], [r.time_s for r in planned], counts),
        energy_pct=_change_pct([r.energy_j for r in auto], [r.energy_j for r in planned], counts),
        unplanned=unplanned,
        paper_time_pct=published.time_pct if published else None,
        paper_energy_pct=published.energy_pct if published else None,
    )


def _change_pct(auto: Sequence[float], planned: Sequence[float], counts: Sequence[int]) -> float:
    before, after = (
        math.fsum(count * cost for count, cost in zip(counts, costs, strict=True))
        for costs in (auto, planned)
    )
    return 100.0 * (after / before - 1.0)
