"""``underclock saved``."""

import csv
import io
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from underclock.app.options import json_option
from underclock.app.output import print_json, print_table, say
from underclock.errors import UsageError

if TYPE_CHECKING:
    from underclock.ledger.entries import LedgerEntry, SavedTotal, UntoldTotal
    from underclock.ledger.openmetrics import MetricFamily
    from underclock.ledger.rates import Rates

_KWH_J = 3.6e6
_HOUR_S = 3600.0
_CAPTION = (
    "blocks: told by blocks at auto in the same run; promise: by what plans promised. 95 % "
    "intervals: errors of one run's blocks, and of all promises, are taken as fully correlated, of "
    "different runs' blocks as independent; counters may be off by 5 %, and blocks by heat by 5 %"
)


@click.command(name="saved")
@click.option("--by", type=click.Choice(["job", "gpu", "month"]), help="Sum them by this.")
@click.option("--price", metavar="PRICE", help="Of energy, such as 0.25EUR/kWh; kept.")
@click.option("--grid", metavar="CO2E", help="CO2e of energy, such as 380g/kWh; kept.")
@click.option("--pue", metavar="FACTOR", help="Power usage effectiveness, such as 1.3; kept.")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values.")
@click.option("--openmetrics", is_flag=True, help="Print OpenMetrics, a series for each GPU.")
@click.option(
    "--textfile",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the same for node exporter's textfile collector, such as saved.prom.",
)
@json_option
def command(
    *,
    by: str | None,
    price: str | None,
    grid: str | None,
    pue: str | None,
    as_csv: bool,
    openmetrics: bool,
    textfile: Path | None,
    as_json: bool,
) -> None:
    """Say what runs under a plan saved: kWh, and money and CO2e where you said what they cost.

    What `run`, `apply` and callbacks drew is in the ledger UNDERCLOCK_LEDGER names, by default
    ~/.local/share/underclock/ledger.db. Each GPU counts once.

    Example: underclock saved --by month --price 0.25EUR/kWh --grid 380g/kWh --pue 1.3
    """
    from underclock.ledger.entries import SavedBy, totals
    from underclock.ledger.openmetrics import openmetrics_text, prometheus_text
    from underclock.ledger.rates import keep_rates, read_rates, with_said
    from underclock.ledger.store import LEDGER, ledger_path, read_entries
    from underclock.store import write_text

    if sum((as_csv, as_json, openmetrics)) > 1:
        raise UsageError("several forms at once", hint="take one of --csv, --json, --openmetrics")
    path = ledger_path(os.environ)
    if path is None:
        raise UsageError(f"the ledger is turned off: {LEDGER} is empty", hint=f"unset {LEDGER}")
    before = read_rates(path)
    rates = with_said(before, price=price, grid=grid, pue=pue)
    if rates != before:
        keep_rates(path, rates)
    entries = read_entries(path)
    told, untold = totals(entries, None if by is None else SavedBy(by))
    rows = [_row(each, rates) for each in told]
    if textfile is not None:
        write_text(textfile, prometheus_text(families(entries)), force=True)
    if openmetrics:
        say(openmetrics_text(families(entries)).rstrip())
    elif as_json:
        print_json({"ledger": str(path), "saved": rows, "untold": untold, "rates": rates})
    elif as_csv:
        say(_csv(rows).rstrip())
    elif not entries:
        say(f"nothing is in {path} yet: `underclock run plan.json -- COMMAND` writes there")
    else:
        _print(told, untold, rates, by)


def _row(total: "SavedTotal", rates: "Rates") -> dict[str, object]:
    """Return a total as plain values, in the units that people pay and count in."""
    ends_j = total.saved_interval_j
    row: dict[str, object] = {
        "group": total.group,
        "evidence": str(total.evidence),
        "against": str(total.against),
        "runs": total.runs,
        "gpus": total.gpus,
        "gpu_hours": total.gpu_s / _HOUR_S,
        "steps": total.steps,
        "drawn_kwh": total.energy_j / _KWH_J,
    }
    for name, of, unit in (
        ("saved_kwh", lambda joules: joules / _KWH_J, None),
        ("saved_money", rates.money, rates.currency),
        ("saved_co2e_kg", rates.co2e_kg, None),
    ):
        row[name], row[f"{name}_low"], row[f"{name}_high"] = map(of, (total.saved_j, *ends_j))
        if unit is not None:
            row["currency"] = unit or None
    return row


def _csv(rows: Sequence[dict[str, object]]) -> str:
    file = io.StringIO()
    names = list(rows[0]) if rows else ["group"]
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _print(
    told: Sequence["SavedTotal"],
    untold: Sequence["UntoldTotal"],
    rates: "Rates",
    by: str | None,
) -> None:
    """Print tables for a person, and what they rest on."""
    from underclock.report.terminal import filled, numbers, words

    money, co2e = rates.price is not None, rates.grid_g is not None
    columns = [*words(by or "runs"), *numbers("saved, kWh")]
    columns += numbers(rates.currency) if money else []
    columns += numbers("CO2e, kg") if co2e else []
    columns += numbers("drawn, kWh", "GPU hours", "runs", "GPUs", "steps")
    rows = []
    for total in told:
        ends = total.saved_j, *total.saved_interval_j
        name = f"{total.group or 'all'}: {total.evidence}, {total.against}"
        cells = [name, _interval(each / _KWH_J for each in ends)]
        cells += [_interval(rates.money(each) or 0.0 for each in ends)] if money else []
        cells += [_interval(rates.co2e_kg(each) or 0.0 for each in ends)] if co2e else []
        counts = f"{total.gpu_s / _HOUR_S:.3g}", str(total.runs), str(total.gpus), str(total.steps)
        rows.append([*cells, f"{total.energy_j / _KWH_J:.3g}", *counts])
    if rows:
        print_table(filled("Saved against auto clocks", columns, rows, _CAPTION))
    for each in untold:
        group = f"{each.group}: " if each.group else ""
        say(
            f"not counted, {each.evidence}: {group}{each.energy_j / _KWH_J:.3g} kWh of {each.runs} "
            f"runs of which nobody can tell: {'; '.join(each.why)}"
        )
    for sentence in _said_of(rates):
        say(sentence)


def _said_of(rates: "Rates") -> tuple[str, ...]:
    """Say which rates were taken, and how those that nobody said are given."""
    pue = "" if rates.pue is None else f"{rates.pue:g} J from the grid for each of the GPUs"
    sentences = (
        "no money is shown, for no price was said: --price 0.25EUR/kWh, once"
        if rates.price is None
        else f"money: {rates.price:g} {rates.currency}/kWh, as you said",
        "no CO2e is shown, for no intensity was said: --grid 380g/kWh, once"
        if rates.grid_g is None
        else f"CO2e: {rates.grid_g:g} g/kWh, {rates.grid_source or 'as you said'}",
        f"PUE: {pue}, {rates.pue_source or 'as you said'}; kWh are the GPUs' own"
        if pue
        else "PUE: none was said (--pue 1.3, once), so all is of what the GPUs alone draw",
    )
    return sentences if rates.price is not None or rates.grid_g is not None else sentences[:2]


def _interval(values: Iterable[float]) -> str:
    """Write a mean and its interval, to the digits that the interval leaves."""
    mean, low, high = values
    wide = max(abs(high - low), 1e-3 * abs(mean))
    digits = max(0, 1 - math.floor(math.log10(wide))) if wide else 0
    return " ".join([f"{mean:.{digits}f}", f"({low:.{digits}f} to {high:.{digits}f})"])


def families(entries: Iterable["LedgerEntry"]) -> "list[MetricFamily]":
    """Return what is in a ledger as metrics, by job and GPU.

    What steps drew and would have drawn at auto only grows, so both are counters and their
    difference is the saving; its interval may shrink, and what cannot be told may be told later.
    """
    from underclock.ledger.entries import LedgerPart, counted_once, total_of, untold_j
    from underclock.ledger.openmetrics import FamilyKind, MetricFamily

    count, gauge = FamilyKind.COUNTER, FamilyKind.GAUGE
    drawn, auto, ends, untold, seconds, steps = (
        MetricFamily(f"underclock_ledger_{name}", kind, unit, words)
        for name, kind, unit, words in (
            ("energy_joules", count, "joules", "Drawn in steps whose saving can be told"),
            ("auto_energy_joules", count, "joules", "The same steps would have drawn at auto"),
            ("saved_joules", gauge, "joules", "Saved, and its 95 % interval"),
            ("untold_energy_joules", gauge, "joules", "Drawn where no saving can be told"),
            ("gpu_seconds", count, "seconds", "Time of GPUs under runs whose saving can be told"),
            ("steps", count, "", "Training steps that were seen in them"),
        )
    )
    groups: defaultdict[tuple[str, ...], list[LedgerPart]] = defaultdict(list)
    names = "job", "gpu", "model", "evidence", "against"
    for entry, share in counted_once(entries):
        key = entry.job, entry.gpu, entry.gpu_name, str(entry.evidence), str(entry.against)
        if entry.untold or entry.untold_j:
            untold.add(share * untold_j(entry), dict(zip(names, key, strict=True)))
        if not entry.untold:
            groups[key].append((entry, share))
    for group, parts in groups.items():
        labels = dict(zip(names, group, strict=True))
        total = total_of("", parts[0][0].evidence, parts[0][0].against, parts)
        drawn.set(total.energy_j, labels)
        auto.set(total.energy_j + total.saved_j, labels)
        seconds.set(total.gpu_s, labels)
        steps.set(total.steps, labels)
        low_j, high_j = total.saved_interval_j
        for bound, value in (("low", low_j), ("mean", total.saved_j), ("high", high_j)):
            ends.set(value, {**labels, "bound": bound})
    return [drawn, auto, ends, untold, seconds, steps]
