"""What a row of a table may say besides time and energy."""

from pathlib import Path

import pytest

from underclock.errors import DataError
from underclock.records import Clocks
from underclock.store import read_table
from underclock.store.table_rows import READINGS

_HEADER = "gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w," + ",".join(READINGS)
_ROW = "G,a,,,1.0,100,100,1980,3201,51.5,4"


def _table(folder: Path, *rows: str, header: str = _HEADER) -> Path:
    path = folder / "t.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_what_was_read_is_there(tmp_path: Path) -> None:
    (sample,) = read_table(_table(tmp_path, _ROW)).samples

    assert sample.observed == Clocks(core_mhz=1980, mem_mhz=3201)
    assert (sample.temperature_c, sample.throttle_reasons) == (51.5, 4)


def test_counters_of_an_earlier_version_are_read_past(tmp_path: Path) -> None:
    header = f"{_HEADER},sm,tensor,fp32,dram"
    found = read_table(_table(tmp_path, f"{_ROW},0.9,0.1,0.2,0.8", header=header))
    plain = read_table(_table(tmp_path, _ROW))

    assert (found.samples, found.warnings) == (plain.samples, plain.warnings)


def test_an_empty_cell_was_not_read(tmp_path: Path) -> None:
    (sample,) = read_table(_table(tmp_path, "G,a,,,1.0,100,100" + "," * len(READINGS))).samples

    assert sample.observed is None
    assert sample.temperature_c is None
    assert sample.throttle_reasons is None


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("1980", "fast", "line 2: observed_core_mhz is 'fast', not a number"),
        ("1980", "-1980", "line 2: core_mhz must be positive"),
        ("51.5", "nan", "line 2: temperature_c is 'nan'"),
    ],
)
def test_a_reading_that_cannot_be_is_refused(
    old: str, new: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=sentence):
        read_table(_table(tmp_path, _ROW.replace(old, new)))


def test_a_table_whose_clocks_did_not_hold_says_so(tmp_path: Path) -> None:
    rows = [
        "G,a,1980,,1.0,100,100,1975,3201,51.5,0",
        "G,a,1800,,1.1,95,,1410,3201,51.5,4",
        "G,a,1500,,1.2,90,,1350,3201,51.5,4",
    ]
    held = read_table(_table(tmp_path, rows[0]))
    slipped = read_table(_table(tmp_path, *rows))

    assert not any("clocks" in words for words in held.warnings)
    (words,) = [words for words in slipped.warnings if "clocks did not hold" in words]
    assert "in 2 of 3 rows" in words
    assert "line 3: core_mhz 1800 was asked for, and 1410 was read" in words
