"""`underclock saved` as a shell sees it."""

import csv
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from made_entries import KWH_J, entry, untold
from underclock.app import main
from underclock.ledger.store import LEDGER, write_entries
from underclock.records import Evidence

_RATES = "--price 0.25EUR/kWh --grid 400g/kWh --pue 1.5"


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "ledger.db"
    monkeypatch.setenv(LEDGER, str(path))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return path


@pytest.fixture
def filled(ledger: Path) -> None:
    simulated = entry(run="run 2", gpu="gpu 1", job="bert", evidence=Evidence.SIMULATED)
    write_entries(ledger, [entry(), simulated, untold(run="run 3", gpu="gpu 2")])


def _said(arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    main(["saved", *arguments.split()])
    return capsys.readouterr().out


@pytest.mark.usefixtures("filled")
def test_without_a_price_no_money_is_shown_and_it_says_how_to_give_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = _said("", capsys)

    assert "0.10 (0.05 to 0.15)" in said
    assert "EUR" not in said.replace("0.25EUR/kWh, once", "")
    assert "no money is shown, for no price was said: --price 0.25EUR/kWh, once" in said
    assert "no CO2e is shown" in said
    assert "not counted, measured: 0.9 kWh of 1 runs of which nobody can tell" in said


@pytest.mark.usefixtures("filled")
def test_rates_are_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    first = _said(f"--json {_RATES}", capsys)
    again = _said("--json", capsys)

    assert first == again
    found = json.loads(again)
    measured, simulated = found["saved"]
    assert (measured["evidence"], simulated["evidence"]) == ("measured", "simulated")
    assert measured["saved_kwh"] == pytest.approx(0.1)
    assert measured["saved_money"] == pytest.approx(0.1 * 1.5 * 0.25)
    assert measured["saved_co2e_kg_low"] == pytest.approx(measured["saved_kwh_low"] * 1.5 * 0.4)
    assert found["untold"][0]["energy_j"] == pytest.approx(0.9 * KWH_J)
    for_people = _said("", capsys)
    assert "money: 0.25 EUR/kWh, as you said" in for_people
    assert "all: measured, blocks" in for_people  # however narrow the terminal is
    assert "all: simulated, blocks" in for_people
    changed = json.loads(_said("--json --price 100USD/MWh", capsys))
    assert changed["saved"][0]["saved_money"] == pytest.approx(0.1 * 1.5 * 0.1)
    assert changed["rates"]["grid_g"] == 400.0


@pytest.mark.usefixtures("filled")
def test_averages_are_named_with_their_sources(capsys: pytest.CaptureFixture[str]) -> None:
    said = _said("--grid world --pue survey", capsys)

    assert "CO2e: 481 g/kWh, mean of the world's power sector in 2023" in said
    assert "Ember" in said
    assert "Uptime Institute" in said
    assert "380" not in _said("--grid 0.2kg/kWh", capsys)


@pytest.mark.usefixtures("filled")
def test_tables_are_csv_by_job(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(_said("--by job --csv", capsys).splitlines()))

    assert [row["group"] for row in rows] == ["bert", "gpt"]
    assert float(rows[1]["saved_kwh_high"]) == pytest.approx(0.15, abs=0.002)
    assert rows[0]["saved_money"] == rows[0]["currency"] == ""


def test_an_empty_ledger_says_who_writes_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing is in" in _said("", capsys)
    assert _said("--csv", capsys) == "group\n"
    assert _said("--openmetrics", capsys) == "# EOF\n"


@pytest.mark.usefixtures("filled")
def test_metrics_are_printed_and_kept_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    said = _said("--openmetrics --textfile saved.prom", capsys)
    labels = 'job="gpt",gpu="gpu 0",model="H200",evidence="measured",against="blocks"'

    assert f"underclock_ledger_energy_joules_total{{{labels}}} {0.9 * KWH_J}" in said
    assert f'underclock_ledger_saved_joules{{{labels},bound="high"}}' in said
    assert 'underclock_ledger_untold_energy_joules{job="gpt",gpu="gpu 2"' in said
    kept = Path("saved.prom").read_text()
    assert "# TYPE underclock_ledger_energy_joules_total counter" in kept
    assert "# EOF" not in kept


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--price 0.25", "cannot read '0.25': a price needs a currency and a unit"),
        ("--price 0.25EUR", "cannot read '0.25EUR': this is no price"),
        ("--price -1EUR/kWh", "this is no price"),
        ("--price 0.25eur/kWh", "this is no price"),
        ("--price nanEUR/kWh", "this is no price"),
        ("--grid 380", "cannot read '380' as CO2e of a kWh"),
        ("--grid 380g/MWh", "as CO2e of a kWh"),
        ("--grid 380kg/kWh", "380,000 g of CO2e for a kWh, and no grid emits more than 2,000 g"),
        ("--grid 2001g/kWh", "2,001 g of CO2e for a kWh"),
        ("--pue 0.9", "cannot read '0.9' as a power usage effectiveness"),
        ("--pue nan", "as a power usage effectiveness"),
        ("--pue 1,3", "as a power usage effectiveness"),
        ("--csv --json", "several forms at once"),
    ],
)
def test_what_is_no_rate_is_refused_and_not_kept(
    arguments: str, reason: str, capsys: pytest.CaptureFixture[str], ledger: Path
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["saved", *arguments.split()])

    said = capsys.readouterr()
    assert ended.value.code == 2
    assert reason in said.err + said.out
    assert not list(ledger.parent.glob("*.rates.json"))


@pytest.mark.usefixtures("filled")
def test_a_newer_ledger_is_a_file_that_cannot_be_used(
    ledger: Path, fails: Callable[[str], tuple[int, str]]
) -> None:
    with closing(sqlite3.connect(ledger)) as connection:
        connection.execute("PRAGMA user_version = 9")

    code, said = fails("saved")
    assert code == 4
    assert "has schema 9" in said
    assert "upgrade underclock" in said


def test_rates_that_cannot_be_read_say_so(
    ledger: Path, fails: Callable[[str], tuple[int, str]]
) -> None:
    ledger.with_name("ledger.rates.json").write_text('{"price": 1.0}')
    code, said = fails("saved")

    assert code == 4
    assert "a price has a currency" in said
    assert "remove it" in said


def test_a_ledger_that_is_turned_off_says_so(
    monkeypatch: pytest.MonkeyPatch, fails: Callable[[str], tuple[int, str]]
) -> None:
    monkeypatch.setenv(LEDGER, "")
    code, said = fails("saved")

    assert code == 2
    assert "the ledger is turned off" in said
