"""fit: from files to constants."""

from pathlib import Path

import msgspec
import pytest

import underclock
from underclock.errors import DataError
from underclock.records import Clocks, Evidence, GpuInfo, Kernel, SampleSet, Window
from underclock.records.fitted import GpuFit
from underclock.store import SampleFile, write_document
from windows import having

pytestmark = pytest.mark.slow

_CORES = (900, 1200, 1500, 1800)


def _profile(*, names: str = "abcde", driver: str = "1") -> SampleSet:
    return SampleSet(
        evidence=Evidence.MEASURED,
        gpu=GpuInfo(name="G", driver=driver, power_limit_w=300.0),
        workload="w",
        kernels=tuple(Kernel(name=name) for name in names),
        windows=tuple(
            Window(
                kernel=name,
                asked=Clocks(core_mhz=core, mem_mhz=mem),
                time_s=(ord(name) - 90) / core + 20.0 / mem,
                energy_j=((ord(name) - 90) / core + 20.0 / mem)
                * (50.0 + core / 10.0 + mem / 200.0),
            )
            for name in names
            for core in _CORES
            for mem in (5001, 9251)
        ),
    )


def _write(sample_set: SampleSet, path: Path) -> Path:
    header = having(sample_set, samples=())
    with SampleFile.create(path, header) as file:
        for sample in sample_set.samples:
            file.append(sample)
    return path


def test_records_and_files_alike_can_be_fitted(tmp_path: Path) -> None:
    path = _write(_profile(), tmp_path / "samples.db")
    found = underclock.fit(path)

    assert isinstance(found, GpuFit)
    assert found.evidence is Evidence.MEASURED
    assert found.rows == 40
    assert underclock.fit(str(path)) == underclock.fit([_profile()]) == found


def test_several_files_of_one_gpu_are_one_fit(tmp_path: Path) -> None:
    one = _write(_profile(names="abc"), tmp_path / "one.db")
    two = _write(_profile(names="de"), tmp_path / "two.db")

    assert [kernel.name for kernel in underclock.fit([one, two]).kernels] == list("abcde")


def test_kernels_are_stated_at_the_baseline_given() -> None:
    at = Clocks(core_mhz=1200, mem_mhz=5001)

    assert {kernel.clocks for kernel in underclock.fit(_profile(), baseline=at).kernels} == {at}


def test_two_drivers_are_not_one_gpu() -> None:
    with pytest.raises(DataError, match=r"driver 1, 300 W\) and G \(driver 2"):
        underclock.fit([_profile(), _profile(driver="2")])


def test_a_fit_is_a_document(tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    found = underclock.fit(_profile())
    write_document(path, found)

    assert msgspec.json.decode(path.read_bytes(), type=GpuFit) == found
