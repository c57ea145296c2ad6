"""Our own measurements, damaged or something else: refused, with words that say how."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from sample_files import assert_refused, filled, in_company, run
from underclock.errors import DataError
from underclock.records import SCHEMAS, Evidence
from underclock.store import SampleFile, read_samples
from underclock.store.database import checksum


def other_application(path: Path) -> None:
    run(path, "PRAGMA application_id = 7")


def newer_version(path: Path) -> None:
    run(path, f"PRAGMA user_version = {SCHEMAS['samples'] + 1}")


def no_header(path: Path) -> None:
    run(path, "DELETE FROM header")


def header_changed(path: Path) -> None:
    run(path, "UPDATE header SET body = replace(body, 'a GPU', 'b GPU')")


def header_cut_off(path: Path) -> None:
    run(path, "UPDATE header SET body = substr(body, 1, 40)")


def header_of_another_kind(path: Path) -> None:
    run(path, "UPDATE header SET body = ?", '{"name": "a step"}')


def header_not_text(path: Path) -> None:
    run(path, "UPDATE header SET body = ?", b'{"workload": "\xff"}')


def no_windows_table(path: Path) -> None:
    run(path, "DROP TABLE windows")


def other_columns(path: Path) -> None:
    run(path, "ALTER TABLE windows ADD COLUMN mood TEXT")


def number_changed(path: Path) -> None:
    run(path, "UPDATE windows SET body = replace(body, '100.0', '100.00000000000001')")


def kernel_changed(path: Path) -> None:
    run(path, "UPDATE windows SET body = replace(body, 'gemm', 'copy') WHERE number = 2")


def body_not_text(path: Path) -> None:
    run(path, "UPDATE windows SET body = CAST(x'ff' AS TEXT) WHERE number = 2")


def body_no_window(path: Path) -> None:
    what, body = '["gemm"]', '{"kernel": "gemm", "energy_j": 1.0}'
    values = (what, body, checksum(2, what, body))
    run(path, "UPDATE windows SET what = ?, body = ?, checksum = ? WHERE number = 2", *values)


def checksum_changed(path: Path) -> None:
    run(path, "UPDATE windows SET checksum = 1 WHERE number = 2")


def window_gone(path: Path) -> None:
    run(path, "DELETE FROM windows WHERE number = 2")


def last_window_gone(path: Path) -> None:
    run(path, "DELETE FROM windows WHERE number = 3")


def note_changed(path: Path) -> None:
    with SampleFile.open(path, writable=True) as file:
        file.note(["clocks fell"])
    run(path, "UPDATE notes SET sentence = 'clocks rose'")


def other_count(path: Path) -> None:
    run(path, "UPDATE progress SET windows = 2")


def no_count(path: Path) -> None:
    run(path, "DELETE FROM progress")


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
        (other_application, "not a samples file"),
        (newer_version, f"schema {SCHEMAS['samples'] + 1}"),
        (no_header, "damaged header"),
        (header_changed, "damaged header"),
        (header_cut_off, "damaged header"),
        (header_of_another_kind, "damaged header"),
        (header_not_text, "damaged header"),
        (no_windows_table, "no such table"),
        (other_columns, "its windows have the columns number, what, body, checksum, mood"),
        (number_changed, "window 1 is not as it was written"),
        (kernel_changed, "window 2 is not as it was written"),
        (body_not_text, "UTF-8"),
        (body_no_window, "missing required field `time_s`"),
        (checksum_changed, "window 2 is not as it was written"),
        (window_gone, "window 2 is not as it was written"),
        (last_window_gone, "3 windows were written, 2 are there"),
        (note_changed, "a note in it is not as it was written"),
        (other_count, "the number of its windows"),
        (no_count, "the number of its windows"),
        (truncated, "damaged"),
        (truncated_to_its_magic, "not a samples file"),
        (pages_overwritten, "damaged"),
    ],
)
def test_a_damaged_file_is_refused_and_the_message_says_how(
    tmp_path: Path, damage: Callable[[Path], None], word: str
) -> None:
    path = filled(tmp_path / "s.db")
    damage(path)

    error = assert_refused(path, word)

    assert error.hint


@pytest.mark.parametrize("damage", [other_application, newer_version, no_header, truncated])
def test_a_damaged_file_is_not_appended_to(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = filled(tmp_path / "s.db")
    damage(path)
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


def test_launches_that_do_not_make_the_step_are_refused(tmp_path: Path) -> None:
    path = filled(tmp_path / "samples.db", 1)
    long = msgspec.structs.replace(in_company(kernel=""), kernel_s=(0.0006, 0.0015))
    with SampleFile.open(path, writable=True) as file:
        file.append(long)
    assert_refused(path, "launches inside the step sum up to 0.0504 s, and it took 0.03333 s")


class TestToldApartByContent:
    def test_junk_named_db_is_not_read_as_a_table(self, tmp_path: Path) -> None:
        path = tmp_path / "s.db"
        path.write_bytes(b"junk" * 100)

        error = assert_refused(path, "no SQLite database")

        assert "underclock measure" in error.hint

    def test_an_empty_file_named_db_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "s.db"
        path.touch()

        assert_refused(path, "no SQLite database")

    @pytest.mark.parametrize("body", ['{"schema": 1}', "[1, 2]"])
    def test_json_given_as_samples_is_named_as_such(self, tmp_path: Path, body: str) -> None:
        path = tmp_path / "plan.json"
        path.write_text(body)

        error = assert_refused(path, "is JSON")

        assert "samples.db or a CSV table" in error.hint

    def test_a_samples_file_needs_no_suffix(self, tmp_path: Path) -> None:
        assert len(read_samples(filled(tmp_path / "samples.csv")).samples) == 3

    def test_anything_else_is_read_as_a_table(self, tmp_path: Path) -> None:
        path = tmp_path / "sweep.txt"
        path.write_text("gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w\ng,k,,,1,1,\n")

        assert read_samples(path).evidence is Evidence.REPLAYED
