"""Our own measurements, damaged or something else: refused, with words that say how."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sample_files import assert_refused, filled, in_company, run
from underclock.errors import DataError
from underclock.records import SCHEMAS
from underclock.store import SampleFile
from underclock.store.database import checksum

Damage = str | Callable[[Path], None]
"""A statement of SQL, or what changes the file."""
OTHER_APPLICATION = "PRAGMA application_id = 7"
NEWER_VERSION = f"PRAGMA user_version = {SCHEMAS['samples'] + 1}"
NO_HEADER = "DELETE FROM header"
CHANGED = {number: f"window {number} is not as it was written" for number in (1, 2)}


def damaged(path: Path, damage: Damage) -> Path:
    filled(path)
    if isinstance(damage, str):
        run(path, damage)
    else:
        damage(path)
    return path


def body_no_window(path: Path) -> None:
    what, body = '["gemm"]', '{"kernel": "gemm", "energy_j": 1.0}'
    values = (what, body, checksum(2, what, body))
    run(path, "UPDATE windows SET what = ?, body = ?, checksum = ? WHERE number = 2", *values)


def note_changed(path: Path) -> None:
    with SampleFile.open(path, writable=True) as file:
        file.note(["clocks fell"])
    run(path, "UPDATE notes SET sentence = 'clocks rose'")


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def truncated_to_its_magic(path: Path) -> None:
    os.truncate(path, 16)


def pages_overwritten(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (OTHER_APPLICATION, "not a samples file"),
        (NEWER_VERSION, f"schema {SCHEMAS['samples'] + 1}"),
        (NO_HEADER, "damaged header"),
        ("UPDATE header SET body = replace(body, 'a GPU', 'b GPU')", "damaged header"),
        ("UPDATE header SET body = substr(body, 1, 40)", "damaged header"),
        ('UPDATE header SET body = \'{"name": "a step"}\'', "damaged header"),
        ("UPDATE header SET body = x'7bff7d'", "damaged header"),
        ("DROP TABLE windows", "no such table"),
        ("ALTER TABLE windows ADD COLUMN mood TEXT", "columns number, what, body, checksum, mood"),
        ("UPDATE windows SET body = replace(body, '100.0', '100.00000000000001')", CHANGED[1]),
        ("UPDATE windows SET body = replace(body, 'gemm', 'copy') WHERE number = 2", CHANGED[2]),
        ("UPDATE windows SET body = CAST(x'ff' AS TEXT) WHERE number = 2", "UTF-8"),
        (body_no_window, "missing required field `time_s`"),
        ("UPDATE windows SET checksum = 1 WHERE number = 2", CHANGED[2]),
        ("DELETE FROM windows WHERE number = 2", CHANGED[2]),
        ("DELETE FROM windows WHERE number = 3", "3 windows were written, 2 are there"),
        (note_changed, "a note in it is not as it was written"),
        ("UPDATE progress SET windows = 2", "the number of its windows"),
        ("DELETE FROM progress", "the number of its windows"),
        (truncated, "damaged"),
        (truncated_to_its_magic, "not a samples file"),
        (pages_overwritten, "damaged"),
    ],
)
def test_a_damaged_file_is_refused_and_the_message_says_how(
    tmp_path: Path, damage: Damage, word: str
) -> None:
    path = damaged(tmp_path / "s.db", damage)

    error = assert_refused(path, word)

    assert error.hint


@pytest.mark.parametrize("damage", [OTHER_APPLICATION, NEWER_VERSION, NO_HEADER, truncated])
def test_a_damaged_file_is_not_appended_to(tmp_path: Path, damage: Damage) -> None:
    path = damaged(tmp_path / "s.db", damage)
    before = path.read_bytes()

    with pytest.raises(DataError):
        SampleFile.open(path, writable=True)

    assert path.read_bytes() == before


def test_a_samples_file_that_is_missing_or_a_folder_is_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path / "missing.db", "No such file")
    assert_refused(tmp_path, "directory")
    for path in (tmp_path / "missing.db", tmp_path, tmp_path / ("n" * 256)):
        with pytest.raises(DataError, match="cannot read"):
            SampleFile.open(path, writable=True)


def test_windows_of_another_step_are_refused(tmp_path: Path) -> None:
    path = filled(tmp_path / "samples.db", 1)
    with SampleFile.open(path, writable=True) as file:
        file.append(in_company(kernel="of another step"))
    assert_refused(path, "no kernel of the step")


class TestToldApartByContent:
    def test_junk_named_db_is_not_read_as_a_table(self, tmp_path: Path) -> None:
        path = tmp_path / "s.db"
        path.write_bytes(b"junk" * 100)

        error = assert_refused(path, "no SQLite database")

        assert "underclock measure" in error.hint

    @pytest.mark.parametrize("body", ['{"schema": 1}', "[1, 2]"])
    def test_json_given_as_samples_is_named_as_such(self, tmp_path: Path, body: str) -> None:
        path = tmp_path / "plan.json"
        path.write_text(body)

        error = assert_refused(path, "is JSON")

        assert "samples.db or a CSV table" in error.hint
