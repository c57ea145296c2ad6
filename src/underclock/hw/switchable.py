"""Giving back one clock and not the other, which measuring switches to auto needs.

`NvmlGpu.unlock` gives back both, one after the other: when one of them was let go cannot be told.
"""

from typing import Protocol

import pynvml

from underclock.hw.base import Gpu
from underclock.hw.nvml import NvmlGpu
from underclock.records.latencies import Domain

_RESETS = {
    Domain.CORE: pynvml.nvmlDeviceResetGpuLockedClocks,
    Domain.MEMORY: pynvml.nvmlDeviceResetMemoryLockedClocks,
}


class SwitchableGpu(Gpu, Protocol):
    """A GPU whose clocks can be given back one by one."""

    def give_back(self, domain: Domain) -> None:
        """Give one domain's clock back to the driver; harmless when it is not locked.

        Raises:
            NotSupportedError: This domain cannot be locked.
            NotPermittedError: This process may not lock clocks.
        """
        ...


class SwitchableNvmlGpu(NvmlGpu):
    """One NVIDIA GPU, inside an `nvml_session`."""

    def give_back(self, domain: Domain) -> None:
        """Give one domain's clock back to the driver; harmless when it is not locked."""
        self._set(f"unlock the {domain}", _RESETS[domain])
