"""Samples as rows of tables and back, each with a checksum of what was written."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from underclock.records import Clocks, MixSample, Sample

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
CREATE TABLE mixed (
    number INTEGER PRIMARY KEY,
    once TEXT NOT NULL UNIQUE,
    body TEXT NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE TABLE notes (sentence TEXT NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE progress (
    samples INTEGER NOT NULL,
    mixed INTEGER NOT NULL,
    gpu_s REAL NOT NULL,
    checksum INTEGER NOT NULL
);
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


def mixed_row_of(number: int, sample: MixSample) -> tuple[int, str, str, int]:
    """Return the row of a measurement in company: number, what it is of, itself, and a checksum.

    Args:
        number: Of the row: 1, 2, …
        sample: The measurement.
    """
    once = msgspec.json.encode((sample.kernel, sample.mix, sample.asked, sample.repeat)).decode()
    body = msgspec.json.encode(sample).decode()
    return number, once, body, checksum(number, once, body)


def mixed_sample(number: int, row: Sequence[object]) -> MixSample:
    """Return the measurement in company of a row of `mixed_row_of`.

    Args:
        number: That the row must have, for none may be missing.
        row: As it was read.

    Raises:
        ValueError: It is not as it was written.
    """
    written, once, body, summed = row
    if summed != checksum(written, once, body) or written != number:
        raise ValueError(f"measurement {number} in company is not as it was written")
    return msgspec.json.decode(str(body), type=MixSample)


class RowReader:
    """Makes samples of the rows of one query; clocks that many rows share are made once."""

    def __init__(self, names: Sequence[str]) -> None:
        """Take the names of the columns, in the order in which every row has them.

        Raises:
            KeyError: A column is missing.
        """
        place = {name: at for at, name in enumerate(names)}
        self._number, self._scope = place["number"], place["scope"]
        self._checksum = place["checksum"]
        self._summed = [(name, at) for name, at in sorted(place.items()) if name != "checksum"]
        self._plain = [(name, place[name]) for name in _PLAIN]
        self._parts = [(part, place[f"{part}_utilisation"]) for part in _PARTS]
        self._asked = place["asked_core_mhz"], place["asked_mem_mhz"]
        self._observed = place["observed_core_mhz"], place["observed_mem_mhz"]
        self._clocks: dict[tuple[object, object], Clocks] = {}

    def sample(self, number: int, row: Sequence[object]) -> tuple[str, Sample]:
        """Return a row's scope and sample.

        Args:
            number: That the row must have, for none may be missing.
            row: As it was read.

        Raises:
            ValueError: It is not as it was written.
        """
        summed: list[object] = []
        for name, at in self._summed:
            summed += name, row[at]
        if row[self._checksum] != checksum(*summed) or row[self._number] != number:
            raise ValueError(f"sample {number} is not as it was written")
        core, mem = self._observed
        whole: dict[str, object] = {name: row[at] for name, at in self._plain}
        whole["asked"] = self._shared(row, self._asked)
        if row[core] or row[mem]:
            whole["observed"] = self._shared(row, self._observed)
        parts = {part: row[at] for part, at in self._parts}
        if None not in parts.values():
            whole["utilisation"] = parts
        return str(row[self._scope]), msgspec.convert(whole, Sample)

    def _shared(self, row: Sequence[object], places: tuple[int, int]) -> Clocks:
        core, mem = cells = row[places[0]], row[places[1]]
        if (clocks := self._clocks.get(cells)) is None:
            clocks = msgspec.convert({"core_mhz": core, "mem_mhz": mem}, Clocks)
            self._clocks[cells] = clocks
        return clocks


def _checksum_of(row: Mapping[str, object]) -> int:
    return checksum(*(part for name in sorted(row) for part in (name, row[name])))
