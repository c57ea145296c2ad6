"""Our own measurements, damaged or something else: refused, with words that say how."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sample_files import assert_refused, filled, in_company, run
from underclock.errors import DataError
from underclock.records import SCHEMAS, Evidence
from underclock.store import SampleFile, read_samples


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


def no_samples_table(path: Path) -> None:
    run(path, "DROP TABLE samples")


def other_columns(path: Path) -> None:
    run(path, "ALTER TABLE samples ADD COLUMN mood TEXT")


def column_gone(path: Path) -> None:
    run(path, "ALTER TABLE samples DROP COLUMN ticks")


def text_for_a_number(path: Path) -> None:
    run(path, "UPDATE samples SET time_s = 'soon' WHERE rowid = 2")


def negative_time(path: Path) -> None:
    run(path, "UPDATE samples SET time_s = -1.0 WHERE rowid = 2")


def infinite_energy(path: Path) -> None:
    run(path, "UPDATE samples SET energy_j = 9e999 WHERE rowid = 2")


def fractional_clock(path: Path) -> None:
    run(path, "UPDATE samples SET asked_core_mhz = 1500.5 WHERE rowid = 2")


def text_not_unicode(path: Path) -> None:
    run(path, "UPDATE samples SET kernel = CAST(x'ff' AS TEXT) WHERE rowid = 2")


def busier_than_possible(path: Path) -> None:
    run(
        path,
        "UPDATE samples SET sm_utilisation = 2.0, tensor_utilisation = 0.5, "
        "fp32_utilisation = 0.5, dram_utilisation = 0.5 WHERE rowid = 2",
    )


def last_digit(path: Path) -> None:
    run(path, "UPDATE samples SET energy_j = 100.00000000000001 WHERE rowid = 2")


def sample_gone(path: Path) -> None:
    run(path, "DELETE FROM samples WHERE rowid = 2")


def last_sample_gone(path: Path) -> None:
    run(path, "DELETE FROM samples WHERE rowid = 3")


def other_kernel(path: Path) -> None:
    run(path, "UPDATE samples SET kernel = 'copy' WHERE rowid = 2")


def other_scope(path: Path) -> None:
    run(path, "UPDATE samples SET scope = 'step' WHERE rowid = 2")


def note_changed(path: Path) -> None:
    with SampleFile.open(path, writable=True) as file:
        file.note(["clocks fell"])
    run(path, "UPDATE notes SET sentence = 'clocks rose'")


def other_count(path: Path) -> None:
    run(path, "UPDATE progress SET samples = 2")


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
        (no_samples_table, "no such table"),
        (other_columns, "sample 1 is not as it was written"),
        (column_gone, "its samples lack 'ticks'"),
        (text_for_a_number, "sample 2 is not as it was written"),
        (negative_time, "sample 2 is not as it was written"),
        (infinite_energy, "sample 2 is not as it was written"),
        (fractional_clock, "sample 2 is not as it was written"),
        (last_digit, "sample 2 is not as it was written"),
        (sample_gone, "sample 2 is not as it was written"),
        (last_sample_gone, "3 samples were written, 2 are there"),
        (other_kernel, "sample 2 is not as it was written"),
        (other_scope, "sample 2 is not as it was written"),
        (note_changed, "a note in it is not as it was written"),
        (other_count, "the number of its samples"),
        (no_count, "the number of its samples"),
        (text_not_unicode, "UTF-8"),
        (busier_than_possible, "sample 2 is not as it was written"),
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


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE mixed SET body = replace(body, '1607.3', '1607.4')", "not as it was written"),
        ("UPDATE mixed SET checksum = 1 WHERE number = 2", "measurement 2 in company"),
        ("DELETE FROM mixed WHERE number = 2", "2 measurements in company were written"),
        ("DROP TABLE mixed", "no such table"),
    ],
)
def test_damaged_measurements_in_company_are_refused(
    tmp_path: Path, statement: str, words: str
) -> None:
    path = filled(tmp_path / "samples.db", 1)
    with SampleFile.open(path, writable=True) as file:
        file.append_mixed(in_company())
        file.append_mixed(in_company(1))
    run(path, statement)
    assert_refused(path, words)


def test_measurements_in_company_of_another_step_are_refused(tmp_path: Path) -> None:
    path = filled(tmp_path / "samples.db", 1)
    with SampleFile.open(path, writable=True) as file:
        file.append_mixed(in_company(kernel="of another step"))
    assert_refused(path, "no kernel of the step")


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
