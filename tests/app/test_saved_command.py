"""`underclock saved` as a shell sees it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from made_entries import KWH_J, gpu, run, untold
from underclock.app import main
from underclock.ledger import LEDGER, append_run
from underclock.records import Evidence

_RATES = "--price 0.25EUR/kWh --grid 400g/kWh --pue 1.5"


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "ledger.jsonl"
    monkeypatch.setenv(LEDGER, str(path))
    return path


@pytest.fixture
def filled(ledger: Path) -> None:
    append_run(ledger, run())
    append_run(ledger, run(gpu(gpu="gpu 1"), run="2", job="bert", evidence=Evidence.SIMULATED))
    append_run(ledger, run(untold(gpu="gpu 2"), run="3"))


def _said(arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    main(["saved", *arguments.split()])
    return capsys.readouterr().out


@pytest.mark.usefixtures("filled")
def test_without_a_price_no_money_is_shown_and_it_says_how_to_give_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = _said("", capsys)

    assert "0.10 (0.05 to 0.15)" in said
    assert "EUR" not in said.replace("0.25EUR/kWh", "")
    assert "no money is shown, for no price was said: --price 0.25EUR/kWh" in said
    assert "no CO2e is shown" in said
    assert "not counted, measured: 0.9 kWh without a known saving" in said
    assert "all: measured, blocks" in said  # however narrow the terminal is
    assert "all: simulated, blocks" in said


@pytest.mark.usefixtures("filled")
def test_money_and_co2e_are_of_what_the_grid_gives(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = json.loads(_said(f"--json {_RATES}", capsys))

    measured, simulated = found["saved"]
    assert (measured["evidence"], simulated["evidence"]) == ("measured", "simulated")
    assert measured["saved"]["kWh"][0] == pytest.approx(0.1)
    assert measured["saved"]["EUR"][0] == pytest.approx(0.1 * 1.5 * 0.25)
    low_kwh = measured["saved"]["kWh"][1]
    assert measured["saved"]["CO2e, kg"][1] == pytest.approx(low_kwh * 1.5 * 0.4)
    assert measured["untold_j"] == pytest.approx(0.9 * KWH_J)
    assert found["rates"] == {"price": "0.25EUR/kWh", "grid": "400g/kWh", "pue": "1.5"}
    said = _said("--price 0.25EUR/kWh", capsys)
    assert "EUR" in said
    assert "what the GPUs alone draw, for no PUE was said" in said
    monkeypatch.setenv("UNDERCLOCK_PRICE", "100USD/MWh")
    assert json.loads(_said("--json", capsys))["saved"][0]["saved"]["USD"][0] == pytest.approx(0.01)


@pytest.mark.usefixtures("filled")
def test_runs_are_shown_by_job(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(_said("--by job --json", capsys))["saved"]

    assert [row["group"] for row in rows] == ["bert", "gpt"]
    assert rows[1]["saved"]["kWh"][2] == pytest.approx(0.15, abs=0.002)
    assert "bert: simulated" in _said("--by job", capsys)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--price 0.25", "cannot read '0.25': a price needs a number, a currency and a unit"),
        ("--price 0.25EUR", "cannot read '0.25EUR': a price needs"),
        ("--price -1EUR/kWh", "a price needs"),
        ("--price 0.25eur/kWh", "a price needs"),
        ("--price nanEUR/kWh", "a price needs"),
        ("--grid 380", "cannot read '380' as CO2e of a kWh"),
        ("--grid 380g/MWh", "as CO2e of a kWh"),
        ("--grid 380kg/kWh", "grids emit up to 2000 g"),
        ("--grid 2001g/kWh", "grids emit up to 2000 g"),
        ("--pue 0.9", "cannot read '0.9' as a power usage effectiveness"),
        ("--pue nan", "as a power usage effectiveness"),
        ("--pue 1,3", "as a power usage effectiveness"),
    ],
)
def test_what_is_no_rate_is_refused(
    arguments: str, reason: str, fails: Callable[[str], tuple[int, str]]
) -> None:
    code, said = fails(f"saved {arguments}")

    assert code == 2
    assert reason in said


def test_a_ledger_that_is_turned_off_says_so(
    monkeypatch: pytest.MonkeyPatch, fails: Callable[[str], tuple[int, str]]
) -> None:
    monkeypatch.setenv(LEDGER, "")
    code, said = fails("saved")

    assert code == 2
    assert "the ledger is turned off" in said
