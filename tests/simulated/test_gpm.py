"""The simulated GPUs' GPM counters, read as a program reads real ones."""

import dataclasses

import pynvml
import pytest

from underclock.core.prediction.time_shares import BUSIEST_DRAM
from underclock.gpus.models import gpu_model, model_names
from underclock.hw.measurer import GpuMeasurer
from underclock.hw.nvml_calls import nvml_session
from underclock.hw.simulated import boards
from underclock.hw.simulated.rig import Rig, simulated_driver, simulated_rig
from underclock.records import Clocks, Evidence, Kernel, MeasurementSettings, Utilisation

_BRIEF = MeasurementSettings(warm_s=1.0, kernel_warm_s=0.5, window_s=1.0)


def _window(rig: Rig, kernel: Kernel, clocks: Clocks | None = None) -> Utilisation:
    with rig.launcher.loop([kernel]):
        rig.gpu.lock(clocks or Clocks())
        rig.clock.sleep_s(1.0)
        end = rig.gpu.utilisation()
        rig.clock.sleep_s(1.0)
        found = end()
        rig.gpu.unlock()
    assert found is not None
    return found


@pytest.mark.parametrize("name", model_names())
def test_only_hopper_counts(name: str, gemm: Kernel) -> None:
    with simulated_rig(name) as rig, rig.launcher.loop([gemm]):
        end = rig.gpu.utilisation()
        rig.clock.sleep_s(1.0)

        assert (end() is not None) is (name == "h200")


def test_any_model_counts_when_told_to(gemm: Kernel) -> None:
    model = dataclasses.replace(gpu_model("rtx3080ti"), counters=True)
    with simulated_rig(model) as rig:
        assert _window(rig, gemm).tensor > 0.5
    deaf = dataclasses.replace(gpu_model("h200"), counters=False)
    with simulated_rig(deaf) as rig:
        assert rig.gpu.utilisation()() is None


def test_a_product_keeps_the_tensor_pipes_busy_and_a_copy_the_memory(
    gemm: Kernel, elementwise: Kernel
) -> None:
    with simulated_rig("h200") as rig:
        product, copy = _window(rig, gemm), _window(rig, elementwise)

    assert product.tensor > 0.7 > product.dram
    assert product.fp32 == copy.tensor == 0.0
    assert copy.dram > 0.7
    assert product.sm == pytest.approx(1.0, abs=0.05)


def test_memory_is_less_busy_where_the_core_is_slower(elementwise: Kernel) -> None:
    with simulated_rig("h200") as rig:
        fast = _window(rig, elementwise)
        slow = _window(rig, elementwise, Clocks(core_mhz=600))

    assert slow.dram < 0.8 * fast.dram


def test_nothing_is_busy_at_rest() -> None:
    with simulated_rig("h200") as rig:
        end = rig.gpu.utilisation()
        rig.clock.sleep_s(1.0)

        assert end() == Utilisation(sm=0.0, tensor=0.0, fp32=0.0, dram=0.0)


def test_the_same_seed_counts_alike_and_another_does_not(elementwise: Kernel) -> None:
    found = []
    for seed in (0, 0, 1):
        with simulated_rig("h200", seed=seed) as rig:
            found.append(_window(rig, elementwise))

    assert found[0] == found[1]
    assert found[0].dram != found[2].dram
    assert found[0].dram == pytest.approx(found[2].dram, rel=0.05)


def test_counting_changes_no_measurement(gemm: Kernel) -> None:
    readings = []
    for counts in (True, False):
        model = dataclasses.replace(gpu_model("h200"), counters=counts)
        with simulated_rig(model) as rig:
            measurer = GpuMeasurer(
                rig.gpu, rig.launcher, rig.clock, evidence=Evidence.SIMULATED, measuring=_BRIEF
            )
            readings.append(measurer.measure([gemm]))

    assert readings[0].utilisation is not None
    assert dataclasses.replace(readings[0], utilisation=None) == readings[1]


def test_a_window_without_length_says_nothing(gemm: Kernel) -> None:
    with simulated_rig("h200") as rig, rig.launcher.loop([gemm]):
        assert rig.gpu.utilisation()() is None


def test_a_sample_is_nobodys_before_it_is_allocated_and_after_it_is_freed() -> None:
    with simulated_rig("h200"):
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        sample = pynvml.nvmlGpmSampleAlloc()
        pynvml.nvmlGpmSampleFree(sample)

        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlGpmSampleFree(sample)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlGpmSampleGet(handle, sample)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlGpmMetricsGet(_question(sample, sample))


def test_samples_of_two_gpus_are_not_compared() -> None:
    with simulated_driver("h200", count=2) as machine, nvml_session():
        samples = []
        for index in range(2):
            machine.clock.sleep_s(0.5)
            samples.append(pynvml.nvmlGpmSampleAlloc())
            pynvml.nvmlGpmSampleGet(pynvml.nvmlDeviceGetHandleByIndex(index), samples[-1])

        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlGpmMetricsGet(_question(*samples))


def test_an_unknown_metric_spoils_no_other() -> None:
    with simulated_rig("h200") as rig:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]
        for sample in samples:
            pynvml.nvmlGpmSampleGet(handle, sample)
            rig.clock.sleep_s(0.5)
        question = _question(*samples)
        question.numMetrics = 2
        question.metrics[0].metricId = pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC
        question.metrics[1].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL

        pynvml.nvmlGpmMetricsGet(question)

    assert question.metrics[0].nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert question.metrics[1].nvmlReturn == pynvml.NVML_SUCCESS


def test_another_version_of_the_question_is_refused() -> None:
    with simulated_rig("h200"):
        sample = pynvml.nvmlGpmSampleAlloc()
        question = _question(sample, sample)
        question.version = 99
        support = pynvml.c_nvmlGpmSupport_t()

        with pytest.raises(pynvml.NVMLError) as refused:
            pynvml.nvmlGpmMetricsGet(question)
        assert refused.value.value == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
        ask = pynvml.nvmlLib.nvmlGpmQueryDeviceSupport
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert ask(handle, pynvml.byref(support)) == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_the_simulated_busiest_memory_is_the_one_that_is_read_back() -> None:
    assert boards.BUSIEST_DRAM == BUSIEST_DRAM


def _question(first: object, second: object) -> pynvml.c_nvmlGpmMetricsGet_t:
    question = pynvml.c_nvmlGpmMetricsGet_t()
    question.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    question.sample1, question.sample2 = first, second
    return question
