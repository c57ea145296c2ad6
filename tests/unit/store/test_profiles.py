"""Profiles of instructions as CSV: read as Zeus writes them; refused with line or instruction."""

from pathlib import Path

import pytest

from underclock.errors import DataError
from underclock.store.tables import read_profiles

HEADER = "stage,instruction,frequency,time,energy\n"


def written(tmp_path: Path, body: str, header: str = HEADER) -> Path:
    path = tmp_path / "profile.csv"
    path.write_text(header + body)
    return path


def test_the_highest_clock_of_a_stage_is_auto_where_none_is_called_so(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "0,forward,1410,0.1,20\n0,forward,1200,0.12,18\n0,backward,1410,0.2,40\n"
        "1,Forward,900,0.3,10\n1,B,900,0.4,30\n1,b,auto,0.35,36\n1,f,,0.2,12\n",
    )
    found = read_profiles(path)
    assert list(found) == [
        "stage 0 backward",
        "stage 0 forward",
        "stage 1 backward",
        "stage 1 forward",
    ]
    forward = found["stage 0 forward"]
    assert [row.core_mhz for row in forward.rows] == [1200, 1410]
    assert forward.rows[forward.auto].core_mhz == 1410
    other = found["stage 1 backward"]
    assert other.rows[other.auto].core_mhz is None
    assert other.rows[other.auto].energy_j == 36.0


def test_repeats_are_a_mean_and_its_error(tmp_path: Path) -> None:
    row = (
        read_profiles(written(tmp_path, "0,forward,900,1.0,10\n0,forward,900,3.0,14\n"))
        .popitem()[1]
        .rows[0]
    )
    assert (row.time_s, row.energy_j) == (2.0, 12.0)
    assert (row.time_error_s, row.energy_error_j) == pytest.approx((1.0, 2.0))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "holds no rows"),
        ("0,forwards,900,1,1\n", "line 2: instruction is 'forwards'"),
        ("0,forward,fast,1,1\n", "line 2: frequency is 'fast'"),
        ("0,forward,900,0,1\n", "line 2: time is '0'"),
        ("0,forward,900,1\n", "line 2: energy is ''"),
        ("0,forward,900,1,nan\n", "energy is 'nan'"),
        ("-1,forward,900,1,1\n", "stage is '-1'"),
        ("1,forward,900,1,1\n", "has stages 1"),
        (
            "0,forward,900,1,1\n0,backward,800,1,1\n",
            "stage 0 backward has no row at 900 MHz, which is auto for that stage",
        ),
        ("0,forward,auto,1,1\n0,backward,800,1,1\n", "stage 0 backward has no row at auto"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_profiles(written(tmp_path, body))


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="lacks the column energy"):
        read_profiles(written(tmp_path, "", "stage,instruction,frequency,time\n"))
    with pytest.raises(DataError, match="cannot read"):
        read_profiles(tmp_path / "none.csv")
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not a CSV table"):
        read_profiles(binary)


@pytest.mark.parametrize(
    ("energy", "words", "hint"),
    [("3e6", "3e\\+08 W", "are the energies in mJ"), ("3e-4", "0.03 W", "the energies in kJ")],
)
def test_powers_that_no_gpu_draws_are_refused(
    energy: str, words: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=f"line 2: .* is {words}, and GPUs draw") as refused:
        read_profiles(written(tmp_path, f"0,forward,1410,0.01,{energy}\n"))
    assert hint in refused.value.hint
