"""How busy the parts of a GPU are: NVML's GPM counters, which Hopper and newer have.

They need no permission on the machines seen so far; where they are forbidden or absent, measuring
goes on without them.
"""

from collections.abc import Callable
from typing import Any

import pynvml

from underclock.records import Utilisation

_PERCENT = 100.0
_METRICS = {
    "sm": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "tensor": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "fp32": pynvml.NVML_GPM_METRIC_FP32_UTIL,
    "dram": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
}


def supported(handle: Any) -> bool:
    """Whether a GPU has the counters.

    Raises:
        NVMLError: The driver does not even know the question.
    """
    return bool(pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)


def begin(handle: Any) -> Callable[[], Utilisation]:
    """Start a window; return a function that ends it and says how busy the GPU was.

    Raises:
        NVMLError: The driver takes no such sample; the returned function raises it as well.
    """
    first = pynvml.nvmlGpmSampleAlloc()
    try:
        pynvml.nvmlGpmSampleGet(handle, first)
    except pynvml.NVMLError:
        pynvml.nvmlGpmSampleFree(first)
        raise

    def end() -> Utilisation:
        second = pynvml.nvmlGpmSampleAlloc()
        try:
            pynvml.nvmlGpmSampleGet(handle, second)
            return _between(first, second)
        finally:
            pynvml.nvmlGpmSampleFree(second)
            pynvml.nvmlGpmSampleFree(first)

    return end


def _between(first: Any, second: Any) -> Utilisation:
    question = pynvml.c_nvmlGpmMetricsGet_t()
    question.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    question.sample1, question.sample2 = first, second
    question.numMetrics = len(_METRICS)
    for place, metric in enumerate(_METRICS.values()):
        question.metrics[place].metricId = metric
    pynvml.nvmlGpmMetricsGet(question)
    values = {}
    for place, name in enumerate(_METRICS):
        answer = question.metrics[place]
        if answer.nvmlReturn != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(answer.nvmlReturn)
        values[name] = float(answer.value) / _PERCENT
    return Utilisation(**values)
