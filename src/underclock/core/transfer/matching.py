"""Which measured kernel says what a kernel of another step costs.

A kernel is the same where nothing but its count differs. It has the role of another where the same
operator, or function of a workload, runs in the same place of the model: its size may differ. Else
kernels of its kind say how cost goes with FLOPs and bytes, and what no sample is like is unmatched.

Shape letters: K known kernels.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats
from underclock.core.tracing.names import short
from underclock.core.tracing.profile import WIDTHS
from underclock.core.tracing.recapture import identity
from underclock.core.transfer.unseen import FEWEST
from underclock.records import Kernel, Kind
from underclock.records.planned import MatchWay

# A tensor as `Launch.shapes` writes it: bf16[8x1024], i64[] of one; of several, a byte an element.
_TENSOR = re.compile(r"(\w+)\[(\d*(?:x\d+)*)\]")
_SEVERAL = "tensors"  # of several, in place of a type


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """How one kernel of the new step is known."""

    way: MatchWay
    # the known kernel it follows, or where no sample is like it the one of its role: of long lists
    # of tensors, an optimizer's, PyTorch's profiler records no size. ``None`` where its kind says
    # it, or nothing does
    source: int | None = None


def matched(known: Sequence[Kernel], usable: Bools, kernels: Sequence[Kernel]) -> tuple[Match, ...]:
    """Match kernels of a step to known ones, (K,), of which usable samples say what clocks do."""
    same: dict[str, int] = {}
    roles: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for k in np.flatnonzero(usable).tolist():
        same.setdefault(identity(known[k]), k)
        roles[_role(known[k])].append(k)
    kinds = Counter(
        one.kind
        for one, is_usable in zip(known, usable, strict=True)
        if is_usable and _is_sized(one)
    )
    found = []
    for kernel in kernels:
        source = same.get(identity(kernel))
        if source is not None:
            found.append(Match(way=MatchWay.SAME, source=source))
            continue
        of_role = roles.get(_role(kernel), [])
        alike = [k for k in of_role if _is_sized(known[k])]
        if alike and _is_sized(kernel):
            nearest = min(alike, key=lambda k, one=kernel: _away(known[k], one))  # type: ignore[misc]
            found.append(Match(way=MatchWay.ROLE, source=nearest))
        elif _is_sized(kernel) and kinds[kernel.kind] >= FEWEST:
            found.append(Match(way=MatchWay.KIND))
        elif kernel.kind is Kind.COLLECTIVE and kernel.bytes_moved:
            found.append(Match(way=MatchWay.LINK))
        else:
            found.append(Match(way=MatchWay.NONE, source=of_role[0] if of_role else None))
    return tuple(found)


def work_of(kernels: Sequence[Kernel]) -> Floats:
    """Return FLOPs and bytes of a launch of each kernel; 0 where its work is unknown. (2, K)."""
    sized = np.array([_is_sized(kernel) for kernel in kernels])
    both = [[k.flops or 0.0 for k in kernels], [_bytes_of(k) or 0.0 for k in kernels]]
    return np.where(sized, both, 0.0)


def _bytes_of(kernel: Kernel) -> float | None:
    """Return what a launch moves; of a traced one what its inputs hold, ``None`` where unknown."""
    # Outputs are as large as inputs or smaller; what is the same share of both sizes of a role does
    # not change how its cost goes with them.
    if kernel.bytes_moved or kernel.launch is None:
        return kernel.bytes_moved
    total = 0
    for dtype, sizes in _TENSOR.findall(kernel.launch.shapes):
        total += math.prod(map(int, re.findall(r"\d+", sizes))) * WIDTHS.get(dtype, 1)
    return float(total) or None


def _is_sized(kernel: Kernel) -> bool:
    """Whether it is known how much work it does: of a product, fused attention say, FLOPs too."""
    return bool(_bytes_of(kernel) and (kernel.flops or kernel.kind is not Kind.GEMM))


def _role(kernel: Kernel) -> tuple[object, ...]:
    launch = kernel.launch
    if launch is None:
        return kernel.kind, kernel.pass_, kernel.section, kernel.name
    # Libraries choose a product's function by its size; of anything else it is what runs.
    product = kernel.kind is Kind.GEMM and bool(launch.operator)
    function = "" if product else short(launch.function)
    return kernel.kind, kernel.pass_, launch.operator, function, launch.module or kernel.section


def _away(one: Kernel, other: Kernel) -> tuple[bool, float, float]:
    """Return how far apart two kernels of one role are: names count first, then shapes, then sizes.

    One place of a model runs one operator on tensors that are unlike: of a larger batch each of
    them is larger in the same places, so sizes are compared place by place, strides among them.
    """
    (flops, bytes_moved), (known_flops, known_bytes) = work_of([one, other]).T
    apart = abs(math.log(bytes_moved / known_bytes))
    if flops and known_flops:
        apart += abs(math.log(flops / known_flops))
    places = [re.findall(r"\d+", k.launch.shapes) if k.launch else [] for k in (one, other)]
    if len(places[0]) != len(places[1]):
        return one.name != other.name, math.inf, apart
    ratios = ((1 + int(x)) / (1 + int(y)) for x, y in zip(*places, strict=True))
    return one.name != other.name, math.fsum(abs(math.log(ratio)) for ratio in ratios), apart


def rows_apart(one: Kernel, other: Kernel) -> float:
    """Return how far the rows of two kernels' tensors are apart in length, as a logarithm.

    A row is a tensor's last axis. It is 0 where shapes are not known, or are of unlike tensors.
    """
    rows, known_rows = _rows(other), _rows(one)
    if len(rows) != len(known_rows):
        return 0.0
    return max((abs(math.log(x / y)) for x, y in zip(rows, known_rows, strict=True)), default=0.0)


def _rows(kernel: Kernel) -> list[int]:
    """Return how long the rows of a kernel's tensors are; unknown of many in one launch."""
    found = _TENSOR.findall(kernel.launch.shapes) if kernel.launch else []
    each = (sizes.rpartition("x")[2] for dtype, sizes in found if dtype != _SEVERAL)
    return [max(1, int(row or 1)) for row in each]
