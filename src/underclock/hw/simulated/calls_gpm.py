"""NVML's GPM calls: how busy the parts of a GPU were between two samples of its counters.

A sample belongs to the driver, not to a GPU, until counters are read into it. GPUs before Hopper
answer that they have none.
"""

from collections.abc import Callable

import pynvml

from underclock.hw.simulated.cinterface import (
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    OK,
    CArgument,
    DeviceCall,
    Host,
    behind,
    index_of,
    put_handle,
)
from underclock.hw.simulated.counters import Busy
from underclock.hw.simulated.device import VirtualGpu

_PERCENT = 100.0
_METRICS: dict[int, Callable[[Busy], float]] = {
    pynvml.NVML_GPM_METRIC_SM_UTIL: lambda busy: busy.sm_s,
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: lambda busy: busy.tensor_s,
    pynvml.NVML_GPM_METRIC_FP32_UTIL: lambda busy: busy.fp32_s,
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: lambda busy: busy.dram_s,
}


class Samples:
    """The samples that programs hold, by their handles."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[VirtualGpu, Busy] | None] = {}
        self._next = 0

    def allocate(self, out: CArgument) -> int:
        """Hand out an empty sample."""
        self._held[self._next] = None
        put_handle(out, self._next)
        self._next += 1
        return OK

    def free(self, sample: CArgument) -> int:
        """Take a sample back."""
        index = index_of(sample)
        if index not in self._held:
            return INVALID_ARGUMENT
        del self._held[index]
        return OK

    def fill(self, gpu: VirtualGpu, sample: CArgument) -> int:
        """Read a GPU's counters into a sample."""
        if gpu.counters is None:
            return NOT_SUPPORTED
        index = index_of(sample)
        if index is None or index not in self._held:
            return INVALID_ARGUMENT
        self._held[index] = (gpu, gpu.counters.now())
        return OK

    def metrics(self, question: CArgument) -> int:
        """Compare two samples of one GPU; answer each metric by itself."""
        asked = behind(question)
        if asked.version != pynvml.NVML_GPM_METRICS_GET_VERSION:
            return int(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        first, second = (self._read(sample) for sample in (asked.sample1, asked.sample2))
        if first is None or second is None or first[0] is not second[0]:
            return INVALID_ARGUMENT
        (gpu, before), (_, after) = first, second
        elapsed_s = after.elapsed_s - before.elapsed_s
        if gpu.counters is None or elapsed_s <= 0:
            return INVALID_ARGUMENT
        for place in range(asked.numMetrics):
            answer = asked.metrics[place]
            read = _METRICS.get(answer.metricId)
            answer.nvmlReturn = NOT_SUPPORTED if read is None else OK
            if read is not None:
                part_s = read(after) - read(before)
                answer.value = _PERCENT * gpu.counters.share(part_s, elapsed_s)
        return OK

    def _read(self, sample: CArgument) -> tuple[VirtualGpu, Busy] | None:
        index = index_of(sample)
        return None if index is None else self._held.get(index)


def _support(_host: Host, gpu: VirtualGpu, out: CArgument) -> int:
    support = behind(out)
    if support.version != pynvml.NVML_GPM_SUPPORT_VERSION:
        return int(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    support.isSupportedDevice = int(gpu.counters is not None)
    return OK


def _fill(host: Host, gpu: VirtualGpu, sample: CArgument) -> int:
    return host.samples.fill(gpu, sample)


TABLE: dict[str, DeviceCall] = {
    "nvmlGpmQueryDeviceSupport": _support,
    "nvmlGpmSampleGet": _fill,
}
