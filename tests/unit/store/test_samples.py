"""Our own measurements: there and back, resumed, killed, damaged."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.errors import DataError, MeasurementError, UsageError
from underclock.records import (
    AUTO,
    SCHEMAS,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    Mix,
    MixSample,
    Sample,
    SampleSet,
    ThrottleReason,
    Utilisation,
)
from underclock.store import SampleFile, read_samples

HEADER = SampleSet(
    evidence=Evidence.SIMULATED,
    gpu=GpuInfo(name="a GPU", driver="1.2", power_limit_w=350.0),
    workload="a step",
    kernels=(Kernel(name="gemm", count=24), Kernel(name="copy")),
    fingerprint="0123456789abcdef",
    expected_samples=10,
    order=(0, 1) * 24,
    warnings=("take care",),
)

whole = st.integers(0, 2**31)
amounts = st.floats(1e-9, 1e9)
mhz = st.none() | st.integers(1, 20_000)
clocks = st.builds(Clocks, core_mhz=mhz, mem_mhz=mhz)
fractions = st.floats(0.0, 1.1)
utilisations = st.builds(
    Utilisation, sm=fractions, tensor=fractions, fp32=fractions, dram=fractions
)
samples = st.builds(
    Sample,
    kernel=st.sampled_from(["gemm", "copy"]),
    asked=clocks,
    repeat=st.integers(0, 100),
    time_s=amounts,
    energy_j=amounts,
    observed=st.none() | clocks.filter(lambda seen: not seen.is_auto),
    window_s=st.none() | amounts,
    ticks=st.none() | whole,
    temperature_c=st.none() | st.floats(-20.0, 120.0),
    throttle_reasons=st.none() | whole.map(ThrottleReason),
    utilisation=st.none() | utilisations,
)


def sample(repeat: int = 0, kernel: str = "gemm", asked: Clocks = AUTO) -> Sample:
    return Sample(kernel=kernel, asked=asked, repeat=repeat, time_s=0.5, energy_j=100.0)


def filled(path: Path, count: int = 3) -> Path:
    with SampleFile.create(path, HEADER) as file:
        for repeat in range(count):
            file.append(sample(repeat))
    return path


def run(path: Path, statement: str, *values: object) -> None:
    """Change a file behind our back."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, values)


def assert_refused(path: Path, *words: str) -> DataError:
    """Reading is a `DataError` that names the file, says these words, and what to do."""
    with pytest.raises(DataError) as caught:
        read_samples(path)
    message = str(caught.value)
    assert str(path) in message
    for word in words:
        assert word in message
    assert "Traceback" not in message
    assert "\n" not in message
    return caught.value


@settings(max_examples=15)
@given(
    kernels=st.lists(samples, max_size=8, unique_by=lambda s: (s.kernel, s.asked, s.repeat)),
    steps=st.lists(samples, max_size=3, unique_by=lambda s: (s.kernel, s.asked, s.repeat)),
)
def test_samples_come_back_as_they_went_in_the_order_taken(
    tmp_path_factory: pytest.TempPathFactory, kernels: list[Sample], steps: list[Sample]
) -> None:
    path = tmp_path_factory.mktemp("there") / "samples.db"
    with SampleFile.create(path, HEADER) as file:
        for each in kernels:
            file.append(each)
        for each in steps:
            file.append(each, in_situ=True)
        assert file.sample_set().samples == tuple(kernels)

    found = read_samples(path)

    assert found.samples == tuple(kernels)
    assert found.in_situ == tuple(steps)


def test_what_a_step_waits_for_is_kept(tmp_path: Path) -> None:
    shares = (0.0, 0.0625, 1.0)
    kernels = tuple(Kernel(name=f"k{n}", waited_for=share) for n, share in enumerate(shares))
    with SampleFile.create(
        tmp_path / "s.db", msgspec.structs.replace(HEADER, kernels=kernels, order=(0, 1, 2))
    ):
        pass

    assert tuple(kernel.waited_for for kernel in read_samples(tmp_path / "s.db").kernels) == shares


def test_the_header_comes_back_as_it_went(tmp_path: Path) -> None:
    with SampleFile.create(tmp_path / "s.db", HEADER) as file:
        assert file.header == HEADER

    assert read_samples(tmp_path / "s.db") == HEADER


def test_a_closed_file_is_one_file(tmp_path: Path) -> None:
    filled(tmp_path / "s.db")

    assert [p.name for p in tmp_path.iterdir()] == ["s.db"]


def test_a_file_is_resumed_where_it_stopped(tmp_path: Path) -> None:
    path = filled(tmp_path / "s.db", 2)

    with SampleFile.open(path, writable=True) as file:
        assert len(file.sample_set().samples) == 2
        file.append(sample(2))

    assert [s.repeat for s in read_samples(path).samples] == [0, 1, 2]


def in_company(repeat: int = 0, kernel: str = "gemm", mix: Mix | None = None) -> MixSample:
    return MixSample(
        kernel=kernel,
        mix=mix or Mix(hot=2),
        repeat=repeat,
        core_mhz=1607.3,
        core_spread_mhz=11.0,
        round_s=0.1 / 3,
        round_j=20.0,
        kernel_s=(0.012, 0.007) if not kernel else (0.012,),
        hot_s=0.002,
        window_s=1.0,
        throttle_reasons=ThrottleReason.SW_POWER_CAP,
    )


def test_measurements_in_company_come_back_beside_the_others(tmp_path: Path) -> None:
    path = filled(tmp_path / "samples.db", 1)
    spread = in_company(kernel="", mix=Mix(hot=4, idle_s=1e-3, after=(1, 3)))
    spread = msgspec.structs.replace(spread, kernel_mhz=(1611.2, 1603.4))
    first = [in_company(), in_company(1), in_company(kernel=""), spread]
    with SampleFile.open(path, writable=True) as file:
        for one in first:
            file.append_mixed(one, gpu_s=2.0)
    with SampleFile.open(path, writable=True) as file:
        file.append_mixed(in_company(mix=Mix(idle_s=0.001)))
        file.append(sample(7))
        assert file.gpu_s >= 6.0

    read = SampleFile.read(path)
    assert read.mixed == (*first, in_company(mix=Mix(idle_s=0.001)))
    assert len(read.samples) == 2


def test_the_same_measurement_in_company_twice_is_refused(tmp_path: Path) -> None:
    with SampleFile.open(filled(tmp_path / "samples.db", 1), writable=True) as file:
        file.append_mixed(in_company())
        with pytest.raises(MeasurementError, match="already holds"):
            file.append_mixed(in_company())
        assert len(file.sample_set().mixed) == 1


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


def test_a_reader_sees_what_a_writer_has_appended_so_far(tmp_path: Path) -> None:
    with SampleFile.create(tmp_path / "s.db", HEADER) as writer:
        for repeat in range(3):
            writer.append(sample(repeat))
            assert len(read_samples(tmp_path / "s.db").samples) == repeat + 1


def test_reading_changes_nothing(tmp_path: Path) -> None:
    path = filled(tmp_path / "s.db")
    before = path.read_bytes()

    with SampleFile.open(path, writable=False) as file, pytest.raises(DataError, match="readonly"):
        file.append(sample(9))

    assert path.read_bytes() == before
    assert len(read_samples(path).samples) == 3


@pytest.mark.parametrize("asked", [AUTO, Clocks(core_mhz=300), Clocks(core_mhz=300, mem_mhz=405)])
@pytest.mark.parametrize("in_situ", [False, True])
def test_the_same_measurement_twice_is_refused(
    tmp_path: Path, asked: Clocks, *, in_situ: bool
) -> None:
    path = tmp_path / "s.db"
    with SampleFile.create(path, HEADER) as file:
        file.append(sample(asked=asked), in_situ=in_situ)
        with pytest.raises(MeasurementError, match="already holds") as caught:
            file.append(sample(asked=asked), in_situ=in_situ)
        # Another repeat, kernel or scope is another measurement.
        file.append(sample(1, asked=asked), in_situ=in_situ)
        file.append(sample(kernel="copy", asked=asked), in_situ=in_situ)
        file.append(sample(asked=asked), in_situ=not in_situ)

    assert str(path) in str(caught.value)
    assert len(read_samples(path).samples) + len(read_samples(path).in_situ) == 4


class TestCreate:
    def test_an_existing_file_is_never_replaced(self, tmp_path: Path) -> None:
        path = filled(tmp_path / "s.db")

        with pytest.raises(UsageError, match="will not overwrite"):
            SampleFile.create(path, HEADER)

        assert len(read_samples(path).samples) == 3

    def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no folder"):
            SampleFile.create(tmp_path / "missing" / "s.db", HEADER)

    @pytest.mark.parametrize("folder", ["/proc", "/sys"])
    def test_a_folder_that_takes_no_files_is_our_error(self, folder: str) -> None:
        with pytest.raises(UsageError, match="cannot write"):
            SampleFile.create(Path(folder) / "s.db", HEADER)

    @pytest.mark.parametrize("length", [248, 255, 256])
    def test_a_name_with_no_room_for_its_journal_is_our_error(
        self, tmp_path: Path, length: int
    ) -> None:
        with pytest.raises(UsageError, match="cannot write"):
            SampleFile.create(tmp_path / ("n" * length), HEADER)

        assert list(tmp_path.iterdir()) == []

    def test_what_an_earlier_kill_left_aside_is_no_obstacle(self, tmp_path: Path) -> None:
        (tmp_path / ".s.db.partial").write_bytes(b"half a file")

        filled(tmp_path / "s.db")

        assert [p.name for p in tmp_path.iterdir()] == ["s.db"]


class TestNotes:
    def test_they_follow_the_headers_warnings_in_the_order_taken(self, tmp_path: Path) -> None:
        path = tmp_path / "s.db"
        with SampleFile.create(path, HEADER) as file:
            file.note(["a neighbour computes", "clocks fell"])
            file.note(["it is hot"])
            noted = file.sample_set().warnings

        assert noted == ("take care", "a neighbour computes", "clocks fell", "it is hot")
        assert read_samples(path).warnings == noted

    def test_what_is_there_already_is_not_repeated(self, tmp_path: Path) -> None:
        path = tmp_path / "s.db"
        with SampleFile.create(path, HEADER) as file:
            file.note(["clocks fell", "take care", "clocks fell"])
        with SampleFile.open(path, writable=True) as file:
            file.note(["clocks fell", "it is hot"])

        assert read_samples(path).warnings == ("take care", "clocks fell", "it is hot")

    def test_they_change_neither_header_nor_samples(self, tmp_path: Path) -> None:
        path = filled(tmp_path / "s.db")
        with SampleFile.open(path, writable=True) as file:
            file.note(["clocks fell"])
            assert file.header == HEADER
        assert len(read_samples(path).samples) == 3

    def test_a_reader_may_add_none(self, tmp_path: Path) -> None:
        path = filled(tmp_path / "s.db")
        with (
            SampleFile.open(path, writable=False) as file,
            pytest.raises(DataError, match="readonly"),
        ):
            file.note(["clocks fell"])


APPEND_FOREVER = """
import itertools, sys
from pathlib import Path
from underclock.records import Sample
from underclock.store import SampleFile

with SampleFile.open(Path(sys.argv[1]), writable=True) as file:
    for repeat in itertools.count():
        file.append(Sample(kernel="gemm", repeat=repeat, time_s=0.5, energy_j=100.0))
        print(repeat, flush=True)
"""


@pytest.mark.parametrize("reports", [1, 7, 60])
def test_every_sample_reported_before_a_kill_is_there_afterwards(
    tmp_path: Path, reports: int
) -> None:
    path = filled(tmp_path / "s.db", 0)

    with subprocess.Popen(
        [sys.executable, "-c", APPEND_FOREVER, str(path)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for _ in range(reports):
            reported = int(child.stdout.readline())
        os.kill(child.pid, signal.SIGKILL)
        # What it still had in the pipe was reported too.
        reported = max([reported, *(int(line) for line in child.stdout.read().splitlines())])
    assert child.returncode == -signal.SIGKILL

    found = [s.repeat for s in read_samples(path).samples]
    # One more may have been written and not reported any more.
    assert found in (list(range(reported + 1)), list(range(reported + 2)))

    with SampleFile.open(path, writable=True) as file:
        file.append(sample(len(found)))
    assert len(read_samples(path).samples) == len(found) + 1
    assert [p.name for p in tmp_path.iterdir()] == ["s.db"]


def test_a_log_left_by_a_kill_does_not_spoil_a_new_file_of_that_name(tmp_path: Path) -> None:
    path = filled(tmp_path / "s.db", 0)
    with subprocess.Popen(
        [sys.executable, "-c", APPEND_FOREVER, str(path)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for _ in range(40):
            child.stdout.readline()
        os.kill(child.pid, signal.SIGKILL)
    assert path.with_name("s.db-wal").exists()
    path.unlink()

    with SampleFile.create(path, HEADER) as file:
        file.append(sample(0))

    assert [s.repeat for s in read_samples(path).samples] == [0]


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
