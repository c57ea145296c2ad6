"""What a kernel mostly does, and its FLOPs, read off the operator that launched it."""

import math
import re

from underclock.records import Kind

_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "_scaled_mm", "_int_mm"}
_ATTENTION = re.compile(r"flash|fmha|efficient_attention|cudnn_attention|sdpa", re.IGNORECASE)
_PRODUCT_FUNCTION = re.compile(r"gemm|nvjet|cutlass|xmma|wgmma", re.IGNORECASE)
_TENSOR = re.compile(r"\w+\[([\dx]+)\]")


def kind_of(operator: str, function: str) -> Kind:
    """Tell products, attention included, from kernels that move memory."""
    bare = operator.removeprefix("aten::")
    if bare in _PRODUCTS or _ATTENTION.search(operator + function):
        return Kind.GEMM
    return Kind.GEMM if _PRODUCT_FUNCTION.search(function) else Kind.MEMORY


def flops_of(operator: str, shapes: str) -> float | None:
    """Return 2·m·n·k of a matrix product, from its last two inputs; ``None`` for all else."""
    bare = operator.removeprefix("aten::")
    if bare not in {"mm", "addmm", "bmm", "baddbmm"}:
        return None
    sizes = [[int(n) for n in size.split("x")] for size in _TENSOR.findall(shapes)]
    if len(sizes) < 2 or len(sizes[-1]) < 2 or len(sizes[-2]) < 2:  # noqa: PLR2004 - matrices
        return None
    *batch, m, k = sizes[-2]
    return 2.0 * math.prod(batch) * m * k * sizes[-1][-1]
