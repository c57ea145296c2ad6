"""``underclock saved``."""

import math
import os
import re
from typing import TYPE_CHECKING

import click
import msgspec

from underclock.app.options import json_option
from underclock.app.output import print_json, print_table, say, warn
from underclock.errors import UsageError
from underclock.units import KWH_J

if TYPE_CHECKING:
    from underclock.ledger import SavedTotal

_HOUR_S = 3600.0
_NUMBER = r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
_PRICE = re.compile(rf"{_NUMBER}\s*([A-Z]{{3}})\s*/\s*([kM])Wh")
_GRID = re.compile(rf"{_NUMBER}\s*(k?)g(?:\s*CO2e?)?\s*/\s*kWh")
_MOST_PUE = 5.0  # more is a slip; less than 1 is impossible
_MOST_G = 2000.0  # oil shale and lignite burned badly are below; more is a slip of the unit
_CAPTION = (
    "blocks: against steps at auto, in turns with the plan's; promise: by what plans promised; "
    "observed: nothing was compared, and nothing counts as saved. 95 % intervals: errors of one "
    "run's turns, and of all promises, are taken as fully correlated, of different runs' turns as "
    "independent; counters may be off by 5 %, and turns by heat by 5 %"
)


@click.command(name="saved")
@click.option("--by", type=click.Choice(["job", "gpu", "month"]), help="Sum them by this.")
@click.option("--price", envvar="UNDERCLOCK_PRICE", help="Of energy, such as 0.25EUR/kWh.")
@click.option("--grid", envvar="UNDERCLOCK_GRID", help="CO2e of energy, such as 380g/kWh.")
@click.option("--pue", envvar="UNDERCLOCK_PUE", help="Power usage effectiveness, such as 1.3.")
@json_option
def command(
    *, by: str | None, price: str | None, grid: str | None, pue: str | None, as_json: bool
) -> None:
    """Say what runs under a plan saved: kWh, and money and CO2e where you said what they cost.

    The runs are in the ledger that UNDERCLOCK_LEDGER names, by default
    ~/.local/share/underclock/ledger.jsonl. UNDERCLOCK_PRICE, UNDERCLOCK_GRID and UNDERCLOCK_PUE
    stand for the options.

    Example: underclock saved --by month --price 0.25EUR/kWh --grid 380g/kWh --pue 1.3
    """
    from underclock.ledger import LEDGER, ledger_path, read_runs, totals
    from underclock.report.terminal import filled, numbers, words

    path = ledger_path(os.environ)
    if path is None:
        raise UsageError(f"the ledger is turned off: {LEDGER} is empty", hint=f"unset {LEDGER}")
    units = _units(price, grid, pue)
    runs, notes = read_runs(path)
    sums = totals(runs, by)
    if as_json:
        rows = [{**msgspec.to_builtins(each), "saved": _saved(each, units)} for each in sums]
        rates = {"price": price, "grid": grid, "pue": pue}
        print_json({"ledger": str(path), "saved": rows, "rates": rates, "notes": notes})
        return
    warn(notes)
    if not runs:
        say(f"nothing is in {path} yet: `underclock run plan.json -- COMMAND` writes there")
    cells = [
        (
            f"{each.group or 'all'}: {each.evidence}, {each.against}",
            *(_interval(*ends) for ends in _saved(each, units).values()),
            *(f"{each.energy_j / KWH_J:.3g}", f"{each.gpu_s / _HOUR_S:.3g}"),
            *map(str, (each.runs, each.gpus, each.steps)),
        )
        for each in sums
        if each.runs
    ]
    if cells:
        counts = numbers("drawn, kWh", "GPU hours", "runs", "GPUs", "steps")
        columns = (*words(by or "runs"), *numbers(*units), *counts)
        print_table(filled("Saved against auto clocks", columns, cells, _CAPTION))
    for each in sums:
        if each.why:
            group = f"{each.group}: " if each.group else ""
            kwh = f"{group}{each.untold_j / KWH_J:.3g} kWh without a known saving"
            say(f"not counted, {each.evidence}: {kwh}: {'; '.join(each.why)}")
    if not price:
        say("no money is shown, for no price was said: --price 0.25EUR/kWh")
    if not grid:
        say("no CO2e is shown, for no intensity was said: --grid 380g/kWh")
    if (price or grid) and not pue:
        say("both are of what the GPUs alone draw, for no PUE was said: --pue 1.3")


def _units(price: str | None, grid: str | None, pue: str | None) -> dict[str, float]:
    units = {"kWh": 1.0 / KWH_J}
    found = re.fullmatch(_NUMBER, (pue or "1").strip())
    factor = float(found[1]) if found else math.nan
    if not 1.0 <= factor <= _MOST_PUE:
        hint = "write --pue 1.3, from 1 on"
        raise UsageError(f"cannot read {pue!r} as a power usage effectiveness", hint=hint)
    if price:
        found = _PRICE.fullmatch(price.strip())
        if found is None:
            raise UsageError(
                f"cannot read {price!r}: a price needs a number, a currency and a unit",
                hint="write --price 0.25EUR/kWh, or 250USD/MWh",
            )
        units[found[2]] = factor * float(found[1]) / KWH_J / (1000.0 if found[3] == "M" else 1.0)
    if grid:
        found = _GRID.fullmatch(grid.strip())
        grid_g = float(found[1]) * (1000.0 if found[2] else 1.0) if found else math.inf
        if grid_g > _MOST_G:
            raise UsageError(
                f"cannot read {grid!r} as CO2e of a kWh: grids emit up to {_MOST_G:.0f} g",
                hint="in grams, as --grid 380g/kWh",
            )
        units["CO2e, kg"] = factor * 1e-3 * grid_g / KWH_J
    return units


def _saved(total: "SavedTotal", units: dict[str, float]) -> dict[str, tuple[float, ...]]:
    """Return the mean of what was saved and its interval's ends, in each unit."""
    ends_j = (total.saved_j, *total.saved_interval_j)
    return {name: tuple(rate * each_j for each_j in ends_j) for name, rate in units.items()}


def _interval(mean: float, low: float, high: float) -> str:
    """Write a mean and its interval, to the digits that the interval leaves."""
    wide = max(abs(high - low), 1e-3 * abs(mean))
    digits = max(0, 1 - math.floor(math.log10(wide))) if wide else 0
    return " ".join([f"{mean:.{digits}f}", f"({low:.{digits}f} to {high:.{digits}f})"])
