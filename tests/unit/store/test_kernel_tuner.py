"""Kernel Tuner's caches and T4 results: what is written comes back, and what is neither is said."""

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from made_up_samples import made_sample, made_set
from underclock.errors import DataError
from underclock.records import Clocks, Evidence, Kernel, Pass, SampleSet
from underclock.store import load, read_samples
from underclock.store.kernel_tuner import cache_text, t4_text
from underclock.store.long_tables import samples_csv

AT = dt.datetime(2026, 11, 24, 4, 5, 6, tzinfo=dt.UTC)
FORMS: dict[str, Callable[[SampleSet], str]] = {
    "t4": t4_text,
    "cache": lambda samples: cache_text(samples, AT),
    "csv": samples_csv,
}
ENTRY = {"time": 2.0, "times": [1.5, 2.5], "nvml_energy": 0.25, "core_freq": 1391.5}


def two_kernels() -> SampleSet:
    """Return samples of two kernels at three clock pairs, twice at auto."""
    read = Clocks(core_mhz=1800, mem_mhz=9251)
    windows = [
        made_sample("a, b", None, None, time_s=0.1, observed=read, temperature_c=60.0),
        made_sample("a, b", None, None, time_s=0.12, repeat=1, observed=read, temperature_c=70.0),
        made_sample("a, b", 900, 5001, time_s=0.4, energy_j=70.0),
        made_sample("c", 1200, None, energy_j=55.5),
    ]
    kernels = (Kernel(name="a, b", count=24, pass_=Pass.BACKWARD, waited_for=0.5), Kernel(name="c"))
    return made_set(windows, kernels=kernels)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_comes_back(form: str, tmp_path: Path) -> None:
    written = two_kernels()
    (tmp_path / "w.json").write_text(FORMS[form](written))

    back = load(tmp_path / "w.json")

    assert isinstance(back, SampleSet)
    assert (back.gpu.name, back.workload, back.kernels) == ("G", "w", written.kernels)
    assert (back.evidence, back.warnings) == (Evidence.REPLAYED, ())
    for one, other in zip(back.samples, written.samples, strict=True):
        assert (one.what, one.repeat) == (other.what, other.repeat)
        assert (one.time_s, one.energy_j) == pytest.approx((other.time_s, other.energy_j))
        assert one.observed == other.observed


def test_t4_has_what_its_schema_asks_for() -> None:
    body = json.loads(t4_text(two_kernels()))
    first = body["results"][0]

    assert body["schema_version"] == "1.0.0"
    assert all(
        {"configuration", "times", "invalidity", "correctness"} <= each.keys()
        for each in body["results"]
    )
    assert first["configuration"] == {
        "kernel": "a, b",
        "nvml_gr_clock": None,
        "nvml_mem_clock": None,
    }
    assert first["times"]["runtimes"] == [100.0, 120.0]
    assert {"name": "time", "value": 110.0, "unit": "ms"} in first["measurements"]
    assert {"name": "evidence", "value": "measured", "unit": ""} in first["measurements"]


def test_a_cache_has_what_its_schema_asks_for() -> None:
    body = json.loads(cache_text(two_kernels(), AT))
    needed = ("time", "compile_time", "verification_time", "benchmark_time", "strategy_time")

    assert body["schema_version"] == "1.1.0"
    assert body["tune_params_keys"] == ["kernel", "nvml_gr_clock", "nvml_mem_clock"]
    assert body["tune_params"]["nvml_gr_clock"] == [900, 1200, None]
    assert list(body["cache"]) == ["a, b,None,None", "a, b,900,5001", "c,1200,None"]
    for entry in body["cache"].values():
        assert all(isinstance(entry[name], int | float) for name in (*needed, "framework_time"))
        assert entry["timestamp"] == "2026-11-24 04:05:06+00:00"


def cache(**more: Any) -> dict[str, Any]:
    """Return a cache as Kernel Tuner writes it, of two clocks and one that failed."""
    return {
        "device_name": "A100",
        "kernel_name": "conv",
        "tune_params_keys": ["block", "nvml_gr_clock"],
        "tune_params": {"block": [16], "nvml_gr_clock": [900, 1410]},
        "cache": {
            "16,900": {"block": 16, "nvml_gr_clock": 900, **ENTRY},
            "16,1410": {"block": 16, "nvml_gr_clock": 1410, "time": 1.0, "nvml_power": 300.0},
            "16,1500": {"block": 16, "nvml_gr_clock": 1500, "time": "RuntimeFailedConfig"},
        },
        **more,
    }


def saved(tmp_path: Path, body: object) -> Path:
    path = tmp_path / "tuned.json"
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    return path


def test_a_cache_of_the_tuner_s_own_is_read_and_says_what_failed(tmp_path: Path) -> None:
    read = read_samples(saved(tmp_path, cache()))

    slow, fast = read.samples
    assert (read.gpu.name, read.kernels[0].name) == ("A100", "conv")
    assert (slow.asked.core_mhz, slow.time_s, slow.energy_j) == (900, 0.002, 0.25)
    assert slow.observed == Clocks(core_mhz=1392)
    assert fast.energy_j == pytest.approx(0.3)
    assert any("1 configurations that failed were left out" in each for each in read.warnings)


def test_a_cache_of_a_tuner_that_still_runs_is_read(tmp_path: Path) -> None:
    text = json.dumps(cache()).removesuffix("}}") + ",\n"

    assert len(read_samples(saved(tmp_path, text)).samples) == 2


def result(**more: Any) -> dict[str, Any]:
    """Return T4 results of one configuration."""
    return {
        "configuration": {"nvml_gr_clock": 900},
        "times": {"runtimes": [1.0, 3.0]},
        "invalidity": "correct",
        "correctness": 1,
        "measurements": ENERGY,
        **more,
    }


def test_results_without_a_mean_time_are_read_by_their_runs(tmp_path: Path) -> None:
    body = {"schema_version": "1.0.0", "results": [result(), result(invalidity="compile")]}

    read = read_samples(saved(tmp_path, body))

    assert (read.gpu.name, read.workload) == ("the GPU of tuned.json", "tuned")
    assert read.samples[0].time_s == 0.002


def test_rows_that_were_simulated_stay_so(tmp_path: Path) -> None:
    text = samples_csv(two_kernels()).replace(",measured,", ",simulated,")

    assert "rows of the table are simulated" in read_samples(saved(tmp_path, text)).warnings[0]


ENERGY = [{"name": "nvml_energy", "value": 0.2, "unit": "J"}]
IN_SECONDS = [{"name": "time", "value": 1, "unit": "s"}]
T4 = {"schema_version": "1.0.0"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"schema_version": "2.0.0", "results": []}, "T4 results of schema '2.0.0', and 1.0.0 is"),
        ({"results": [result()]}, "of schema None, and 1.0.0 is read"),
        (cache(schema_version="9.0.0"), "Tuner cache of schema '9.0.0', and 1.0.0, 1.0.1, 1.1.0"),
        (T4 | {"results": []}, "no configuration that ran"),
        (T4 | {"results": [{"configuration": {}}]}, "not as its schema says.*times"),
        (T4 | {"results": [result(invalidity="odd")]}, "not as its schema says.*odd"),
        (T4 | {"results": [result(measurements=IN_SECONDS)]}, "result 0: time is in 's'"),
        (T4 | {"results": [result(measurements=[])]}, "result 0 has no energy"),
        (T4 | {"results": [result(times={})]}, "result 0 has no time"),
        (
            T4 | {"results": [result(configuration={"block": 4})]},
            "tuned without clocks: it has block",
        ),
        (
            T4
            | {
                "results": [
                    result(configuration={"block": block, "nvml_gr_clock": 9}) for block in (1, 2)
                ]
            },
            r"several configurations of code: block \(2\)",
        ),
        (
            T4
            | {
                "results": [
                    result(measurements=[*ENERGY, {"name": "device_name", "value": name}])
                    for name in "AB"
                ]
            },
            "mixes GPUs: A, B",
        ),
        (cache(kernel_name=3), "not as its schema says.*kernel_name"),
        ([1], "is JSON, not samples"),
        ("{", "is JSON, not samples"),
    ],
)
def test_what_is_no_such_file_is_refused(body: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        read_samples(saved(tmp_path, body))


@pytest.mark.parametrize("write", FORMS.values())
def test_samples_without_a_kernel_by_itself_are_no_rows(
    write: Callable[[SampleSet], str],
) -> None:
    with pytest.raises(DataError, match="no kernel of w ran by itself"):
        write(made_set([]))
