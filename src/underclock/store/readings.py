"""What a row of a table may say besides time and energy: what was read while it was measured."""

import math
from typing import Protocol

import msgspec

from underclock.errors import DataError
from underclock.records import Clocks, ThrottleReason, Utilisation, Window, check_mhz

_CLOCKS = ("observed_core_mhz", "observed_mem_mhz")
_BITS = 2**63  # of the driver's reasons, and of a column of SQLite
_BUSY = ("sm", "tensor", "fp32", "dram")
READINGS = (*_CLOCKS, "temperature_c", "throttle_reasons", *_BUSY)
"""Columns a table may have: the running clocks, heat, the driver's throttle reasons as a number,
and how busy parts of the GPU were, 0 to 1. An empty cell was not read."""


class Row(Protocol):
    """A line of a table."""

    @property
    def where(self) -> str:
        """The file and the line."""

    def cell(self, column: str) -> str:
        """Return a cell as it stands; empty where there is no such column."""


def with_readings(sample: Window, row: Row) -> Window:
    """Return a sample with what else its row says.

    Raises:
        DataError: A cell is no number, or one that cannot be.
    """
    values = {name: _number(row, name) for name in READINGS if row.cell(name)}
    core, mem = (values.get(name) for name in _CLOCKS)
    busy = [values.get(name) for name in _BUSY]
    if None in busy and any(value is not None for value in busy):
        raise DataError(f"{row.where}: utilisation needs all of {', '.join(_BUSY)}, or none")
    reasons = values.get("throttle_reasons")
    if reasons is not None and not 0 <= reasons < _BITS:
        raise DataError(f"{row.where}: throttle_reasons are bits of a number, got {reasons:g}")
    try:
        observed = Clocks(core_mhz=_whole(core), mem_mhz=_whole(mem)) if core or mem else None
        if observed is not None:
            check_mhz(observed, *observed.__struct_fields__)
        return msgspec.structs.replace(
            sample,
            observed=observed,
            temperature_c=values.get("temperature_c"),
            throttle_reasons=None if reasons is None else ThrottleReason(round(reasons)),
            utilisation=None
            if None in busy
            else msgspec.convert(dict(zip(_BUSY, busy, strict=True)), Utilisation),
        )
    except (ValueError, msgspec.ValidationError) as exc:
        raise DataError(f"{row.where}: {exc}") from exc


def _number(row: Row, name: str) -> float:
    raw = row.cell(name)
    try:
        value = float(raw)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{row.where}: {name} is {raw!r}, not a number")
    return value


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
