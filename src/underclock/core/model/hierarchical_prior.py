"""A hierarchical prior on the kernels' parameters: kernels of one kind are like one another.

Parameters are taken relative to the kernel's own time and power, so that kernels of any size
compare. Their prior is a Student-t distribution, which leaves outliers unshrunk.

Shape letters: K kernels, P parameters of a kernel.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from underclock.arrays import Floats
from underclock.core.model.parameters import COLLECTIVE, CORE, DRAM, FIXED, PER_KERNEL, WORK, Rows
from underclock.core.tracing.names import short
from underclock.physics.constants import GpuConstants
from underclock.records import Kernel, Kind, Pass


class KernelKind(StrEnum):
    """Kernels that clocks slow down alike and that draw alike."""

    PRODUCT = "product"
    ATTENTION = "attention"
    NORM = "norm"  # softmax too: both read rows and write them scaled
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    OPTIMIZER = "optimizer"
    COPY = "copy"


_DEGREES = 3.0  # of freedom of the Student-t distribution
_USUAL_FREEDOM = 4.0  # a usual GPU is believed in as if so many of its constants were known
_WIDEST = 10.0  # times as wide as usual, a prior says nothing any more
FEWEST = 5  # kernels of a kind from which its prior is learned
LEAST_SPREAD = np.array([0.4, 0.4, 1.0, 0.4])  # of the four parameters
_TYPICAL = {  # shares of a kernel's time and power at the fastest clocks, as logarithms
    CORE: (math.log(0.6), 1.3),
    DRAM: (math.log(0.4), 1.5),
    FIXED: (math.log(0.005), 2.5),
    WORK: (math.log(0.4), 1.0),
}
# Switching's share of power, by kind: medians of 396 kernels in 20 campaigns whose samples stand in
# docs/evidence/h200, fitted with one prior for all, by `studies/steered_h200.py` at e0dfca69.
_WORK_OF = {
    KernelKind.PRODUCT: 0.82,
    KernelKind.ATTENTION: 0.61,
    KernelKind.ELEMENTWISE: 0.56,
    KernelKind.NORM: 0.54,
    KernelKind.COPY: 0.47,
    KernelKind.REDUCTION: 0.45,
    KernelKind.OPTIMIZER: 0.41,
}
_NAMED = tuple(  # the first that fits
    (KernelKind(kind), re.compile(pattern))
    for kind, pattern in (
        ("reduction", r"splitkreduce|lean_reduction|vector_norm"),
        ("optimizer", r"multi_tensor|foreach|fused_(adam|sgd|lamb|lion)|\badam"),
        ("norm", r"(layer|batch|group|rms)_?norm|softmax|cross_entropy|classifier|residual"),
        ("attention", r"attention|flash|fmha|sdpa"),
        ("product", r"mm\b|\bmatmul\b|\blinear\b|nvjet|cutlass|convol|triton_(tem|mm)"),
        ("copy", r"copy|clone|\bcat\b|catarray|stack|embedding|\bindex|gather|scatter|\broll"),
        ("copy", r"\bfill|zero_|memset|arange|permute|cache|encoder|\bw[pt]e_"),
        ("reduction", r"reduc|\bsum\b|scan|sort|topk|loss|_bias_k|\bsample|triton_(red|per)"),
    )
)
LAUNCH = (math.log(2e-6), 1.0)
"""What a launch takes that nothing changes, in s: its logarithm, and the spread of that.

An H200 takes 1.2 µs, a Titan X 5 µs (as in `gpus/data`). A collective waits for its link
instead, a share of its time.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPrior:
    """What each kernel's parameters are expected to be."""

    unit: Floats  # parameters of a kernel with all of its time, or power, in that part, (K, P)
    mean: Floats  # (K, P)
    spread: Floats  # scale of the Student-t distribution, (K, P)

    def penalty(self, kernels: Floats) -> Floats:
        """Return the negative log density of parameters, (K, P), but a constant. Shape (K,)."""
        penalty: Floats = (0.5 * _DEGREES * np.log1p(self._away2(kernels) / _DEGREES)).sum(axis=1)
        return penalty

    def precision(self, kernels: Floats) -> Floats:
        """Return how strongly each parameter is drawn to its mean. Shape (K, P)."""
        precision: Floats = self.spread**-2.0 / (1.0 + self._away2(kernels) / _DEGREES)
        return precision

    def _away2(self, kernels: Floats) -> Floats:
        away2: Floats = ((kernels - self.mean) / self.spread) ** 2
        return away2


def kernel_kind(kernel: Kernel) -> KernelKind | None:
    """Return what a kernel does; ``None`` of a collective and where nothing is known of it."""
    if kernel.kind is None or kernel.kind is Kind.COLLECTIVE:
        return None
    name = kernel.name
    if kernel.launch is not None:
        operator = kernel.launch.operator.removeprefix("aten::")
        name = f"{operator} {short(kernel.launch.function)}"
    name = name.lower().strip()
    found = next((kind for kind, names in _NAMED if names.search(name)), KernelKind.ELEMENTWISE)
    if kernel.kind is Kind.GEMM:  # what a library's function is called says less than its operator
        parts = KernelKind.ATTENTION, KernelKind.REDUCTION
        return found if found in parts else KernelKind.PRODUCT
    return KernelKind.OPTIMIZER if kernel.pass_ is Pass.OPTIMIZER else found


def usual_shares(kinds: Sequence[KernelKind | None]) -> Floats:
    """Return logarithms of the shares that kernels usually have, and spreads. Shape (2, K, P).

    Only of power kinds have a prior of their own: a GPU with one memory clock, as in the campaigns,
    does not tell DRAM's share of time from what its core clock leaves alone.
    """
    shares = np.tile(np.array([_TYPICAL[p] for p in range(PER_KERNEL)]).T[:, None], (len(kinds), 1))
    for k, kind in enumerate(kinds):
        if kind is not None:
            shares[:, k, WORK] = math.log(_WORK_OF[kind]), LEAST_SPREAD[WORK]
    return shares


def typical(rows: Rows, gpu: GpuConstants) -> KernelPrior:
    """Return the prior before any kernel is known: usual shares of time and power when fastest."""
    bounds = rows.bounds
    fastest = np.zeros(len(rows.names), dtype=np.int64)
    speed = rows.core_mhz * rows.mem_mhz
    for k in np.flatnonzero(np.diff(bounds)).tolist():
        low, high = bounds[k], bounds[k + 1]
        fastest[k] = low + int(np.argmax(speed[low:high]))
    core, mem = rows.core_mhz[fastest], rows.mem_mhz[fastest]
    # A kernel without rows was not measured: any size will do, it stays as unsure as the prior.
    log_s, log_w = rows.log[:, fastest]
    log_v2 = 2 * math.log(gpu.floor_v)
    unit = np.stack(
        [log_s + np.log(core), log_s + np.log(mem), log_s, log_s + log_w - log_v2], axis=1
    )
    mean, spread = usual_shares([None] * len(rows.names)) if rows.shares is None else rows.shares
    prior = KernelPrior(unit=unit, mean=unit + mean, spread=spread.copy())
    launched = rows.kinds != COLLECTIVE
    prior.mean[launched, FIXED], prior.spread[launched, FIXED] = LAUNCH
    return prior


def learned(prior: KernelPrior, rows: Rows, kernels: Floats, variance: Floats) -> KernelPrior:
    """Return the prior that kernels of each kind say of one another.

    Args:
        prior: As it was; it stays for kinds of which too few kernels have rows.
        kernels: Parameters as fitted. Shape (K, P).
        variance: Of these, the shared being known. Shape (K, P).
    """
    mean, spread = prior.mean.copy(), prior.spread.copy()
    away = kernels - prior.mean
    known = np.diff(rows.bounds) > 0
    for kind in np.unique(rows.kinds):
        of_kind = rows.kinds == kind
        alike = of_kind & known
        if alike.sum() < FEWEST:
            continue
        middle = np.median(away[alike], axis=0)
        apart = 1.5 * np.median(np.abs(away[alike] - middle), axis=0)
        # Kernels whose rows do not tell lie where they were expected: no sign they are alike.
        wide = np.sqrt(apart**2 + np.median(variance[alike], axis=0))
        mean[of_kind] += middle
        spread[of_kind] = np.maximum(wide, LEAST_SPREAD)
        if kind != COLLECTIVE:  # what a launch takes is no share of its kernel: it stays as it was
            mean[of_kind, FIXED] = prior.mean[of_kind, FIXED]
            spread[of_kind, FIXED] = prior.spread[of_kind, FIXED]
    return KernelPrior(unit=prior.unit, mean=mean, spread=spread)


def widening(away2: Floats, left: Floats) -> float:
    """Return by how much a prior is too narrow for what rows tell of its parameters; 1 or more.

    A parameter that rows tell for certain lies away from its mean by as much as the prior is wide;
    one that they tell nothing of stays there, and is no sign of anything. So what all of them lie
    away is compared with how much of them rows determine (MacKay's evidence approximation).

    Args:
        away2: Squared distances to the prior's mean, over its usual variance. Shape (S,).
        left: Variance that the rows leave, as a fraction of the prior's. Shape (S,).
    """
    determined = np.clip(1.0 - left, 0.0, 1.0).sum()
    scale2 = (_USUAL_FREEDOM + away2.sum()) / (_USUAL_FREEDOM + determined)
    return float(np.clip(math.sqrt(scale2), 1.0, _WIDEST))
