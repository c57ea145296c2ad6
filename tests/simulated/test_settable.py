from collections.abc import Iterator

import pytest

from underclock.errors import DeviceError, NotPermittedError
from underclock.hw.nvml_calls import READ_ONLY
from underclock.hw.settable import SettableNvmlGpu, Setting, Value
from underclock.hw.simulated.rig import Rig, simulated_rig


@pytest.fixture
def gpu(rig: Rig) -> SettableNvmlGpu:
    return SettableNvmlGpu(rig.gpu.uuid())


@pytest.mark.parametrize(
    ("setting", "value", "found"),
    [
        (Setting.CORE, 1200, (1200, 1200)),
        (Setting.CORE, (900, 1500), (900, 1500)),
        (Setting.MEMORY, 5001.0, (5001, 5001)),
        (Setting.LIMIT, 300.5, 300.5),
        (Setting.PERSISTENCE, 1.0, 1.0),
    ],
)
def test_what_is_set_is_read_and_put_back(
    setting: Setting, value: Value, found: Value, gpu: SettableNvmlGpu
) -> None:
    before = gpu.read(setting)

    gpu.write(setting, value)
    assert gpu.read(setting) == found
    gpu.write(setting, before)

    assert gpu.read(setting) == before


@pytest.mark.parametrize(
    ("setting", "value"),
    [(Setting.LIMIT, None), (Setting.PERSISTENCE, None), (Setting.LIMIT, (100, 200))],
)
def test_what_is_no_value_is_refused(setting: Setting, value: Value, gpu: SettableNvmlGpu) -> None:
    with pytest.raises(ValueError, match=r"is no (limit|persistence)"):
        gpu.write(setting, value)


@pytest.fixture
def closed() -> Iterator[SettableNvmlGpu]:
    with simulated_rig("rtx3080ti", read_only=True) as rig:
        yield SettableNvmlGpu(rig.gpu.uuid())


def test_the_gate_closes_it_too(closed: SettableNvmlGpu) -> None:
    with pytest.raises(NotPermittedError, match=f"{READ_ONLY} is set") as refused:
        closed.write(Setting.CORE, 1200)

    assert any("on GPU GPU-" in note for note in refused.value.__notes__)


def test_a_gpu_that_is_not_there_is_an_error(rig: Rig) -> None:
    del rig
    with pytest.raises(DeviceError, match="could not open GPU GPU-none"):
        SettableNvmlGpu("GPU-none")
