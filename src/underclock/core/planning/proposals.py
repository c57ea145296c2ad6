"""Proposals that make segments longer, so that switching pays on a GPU that switches slowly.

None touches the maths of training, and none is applied: each is planned as if it had been done,
and proposed with what it would save. Shape letters: K kernels, S settings, n invocations.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from underclock.arrays import Floats
from underclock.core.planning.latency_curve import Progress
from underclock.core.planning.sequence import Rules, sequence_problem, unchanged
from underclock.core.solvers import Effort, SequenceProblem, solve
from underclock.core.step.table import CostTable
from underclock.records import Kernel, Pass, Proposal, Status

_BATCHES = (2, 4)
_MICRO_BATCHES = 4
_WORTH = 0.001  # of auto's energy


def proposals(
    table: CostTable,
    order: Sequence[int],
    rules: Rules,
    progress: Progress | None = None,
    *,
    below: float = math.inf,
) -> tuple[Proposal, ...]:
    """Plan every proposal under the same rules.

    Args:
        below: What the step as it is changes in energy: what is not better by a tenth of a point
            does not pay.

    Returns:
        The greatest saving first; those that no schedule can follow are left out.
    """
    tell = progress or (lambda _done, _total, _doing: None)
    planned = []
    changed_steps = list(_changed_steps(table, sequence_problem(table, order, rules)))
    for done, (name, needs, problem, times) in enumerate(changed_steps):
        tell(done, len(changed_steps), f"plans {name}")
        auto_s, auto_j = _auto(table, problem, times)
        budget_s = auto_s * (1.0 + rules.max_slowdown)
        schedule = solve(dataclasses.replace(problem, budget_s=budget_s), Effort.QUICK)
        if schedule.status is Status.INFEASIBLE:
            continue
        planned.append(
            Proposal(
                name=name,
                needs=needs,
                time_change=float(schedule.time_s / auto_s) - 1.0,
                energy_change=float(schedule.energy_j / auto_j) - 1.0,
                switches=schedule.switches,
            )
        )
    tell(len(changed_steps), len(changed_steps), "plans longer segments")
    better = [proposal for proposal in planned if proposal.energy_change < below - _WORTH]
    return tuple(sorted(better, key=lambda proposal: proposal.energy_change))


def _changed_steps(
    table: CostTable, problem: SequenceProblem
) -> Iterator[tuple[str, str, SequenceProblem, Floats]]:
    """Yield the name of each proposal, what it needs, the problem it leaves, and what grows.

    What grows is by how much more each kernel takes. Shape (K,).
    """
    same = np.ones(len(table.kernels))
    passes = [kernel.pass_ for kernel in table.kernels]
    works = np.array([pass_ in {Pass.FORWARD, Pass.BACKWARD} for pass_ in passes])
    for times in _BATCHES:
        # What a kernel takes is taken to grow with the batch: products and streams of a size that
        # fills the GPU do, to a few per cent.
        grown = np.where(works, float(times), 1.0)
        scale = grown[:, None]
        yield (
            f"{times} x larger micro-batches",
            f"memory for {times} x the activations, and as many fewer micro-batches",
            dataclasses.replace(
                problem, time_s=problem.time_s * scale, energy_j=problem.energy_j * scale
            ),
            grown,
        )
    kernels = table.kernels
    forward, backward, rest = _by_pass(kernels, problem.order.tolist())
    if forward and backward:
        yield (
            f"all {_MICRO_BATCHES} micro-batches forward, then all backward",
            f"memory for {_MICRO_BATCHES} x the activations",
            _reordered(
                problem, kernels, [*forward * _MICRO_BATCHES, *backward * _MICRO_BATCHES, *rest]
            ),
            same,
        )
    bucketed = [*forward, *backward, *rest]
    if bucketed != problem.order.tolist():
        yield (
            "the optimizer's kernels in one stretch after the backward pass",
            "gradients of all layers held until then",
            _reordered(problem, kernels, bucketed),
            same,
        )


def _by_pass(
    kernels: Sequence[Kernel], order: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    """Return launches of the forward pass, of the backward pass, and the rest.

    What runs beside others stays with them: by itself the step would wait for it.
    """
    parts: dict[Pass, list[int]] = {Pass.FORWARD: [], Pass.BACKWARD: []}
    rest: list[int] = []
    part = rest
    for k in order:
        if not kernels[k].overlapped:
            part = parts.get(kernels[k].pass_, rest)
        part.append(k)
    return parts[Pass.FORWARD], parts[Pass.BACKWARD], rest


def _reordered(
    problem: SequenceProblem, kernels: Sequence[Kernel], order: Sequence[int]
) -> SequenceProblem:
    launches = np.array(order, dtype=np.int64)
    return dataclasses.replace(problem, order=launches, blocked=unchanged(kernels, launches))


def _auto(table: CostTable, problem: SequenceProblem, grown: Floats) -> tuple[float, float]:
    """Return what a changed step at auto clocks takes, in s and J."""
    launches, at = table.launches, (problem.order, table.baseline)
    return (
        float((launches.time_s[at] * grown[problem.order]).sum()),
        float((launches.energy_j[at] * grown[problem.order]).sum()),
    )
