from collections.abc import Callable
from pathlib import Path

import pytest

from underclock.hw.nvml_calls import nvml_session
from underclock.hw.settable import enforced_profiles
from underclock.hw.simulated.rig import simulated_rig
from underclock.runtime.undo.armed import notes_on_others, refuse_beside_others
from underclock.runtime.undo.ownership import OwnedError


def test_a_gpu_with_a_power_profile_in_force_is_refused_by_its_number(tmp_path: Path) -> None:
    with pytest.raises(OwnedError, match="GPU-1 has workload power profile 3, 40 in force"):
        refuse_beside_others(["GPU-0", "GPU-1"], profiles=_only_on("GPU-1"), run=tmp_path)


def _only_on(uuid: str) -> Callable[[str], tuple[int, ...]]:
    return lambda of: (3, 40) if of == uuid else ()


@pytest.mark.parametrize("folder", ["geopm", "geopm-service"])
def test_a_geopm_session_that_may_write_is_named(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "CONTROL_LOCK").write_text("4711")

    with pytest.raises(OwnedError, match="process 4711 has a GEOPM session"):
        refuse_beside_others(["GPU-0"], profiles=lambda _: (), run=tmp_path)


def test_geopm_without_a_session_that_writes_is_nobody(tmp_path: Path) -> None:
    (tmp_path / "geopm").mkdir()
    (tmp_path / "geopm" / "CONTROL_LOCK").write_text("")

    refuse_beside_others(["GPU-0"], profiles=lambda _: (), run=tmp_path)


def test_dcgms_host_engine_is_noted_and_not_refused(tmp_path: Path) -> None:
    for pid, name in ((1, "systemd"), (77, "nv-hostengine")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"{name}\n")
    (tmp_path / "78").mkdir()
    (tmp_path / "78" / "comm").mkdir()  # unreadable, as of one that has just ended

    (note,) = notes_on_others(tmp_path)

    assert "process 77" in note


def test_a_driver_without_power_profiles_has_none_in_force() -> None:
    with simulated_rig("rtx3080ti") as rig, nvml_session():
        assert enforced_profiles(rig.gpu.uuid()) == ()
        assert enforced_profiles("GPU-unknown") == ()
