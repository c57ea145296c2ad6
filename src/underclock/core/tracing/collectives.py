"""Collectives of a distributed step, as PyTorch's profiler writes them beside NCCL's kernels.

The profiler writes what `record_param_comms` was told, both to that operator on the host and to the
kernel on the GPU: which collective, how many elements in and out, their type, and the group.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from underclock.core.tracing.host import HostRange

_NAME, _RANKS = "Collective name", "Group size"
_IN, _OUT = "In msg nelems", "Out msg nelems"
_GROUP = "Process Group Name"
_OPERATOR = "nccl::"
_DTYPES = {  # as c10 writes them: width in bytes, and our name
    "BFloat16": (2, "bf16"),
    "Half": (2, "fp16"),
    "Float": (4, "fp32"),
    "Double": (8, "fp64"),
    "Long": (8, "i64"),
    "Int": (4, "i32"),
    "Short": (2, "i16"),
    "Char": (1, "i8"),
    "Byte": (1, "u8"),
    "Bool": (1, "bool"),
    "Float8_e4m3fn": (1, "fp8"),
    "Float8_e5m2": (1, "fp8"),
}
_WIDTHS = {name: width for width, name in _DTYPES.values()}
_MESSAGE = re.compile(r"(\w+)\[(\d+)\]")
_AMONG = re.compile(r" among (\d+) ranks")


def operator_and_shapes(
    event: Mapping[str, Any], chain: Sequence[HostRange]
) -> tuple[str, str] | None:
    """Return a collective and what it sends and receives, as an operator with its inputs.

    Args:
        event: Of the GPU.
        chain: What was open on the host as it was asked for, outermost first.

    Returns:
        ``None`` where it is no collective, or nothing was written of it.
    """
    told = [event.get("args", {}), *(range_.arguments for range_ in reversed(chain))]
    facts = next((each for each in told if each.get(_NAME)), None)
    if facts is None:
        return None
    dtype = str(facts.get("dtype", ""))
    name = _DTYPES[dtype][1] if dtype in _DTYPES else dtype
    sent, received = (f"{name}[{int(facts.get(key, 0))}]" for key in (_IN, _OUT))
    group = str(facts.get(_GROUP, ""))
    of_group = f" in group {group!r}" if group else ""
    shapes = f"{sent} to {received} among {int(facts.get(_RANKS, 1))} ranks{of_group}"
    return f"{_OPERATOR}{facts[_NAME]}", shapes


def is_collective(operator: str) -> bool:
    """Whether an operator is one that `operator_and_shapes` returned."""
    return operator.startswith(_OPERATOR)


def bytes_of(operator: str, shapes: str) -> float | None:
    """Return how much a rank reads and writes in a collective; ``None`` where that is not known.

    Args:
        operator: Which, as `operator_and_shapes` returned it.
        shapes: Likewise.
    """
    if not is_collective(operator):
        return None
    sizes = [_WIDTHS.get(dtype, 0) * int(count) for dtype, count in _MESSAGE.findall(shapes)]
    return float(sum(sizes)) or None


def ranks_of(operator: str, shapes: str) -> int:
    """Return how many ranks an operator needs; 1 where it is no collective.

    Args:
        operator: As for `bytes_of`.
        shapes: Likewise.
    """
    found = _AMONG.search(shapes) if is_collective(operator) else None
    return int(found[1]) if found else 1
