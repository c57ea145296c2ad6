"""Kernel Tuner's files, read and written: T4 results, and caches, of kernels at several clocks.

T4 is the results format that autotuners share (schema 1.0.0); it names neither GPU nor kernel, and
a cache one of each. Times are in ms, energies in J, clocks in MHz, under the names that Kernel
Tuner's NVML observer has. What else is known of a kernel (its name, count, pass) goes along as
parameter or measurement, so that a file of ours comes back as it was.
"""

import csv
import datetime as dt
import io
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from underclock.errors import DataError
from underclock.records import Kernel, SampleSet, Window
from underclock.store.long_tables import runs_alone
from underclock.store.tables import read_table

T4_SCHEMA: Final = "1.0.0"
CACHE_SCHEMA: Final = "1.1.0"
_CACHES_READ = (None, "1.0.0", "1.0.1", CACHE_SCHEMA)  # the oldest say nothing
_CLOCKS = {"nvml_gr_clock": "core_mhz", "nvml_mem_clock": "mem_mhz"}
_UNITS = {
    "time": "ms",
    "times": "ms",
    "core_freq": "MHz",
    "mem_freq": "MHz",
    "temperature": "C",
} | dict.fromkeys(("nvml_energy", "nvml_energies"), "J")
_READINGS = {
    "core_freq": "observed_core_mhz",
    "mem_freq": "observed_mem_mhz",
    "temperature": "temperature_c",
}
_OF_KERNEL = ("count", "pass", "waited_for", "evidence")


class _Measurement(msgspec.Struct):
    name: str
    value: float | str | list[Any] | None
    unit: str = ""


class _Result(msgspec.Struct):
    configuration: dict[str, Any]
    times: dict[str, Any]
    invalidity: Literal["timeout", "compile", "runtime", "correctness", "constraints", "correct"]
    correctness: float
    measurements: list[_Measurement] = []


class _Results(msgspec.Struct):
    results: list[_Result]


class _Cache(msgspec.Struct):
    device_name: str
    kernel_name: str
    tune_params_keys: list[str]
    cache: dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Entry:
    """One configuration: what was set, and what was measured, by the tuner's names."""

    where: str
    parameters: Mapping[str, Any]
    values: Mapping[str, Any]


def read_tuned(path: Path) -> SampleSet | None:
    """Read kernels at several clocks; ``None`` where a JSON file is none of Kernel Tuner's.

    Configurations that failed are left out, and that is said. One configuration of code is read:
    entries may differ in clocks, and in which kernel it is.

    Raises:
        DataError: It is of another schema, damaged, without clocks or energy, or of several
            configurations of code.
    """
    document = _document(path)
    try:
        if isinstance(document.get("cache"), dict):
            _check_version(path, "a Kernel Tuner cache", document, _CACHES_READ)
            gpu, kernel, entries, failed = _cached(path, msgspec.convert(document, _Cache))
        elif isinstance(document.get("results"), list):
            _check_version(path, "a file of T4 results", document, (T4_SCHEMA,))
            gpu, kernel, entries, failed = _results(path, msgspec.convert(document, _Results))
        else:
            return None
    except msgspec.ValidationError as exc:
        raise DataError(
            f"{path} is not as its schema says: {exc}", hint="export it anew from the tuner"
        ) from exc
    _check_same_code(path, entries)
    rows = [row for entry in entries for row in _rows(entry, gpu, kernel)]
    text = io.StringIO()
    table = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
    table.writeheader()
    table.writerows(rows)
    text.seek(0)
    # Errors name lines: say that they are of the entries in turn.
    read = read_table(path.with_name(f"{path.name} as a table"), text)
    said = f"{failed} configurations that failed were left out"
    return msgspec.structs.replace(
        read, workload=path.stem, warnings=(*read.warnings, *([said] if failed else ()))
    )


def _document(path: Path) -> dict[str, Any]:
    try:
        body = path.read_bytes().rstrip()
    except OSError as exc:
        raise DataError(f"cannot read {path}: {exc.strerror}") from exc
    # While a tuner runs, its cache lacks the two last brackets.
    for whole in (body, body.rstrip(b",") + b"}}"):
        try:
            found = msgspec.json.decode(whole)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        return found if isinstance(found, dict) else {}
    return {}


def _check_version(
    path: Path, what: str, document: Mapping[str, Any], read: tuple[str | None, ...]
) -> None:
    found = document.get("schema_version")
    if found not in read:
        raise DataError(
            f"{path} is {what} of schema {found!r}, and {', '.join(filter(None, read))} is read",
            hint="convert it with the tuner that wrote it, or give a CSV table of its rows",
        )


def _cached(path: Path, file: _Cache) -> tuple[str, str, list[_Entry], int]:
    entries, failed = [], 0
    for key, values in file.cache.items():
        if isinstance(values.get("time"), str):  # why it failed
            failed += 1
            continue
        parameters = {name: values.get(name) for name in file.tune_params_keys}
        entries.append(_Entry(f"{path}, entry {key!r}", parameters, values))
    return file.device_name, file.kernel_name, entries, failed


def _results(path: Path, file: _Results) -> tuple[str, str, list[_Entry], int]:
    entries = []
    for number, result in enumerate(file.results):
        if result.invalidity != "correct":
            continue
        where = f"{path}, result {number}"
        values: dict[str, Any] = {"times": result.times.get("runtimes")}
        for each in result.measurements:
            values[each.name] = each.value
            if each.name in {"time", "times"} and each.unit not in {"", "ms"}:
                raise DataError(f"{where}: {each.name} is in {each.unit!r}", hint="T4 has ms")
        entries.append(_Entry(where, result.configuration, values))
    return f"the GPU of {path.name}", path.stem, entries, len(file.results) - len(entries)


def _check_same_code(path: Path, entries: list[_Entry]) -> None:
    """Refuse entries of several configurations of code, and those without clocks."""
    if not entries:
        raise DataError(f"{path} has no configuration that ran")
    seen: dict[str, set[str]] = {}
    for entry in entries:
        for name, value in entry.parameters.items():
            seen.setdefault(name, set()).add(str(value))
    if not seen.keys() & _CLOCKS.keys():
        raise DataError(
            f"{path} was tuned without clocks: it has {', '.join(seen) or 'no parameters'}",
            hint="tune nvml_gr_clock or nvml_mem_clock too (kernel_tuner.observers.nvml)",
        )
    several = [
        f"{name} ({len(values)})"
        for name, values in seen.items()
        if len(values) > 1 and name not in {*_CLOCKS, "kernel"}
    ]
    if several:
        raise DataError(
            f"{path} is of several configurations of code: {', '.join(several)}",
            hint="keep the entries of one, such as the fastest: clocks are chosen for code that "
            "stays as it is",
        )


def _rows(entry: _Entry, gpu: str, kernel: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table that an entry is: one for each repeat where energies are known."""
    values = entry.values
    row = {
        "gpu": values.get("device_name", gpu),
        "kernel": entry.parameters.get("kernel", kernel),
        **{name: values[name] for name in _OF_KERNEL if name in values},
        **{ours: entry.parameters.get(theirs) or "" for theirs, ours in _CLOCKS.items()},
    }
    for theirs, ours in _READINGS.items():
        read = values.get(theirs, values.get(f"pwr_{theirs}"))
        row[ours] = read if isinstance(read, float | int) and math.isfinite(read) and read else ""
    times_s, energies_j = _seconds(values.get("times")), values.get("nvml_energies")
    if times_s and isinstance(energies_j, list) and len(times_s) == len(energies_j):
        for time_s, energy_j in zip(times_s, energies_j, strict=True):
            yield row | {"time_s": time_s, "energy_j": energy_j}
        return
    mean_s = _seconds(values.get("time")) or times_s
    if not mean_s or not {"nvml_energy", "nvml_power"} & values.keys():
        raise DataError(
            f"{entry.where} has no {'energy' if mean_s else 'time'}",
            hint='observe it: NVMLObserver(["nvml_energy"])',
        )
    known = "nvml_energy" in values
    cost = {"energy_j": values["nvml_energy"]} if known else {"power_w": values["nvml_power"]}
    yield row | {"time_s": statistics.fmean(mean_s), **cost}


def _seconds(ms: object) -> list[float]:
    """Return a number of milliseconds, or a list of such, in seconds; else nothing."""
    found = ms if isinstance(ms, list) else [ms]
    return [each / 1e3 for each in found if isinstance(each, float | int)]


def t4_text(sample_set: SampleSet) -> str:
    """Return samples of kernels by themselves as T4 results, schema 1.0.0.

    Raises:
        DataError: No kernel ran by itself.
    """
    results = []
    for kernel, windows in runs_alone(sample_set):
        values = _values(sample_set, kernel, windows)
        named = {"device_name": sample_set.gpu.name, **values}
        results.append(
            {
                "configuration": _parameters(kernel, windows[0]),
                "times": {"runtimes": values["times"]},
                "invalidity": "correct",
                "correctness": 1,
                "measurements": [
                    {"name": name, "value": value, "unit": _UNITS.get(name, "")}
                    for name, value in named.items()
                    if name != "times"
                ],
                "objectives": ["nvml_energy", "time"],
            }
        )
    return _text({"schema_version": T4_SCHEMA, "results": results})


def cache_text(sample_set: SampleSet, at: dt.datetime) -> str:
    """Return samples of kernels by themselves as a cache of Kernel Tuner, schema 1.1.0.

    Which kernel it is stands among the parameters. Nothing was compiled or verified, which takes
    0 ms; what a benchmark took is told by its windows, or else by what was timed in them.

    Args:
        at: When they were measured, the last of them: samples do not say it of each.

    Raises:
        DataError: No kernel ran by itself.
    """
    entries: dict[str, dict[str, Any]] = {}
    for kernel, windows in runs_alone(sample_set):
        parameters = _parameters(kernel, windows[0])
        spent_s = math.fsum(window.window_s or window.time_s for window in windows)
        entries[",".join(map(str, parameters.values()))] = {
            **parameters,
            **_values(sample_set, kernel, windows),
            **dict.fromkeys(("compile_time", "verification_time"), 0),
            "benchmark_time": 1e3 * spent_s,
            **dict.fromkeys(("strategy_time", "framework_time"), 0),
            "timestamp": at.astimezone(dt.UTC).isoformat(sep=" "),
        }
    keys = ("kernel", *_CLOCKS)
    used = {
        name: sorted(
            {each[name] for each in entries.values()}, key=lambda value: (value is None, value)
        )
        for name in keys
    }
    body = {
        "schema_version": CACHE_SCHEMA,
        "device_name": sample_set.gpu.name,
        "kernel_name": sample_set.workload,
        "problem_size": sample_set.workload,
        "tune_params_keys": keys,
        "tune_params": used,
        "objective": "nvml_energy",
        "cache": entries,
    }
    return _text(body)


def _parameters(kernel: Kernel, window: Window) -> dict[str, Any]:
    asked = {theirs: getattr(window.asked, ours) for theirs, ours in _CLOCKS.items()}
    return {"kernel": kernel.name, **asked}


def _values(sample_set: SampleSet, kernel: Kernel, windows: list[Window]) -> dict[str, Any]:
    """Return what was measured of a kernel at one pair of clocks, by Kernel Tuner's names."""
    read = [window.observed for window in windows if window.observed is not None]
    known: dict[str, list[float | None]] = {
        "core_freq": [each.core_mhz for each in read],
        "mem_freq": [each.mem_mhz for each in read],
        "temperature": [each.temperature_c for each in windows],
    }
    means = {name: [each for each in values if each is not None] for name, values in known.items()}
    return {
        "time": 1e3 * statistics.fmean(window.time_s for window in windows),
        "times": [1e3 * window.time_s for window in windows],
        "nvml_energy": statistics.fmean(window.energy_j for window in windows),
        "nvml_energies": [window.energy_j for window in windows],
        **{name: statistics.fmean(values) for name, values in means.items() if values},
        "count": kernel.count,
        "pass": kernel.pass_.value,
        "waited_for": kernel.waited_for,
        "evidence": sample_set.evidence.value,
    }


def _text(body: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(body), indent=1).decode() + "\n"
