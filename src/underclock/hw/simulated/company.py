"""What a kernel runs with on a virtual GPU: a hot companion, and idling."""

import numpy as np

from underclock.errors import UsageError
from underclock.gpus.models import GpuModel
from underclock.physics.constants import KernelConstants
from underclock.physics.costs import busy_w
from underclock.records import Kind

_SIDE = 8192  # of the matrices of the product; bf16
_BYTES = 2
_LATE_S = 9e-7  # what a count of cycles takes besides, on an idle H200
_WARM_C = 60.0  # at which the GPU's own products are compared; all of them alike


def companion(model: GpuModel) -> KernelConstants:
    """Return the hot companion: a large matrix product, or the hottest that the model has.

    Raises:
        UsageError: It can run neither.
    """
    if model.throughput is not None:
        return model.throughput.kernel(
            flops=2.0 * _SIDE**3, bytes_moved=3.0 * _BYTES * _SIDE**2, tensor=True
        )
    products = [own.constants for own in model.own if own.kernel.kind is Kind.GEMM]
    own = products or [own.constants for own in model.own]
    if not own:
        raise UsageError(
            f"no hot companion can be simulated on {model.name}: what a product costs is unknown",
            hint="simulate a GPU that comes with underclock",
        )
    core_mhz, mem_mhz = np.float64(model.core_mhz[-1]), np.float64(model.mem_mhz[-1])
    return max(own, key=lambda one: float(busy_w(model.constants, one, core_mhz, mem_mhz, _WARM_C)))


def idling(model: GpuModel, idle_s: float) -> KernelConstants:
    """Return what counts core cycles and draws nothing but what a busy GPU's clocks draw.

    Args:
        model: The GPU.
        idle_s: How long it takes at its highest clock.
    """
    return KernelConstants(core_mcycles=idle_s * model.core_mhz[-1], fixed_s=_LATE_S)
