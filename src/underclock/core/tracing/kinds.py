"""What a kernel mostly does, and its FLOPs, read off the operator that launched it."""

import math
import re

from underclock.records import Kind

_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "_scaled_mm", "_int_mm"}
FACTORS_FROM = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
"""Which input of a product its two factors begin with: what is added to it comes before."""
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
    """Return 2·m·n·k of a matrix product, from its factors; ``None`` for all else.

    Args:
        operator: Which.
        shapes: Of its inputs; where it writes into a tensor it is given, that comes last.
    """
    first = FACTORS_FROM.get(operator.removeprefix("aten::"))
    if first is None:
        return None
    sizes = [[int(n) for n in size.split("x")] for size in _TENSOR.findall(shapes)]
    factors = sizes[first : first + 2]
    if len(factors) < 2 or any(len(factor) < 2 for factor in factors):  # noqa: PLR2004 - matrices
        return None
    *batch, m, k = factors[0]
    return 2.0 * math.prod(batch) * m * k * factors[1][-1]
