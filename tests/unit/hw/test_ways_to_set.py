"""Which way to set a GPU is taken where the driver refuses this process."""

from pathlib import Path

import pytest

from fake_zeusd import serving_zeusd
from underclock.errors import NotPermittedError
from underclock.hw.leased import HELPER
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.hw.settable import Setting
from underclock.hw.ways_to_set import WayName, settable_gpu, ways
from underclock.hw.zeusd import SOCKET, ZeusdGpu
from underclock.testing import simulated_driver


def test_zeusd_is_taken_where_nothing_else_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HELPER, str(tmp_path / "nobody"))
    monkeypatch.setenv(SOCKET, str(tmp_path / "z"))
    with (
        simulated_driver("a40", root=False) as machine,
        nvml_session(),
        serving_zeusd(tmp_path / "z", machine),
    ):
        with pytest.raises(NotPermittedError, match="these are simulated"):
            settable_gpu(NvmlGpu().uuid())
        machine.driver.simulated = False  # as if it were a real one
        assert [way.name for way in ways() if way.works] == [WayName.ZEUSD]
        gpu = settable_gpu(NvmlGpu().uuid())
        assert isinstance(gpu, ZeusdGpu)
        gpu.write(Setting.CORE, 1200.0)
        assert machine.gpus[0].core_lock == (1200, 1200)
        gpu.close()


def test_a_zeusd_that_does_not_answer_is_no_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HELPER, str(tmp_path / "nobody"))
    monkeypatch.setenv(SOCKET, str(tmp_path / "nobody-either"))
    with simulated_driver("a40", root=False) as machine, nvml_session():
        machine.driver.simulated = False
        found = {way.name: way for way in ways()}
    assert not any(way.works for way in found.values())
    assert "does not answer" in found[WayName.ZEUSD].why
    assert "underclock serve" in found[WayName.SERVICE].why
