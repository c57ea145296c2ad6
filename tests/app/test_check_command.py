"""``underclock check`` as a user types it, on tables as people have them."""

import json
from pathlib import Path

import numpy as np
import pytest

from underclock.app import main

_HEADER = "gpu,kernel,core_mhz,mem_mhz,time_s,energy_j"


def _rows(kernel: str, *, cores: tuple[int, ...], repeats: int = 2) -> list[str]:
    random = np.random.default_rng(0)
    rows = []
    for core in (None, *cores):
        time_s = 1.0 + 500.0 / (core or 1800)
        energy_j = time_s * (50.0 + 90.0 * ((core or 1800) / 1500.0) ** 3)
        for _ in range(repeats):
            off = np.exp(0.002 * random.standard_normal(2))
            rows.append(f"G,{kernel},{core or ''},,{time_s * off[0]:.6g},{energy_j * off[1]:.6g}")
    return rows


@pytest.fixture(autouse=True)
def _tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder of its own, with some tables."""
    monkeypatch.chdir(tmp_path)
    cores = (900, 1100, 1300, 1500, 1700)
    good = [*_rows("a", cores=cores), *_rows("b", cores=cores)]
    once = _rows("once", cores=cores, repeats=1)
    wild = good.copy()
    name, rest = wild[4].split(",,", 1)
    wild[4] = f"{name},,{','.join(str(4 * float(cell)) for cell in rest.split(','))}"
    tables = {
        "good": good,
        "once": once,
        "some": [*good, *once],
        "wild": wild,
        "missing": good[:-4],
        "noauto": [row for row in good if ",,," not in row],
        "zero": [*good, "G,a,900,,0,10"],
        "negative": [*good, "G,a,900,,1,-10"],
    }
    for name, rows in tables.items():
        Path(f"{name}.csv").write_text("\n".join([_HEADER, *rows]) + "\n")


def _checked(command: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    main(["check", *command.split(), "--json"])
    checked: dict[str, object] = json.loads(capsys.readouterr().out)
    return checked


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "kernels", "rows"),
    [("good", 2, 12), ("some", 2, 12), ("wild", 2, 12), ("missing", 2, 10), ("noauto", 2, 10)],
)
def test_tables_as_people_have_them(
    table: str, kernels: int, rows: int, capsys: pytest.CaptureFixture[str]
) -> None:
    checked = _checked(f"{table}.csv --splits 3 --max-slowdown 5%", capsys)

    assert (checked["kernels"], checked["rows"], checked["splits"]) == (kernels, rows, 3)
    promises = checked["promises"]
    assert isinstance(promises, list)
    assert {promise["max_slowdown"] for promise in promises} == {0.05}
    for promise in promises:
        assert 0.0 <= promise["energy_coverage"]["value"] <= 1.0
        assert promise["executed_energy"]["value"] > -0.9


@pytest.mark.slow
def test_a_sentence_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "some.csv", "--splits", "2"])
    said = capsys.readouterr()
    words = " ".join(said.out.split())
    assert "24 runs of 12 rows of 2 kernels, split 2 times (seed 0)" in words
    assert "6 of 18 rows have no repeats" in said.err
    assert all(f" {budget} % " in words for budget in (0, 1, 5))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_answer(capsys: pytest.CaptureFixture[str]) -> None:
    command = "good.csv --splits 2 --max-slowdown 10%"
    first = _checked(command, capsys)
    assert _checked(command, capsys) == first
    assert _checked(f"{command} --seed 1", capsys)["promises"] != first["promises"]


@pytest.mark.parametrize(
    ("command", "code", "sentence"),
    [
        ("once.csv", 4, "no kernel with repeats both at core auto, memory auto and elsewhere"),
        ("good.csv --splits 0", 2, "cannot check 0 splits"),
        ("good.csv --splits many", 2, "not a valid integer"),
        ("good.csv --max-slowdown much", 2, "cannot read 'much' as a fraction"),
        ("good.csv --max-slowdown=-50%", 6, "changes time by -50.00 % or less"),
        ("zero.csv", 4, "time_s is 0; it must be positive"),
        ("negative.csv", 4, "energy_j is -10; it must be positive"),
        ("nowhere.csv", 4, "cannot read nowhere.csv"),
        ("good.csv --baseline 950,auto", 4, "no row has the baseline"),
    ],
)
def test_what_cannot_be_checked_is_a_sentence_and_a_code(
    command: str, code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["check", *command.split()])

    said = capsys.readouterr()
    assert ended.value.code == code
    assert sentence in " ".join(said.err.split())
    assert said.out == ""
