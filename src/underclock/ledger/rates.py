"""What energy costs and emits, as the user said once; kept in a small file beside the ledger.

Nothing here is guessed: what was never said is not shown. Two figures have a name, for who wants an
average on purpose, and each comes with its source.
"""

import math
import re
from pathlib import Path
from typing import Final

import msgspec

from underclock.errors import DataError, UsageError
from underclock.records.common import Record, check_not_negative
from underclock.store.files import write_text

_JOULES_OF_A_KWH: Final = 3.6e6
_NUMBER = r"(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
_PRICE = re.compile(rf"{_NUMBER}\s*(?P<currency>[A-Z]{{3}})\s*/\s*(?P<unit>[kM]Wh)")
_GRID = re.compile(rf"{_NUMBER}\s*(?P<mass>k?g)(?:\s*CO2e?)?\s*/\s*kWh")
_KWH = {"kWh": 1.0, "MWh": 1000.0}
WORLD: Final = "world"
SURVEY: Final = "survey"
_WORLD_G, _SURVEY_PUE = 481.0, 1.58
_SOURCES = {
    WORLD: "mean of the world's power sector in 2023, life cycle: Ember, July 2024",
    SURVEY: "mean of data centres in 2023: Uptime Institute, Global Data Center Survey 2023",
}
_LEAST_PUE, _MOST_PUE = 1.0, 5.0  # less is impossible, more a slip
_MOST_G: Final = 2000.0  # oil shale and lignite burned badly are below; more is a slip of the unit


class Rates(Record, frozen=True, kw_only=True):
    """What a kWh of the GPUs means.

    Attributes:
        price: Of a kWh from the grid, in ``currency``; ``None`` where nobody said it.
        currency: Three letters, as EUR.
        grid_g: CO2e of a kWh from the grid, in grams; ``None`` likewise.
        pue: Energy from the grid for each joule of the machines; ``None`` likewise, and then money
            and CO2e are those of the GPUs' own energy.
        grid_source: Where a named figure is from; empty for the user's own.
        pue_source: Likewise.
    """

    price: float | None = None
    currency: str = ""
    grid_g: float | None = None
    pue: float | None = None
    grid_source: str = ""
    pue_source: str = ""

    def __post_init__(self) -> None:
        check_not_negative(self, "price", "grid_g", "pue")
        if (self.price is None) == bool(self.currency):
            raise ValueError("a price has a currency")

    def money(self, energy_j: float) -> float | None:
        """Return what energy of GPUs costs; ``None`` where no price is known."""
        return None if self.price is None else self.price * self._grid_kwh(energy_j)

    def co2e_kg(self, energy_j: float) -> float | None:
        """Return what energy of GPUs emits; ``None`` where no intensity is known."""
        return None if self.grid_g is None else 1e-3 * self.grid_g * self._grid_kwh(energy_j)

    def _grid_kwh(self, energy_j: float) -> float:
        return (1.0 if self.pue is None else self.pue) * energy_j / _JOULES_OF_A_KWH


def with_said(rates: Rates, *, price: str | None, grid: str | None, pue: str | None) -> Rates:
    """Return rates with what a user typed; ``None`` leaves a rate as it is.

    Raises:
        UsageError: A price without a currency, or something that is no rate.
    """
    changes: dict[str, object] = {}
    for said, read in ((price, _price), (grid, _grid), (pue, _pue)):
        if said is not None:
            changes |= read(said)
    return msgspec.structs.replace(rates, **changes)


def _price(text: str) -> dict[str, object]:
    match = _PRICE.fullmatch(text.strip())
    if match is None:
        why = "a price needs a currency and a unit" if _is_number(text) else "this is no price"
        raise UsageError(
            f"cannot read {text!r}: {why}", hint="write --price 0.25EUR/kWh, or 250USD/MWh"
        )
    return {"price": float(match["number"]) / _KWH[match["unit"]], "currency": match["currency"]}


def _grid(text: str) -> dict[str, object]:
    if text.strip() == WORLD:
        return {"grid_g": _WORLD_G, "grid_source": _SOURCES[WORLD]}
    match = _GRID.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"cannot read {text!r} as CO2e of a kWh",
            hint=f"write --grid 380g/kWh; `{WORLD}` is {_WORLD_G:g} g/kWh, {_SOURCES[WORLD]}",
        )
    grid_g = (1.0 if match["mass"] == "g" else 1000.0) * float(match["number"])
    if grid_g > _MOST_G:
        raise UsageError(
            f"cannot take {text!r}: that is {grid_g:,.0f} g of CO2e for a kWh, and no grid emits "
            f"more than {_MOST_G:,.0f} g",
            hint=f"in grams: --grid 380g/kWh; `{WORLD}` is {_WORLD_G:g} g/kWh, {_SOURCES[WORLD]}",
        )
    return {"grid_g": grid_g, "grid_source": ""}


def _pue(text: str) -> dict[str, object]:
    if text.strip() == SURVEY:
        return {"pue": _SURVEY_PUE, "pue_source": _SOURCES[SURVEY]}
    value = float(text) if _is_number(text) else math.nan
    if not _LEAST_PUE <= value <= _MOST_PUE:
        raise UsageError(
            f"cannot read {text!r} as a power usage effectiveness",
            hint=f"write --pue 1.3, from 1 on; `{SURVEY}` is {_SURVEY_PUE}, {_SOURCES[SURVEY]}",
        )
    return {"pue": value, "pue_source": ""}


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def rates_beside(ledger: Path) -> Path:
    """Return where the rates of a ledger's user lie."""
    return ledger.with_name(f"{ledger.stem}.rates.json")


def read_rates(ledger: Path) -> Rates:
    """Return what the user said before; nothing where that was never.

    Raises:
        DataError: The file cannot be read.
    """
    path = rates_beside(ledger)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Rates)
    except FileNotFoundError:
        return Rates()
    except (OSError, msgspec.DecodeError) as exc:
        raise DataError(
            f"cannot read the rates in {path}: {exc}", hint="remove it, and say them again"
        ) from exc


def keep_rates(ledger: Path, rates: Rates) -> None:
    """Keep them for the next time.

    Raises:
        UsageError: They cannot be written.
    """
    path = rates_beside(ledger)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as exc:
        raise UsageError(f"cannot make {path.parent}: {exc.strerror}") from exc
    write_text(path, msgspec.json.encode(rates).decode() + "\n", force=True)
