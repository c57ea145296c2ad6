"""Samples as rows of a table and back, each with a checksum of what was written."""

import zlib
from collections.abc import Mapping
from typing import Final

import msgspec

from underclock.records import Clocks, Sample

TABLES: Final = """
CREATE TABLE header (body TEXT NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE samples (
    number INTEGER PRIMARY KEY,
    scope TEXT NOT NULL CHECK (scope IN ('kernel', 'step')),
    kernel TEXT NOT NULL,
    asked_core_mhz INTEGER,
    asked_mem_mhz INTEGER,
    repeat INTEGER NOT NULL,
    time_s REAL NOT NULL,
    energy_j REAL NOT NULL,
    observed_core_mhz INTEGER,
    observed_mem_mhz INTEGER,
    window_s REAL,
    ticks INTEGER,
    temperature_c REAL,
    throttle_reasons INTEGER,
    sm_utilisation REAL,
    tensor_utilisation REAL,
    fp32_utilisation REAL,
    dram_utilisation REAL,
    checksum INTEGER NOT NULL
);
CREATE TABLE notes (sentence TEXT NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE progress (samples INTEGER NOT NULL, gpu_s REAL NOT NULL, checksum INTEGER NOT NULL);
CREATE UNIQUE INDEX once ON samples
    (scope, kernel, ifnull(asked_core_mhz, 0), ifnull(asked_mem_mhz, 0), repeat);
"""

_PLAIN = (
    "kernel",
    "repeat",
    "time_s",
    "energy_j",
    "window_s",
    "ticks",
    "temperature_c",
    "throttle_reasons",
)
_REAL = {"time_s", "energy_j", "window_s", "temperature_c"}
_PARTS = ("sm", "tensor", "fp32", "dram")


def checksum(*values: object) -> int:
    """Return a number that changes where text or a number does, down to its last digit."""
    return zlib.crc32(msgspec.json.encode(values))


def row_of(number: int, sample: Sample, *, in_situ: bool) -> dict[str, object]:
    """Return a sample's row.

    Args:
        number: Of the row: 1, 2, …
        sample: The measurement.
        in_situ: Whether it is of the whole step rather than an isolated kernel.
    """
    observed, utilisation = sample.observed or Clocks(), sample.utilisation
    row: dict[str, object] = {"number": number, "scope": "step" if in_situ else "kernel"}
    row |= {name: getattr(sample, name) for name in _PLAIN}
    for name in ("core_mhz", "mem_mhz"):
        row[f"asked_{name}"] = getattr(sample.asked, name)
        row[f"observed_{name}"] = getattr(observed, name)
    row |= {f"{part}_utilisation": getattr(utilisation, part, None) for part in _PARTS}
    for name, value in row.items():
        # SQLite keeps a whole number in a column of real ones as a real one, and -0.0 as 0.0.
        if value is not None and (name in _REAL or name.endswith("_utilisation")):
            row[name] = float(value) + 0.0  # type: ignore[arg-type]
    return row | {"checksum": _checksum_of(row)}


def sample_of(number: int, row: Mapping[str, object]) -> tuple[str, Sample]:
    """Return a row's scope and sample.

    Args:
        number: That the row must have, for none may be missing.
        row: As it was read.

    Raises:
        ValueError: It is not as it was written.
    """
    cells = dict(row)
    if cells.pop("checksum", None) != _checksum_of(cells) or cells.pop("number") != number:
        raise ValueError(f"sample {number} is not as it was written")
    scope = str(cells.pop("scope"))
    clocks = {
        of: {name: cells[f"{of}_{name}"] for name in ("core_mhz", "mem_mhz")}
        for of in ("asked", "observed")
    }
    parts = {part: cells[f"{part}_utilisation"] for part in _PARTS}
    whole: dict[str, object] = {
        "asked": clocks["asked"],
        "observed": clocks["observed"] if any(clocks["observed"].values()) else None,
        "utilisation": None if None in parts.values() else parts,
    }
    plain = {name: cells[name] for name in _PLAIN}
    return scope, msgspec.convert(whole | plain, Sample)


def _checksum_of(row: Mapping[str, object]) -> int:
    return checksum(*(part for name in sorted(row) for part in (name, row[name])))
