"""Our own measurements: there and back, resumed, killed."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sample_files import HEADER, assert_refused, filled, in_company, run, sample
from underclock.errors import DataError, MeasurementError, UsageError
from underclock.records import AUTO, SCHEMAS, Clocks, ThrottleReason, Window
from underclock.store import SampleFile, read_samples
from underclock.store.database import checksum

whole = st.integers(0, 2**31)
amounts = st.floats(1e-9, 1e9)
powers_w = st.floats(0.2, 300.0)
mhz = st.none() | st.integers(10, 20_000)
clocks = st.builds(Clocks, core_mhz=mhz, mem_mhz=mhz)
samples = st.builds(
    Window,
    kernel=st.sampled_from(["gemm", "copy", ""]),
    asked=clocks,
    repeat=st.integers(0, 100),
    time_s=amounts,
    energy_j=powers_w,
    observed=st.none() | clocks.filter(lambda seen: not seen.is_auto),
    window_s=st.none() | amounts,
    ticks=st.none() | whole,
    temperature_c=st.none() | st.floats(-20.0, 120.0),
    throttle_reasons=st.none() | whole.map(ThrottleReason),
).map(lambda each: msgspec.structs.replace(each, energy_j=each.energy_j * each.time_s))


@pytest.mark.parametrize("power_w", [1e-3, 0.05, 2.6e4, 9.6e15])
def test_a_window_whose_power_no_gpu_draws_spoils_no_other(tmp_path: Path, power_w: float) -> None:
    windows = [
        Window(kernel="gemm", repeat=repeat, time_s=0.1, energy_j=0.1 * each_w)
        for repeat, each_w in enumerate((200.0, power_w, 210.0))
    ]
    path = tmp_path / "samples.db"
    with SampleFile.create(path, HEADER) as file:
        for each in windows:
            file.append(each)

    found = read_samples(path)

    assert found.windows == (windows[0], windows[2])
    assert "1 of 3 windows were left out" in found.warnings[-1]


@settings(max_examples=15)
@given(windows=st.lists(samples, max_size=8, unique_by=lambda s: (s.kernel, s.asked, s.repeat)))
def test_windows_come_back_as_they_went_in_the_order_taken(
    tmp_path_factory: pytest.TempPathFactory, windows: list[Window]
) -> None:
    path = tmp_path_factory.mktemp("there") / "samples.db"
    with SampleFile.create(path, HEADER) as file:
        for each in windows:
            file.append(each)
        assert file.sample_set().windows == tuple(windows)

    found = read_samples(path)

    assert found.windows == tuple(windows)
    assert found.samples == tuple(each for each in windows if each.kernel)
    auto_steps = tuple(each for each in windows if not each.kernel and each.asked.is_auto)
    assert found.in_situ == auto_steps


def test_a_file_is_resumed_where_it_stopped(tmp_path: Path) -> None:
    path = filled(tmp_path / "s.db", 2)

    with SampleFile.open(path, writable=True) as file:
        assert len(file.sample_set().samples) == 2
        file.append(sample(2))

    assert [s.repeat for s in read_samples(path).samples] == [0, 1, 2]


def test_a_reader_sees_what_a_writer_has_appended_so_far(tmp_path: Path) -> None:
    with SampleFile.create(tmp_path / "s.db", HEADER) as writer:
        for repeat in range(3):
            writer.append(sample(repeat))
            assert len(read_samples(tmp_path / "s.db").samples) == repeat + 1


@pytest.mark.parametrize("asked", [AUTO, Clocks(core_mhz=300), Clocks(core_mhz=300, mem_mhz=405)])
@pytest.mark.parametrize("kernel", ["gemm", ""])
def test_the_same_measurement_twice_is_refused(tmp_path: Path, asked: Clocks, kernel: str) -> None:
    path = tmp_path / "s.db"
    with SampleFile.create(path, HEADER) as file:
        file.append(sample(asked=asked, kernel=kernel))
        with pytest.raises(MeasurementError, match="already holds") as caught:
            file.append(sample(asked=asked, kernel=kernel))
        # Another repeat, kernel or mix is another measurement.
        file.append(sample(1, asked=asked, kernel=kernel))
        file.append(sample(kernel="copy", asked=asked))
        mixed = msgspec.structs.replace(in_company(kernel=kernel), asked=asked)
        file.append(mixed)
        with pytest.raises(MeasurementError, match="already holds"):
            file.append(mixed)

    assert str(path) in str(caught.value)
    assert len(read_samples(path).windows) == 4


class TestCreate:
    def test_an_existing_file_is_never_replaced(self, tmp_path: Path) -> None:
        path = filled(tmp_path / "s.db")

        with pytest.raises(UsageError, match="will not overwrite"):
            SampleFile.create(path, HEADER)

        assert len(read_samples(path).samples) == 3

    def test_what_an_earlier_kill_left_aside_is_no_obstacle(self, tmp_path: Path) -> None:
        (tmp_path / ".s.db.partial").write_bytes(b"half a file")

        filled(tmp_path / "s.db")

        assert [p.name for p in tmp_path.iterdir()] == ["s.db"]


class TestNotes:
    def test_what_is_there_already_is_not_repeated(self, tmp_path: Path) -> None:
        path = tmp_path / "s.db"
        with SampleFile.create(path, HEADER) as file:
            file.note(["clocks fell", "take care", "clocks fell"])
        with SampleFile.open(path, writable=True) as file:
            file.note(["clocks fell", "it is hot"])
            assert file.header == HEADER

        assert read_samples(path).warnings == ("take care", "clocks fell", "it is hot")


APPEND_FOREVER = """
import itertools, sys
from pathlib import Path
from underclock.records import Window
from underclock.store import SampleFile

with SampleFile.open(Path(sys.argv[1]), writable=True) as file:
    for repeat in itertools.count():
        file.append(Window(kernel="gemm", repeat=repeat, time_s=0.5, energy_j=100.0))
        print(repeat, flush=True)
"""


def _killed(path: Path, reports: int) -> int:
    """Append until some are reported, then kill; return the last that was reported."""
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
    return reported


@pytest.mark.parametrize("reports", [1, 60])
def test_every_sample_reported_before_a_kill_is_there_afterwards(
    tmp_path: Path, reports: int
) -> None:
    path = filled(tmp_path / "s.db", 0)
    reported = _killed(path, reports)

    found = [s.repeat for s in read_samples(path).samples]
    # One more may have been written and not reported any more.
    assert found in (list(range(reported + 1)), list(range(reported + 2)))

    with SampleFile.open(path, writable=True) as file:
        file.append(sample(len(found)))
    assert len(read_samples(path).samples) == len(found) + 1
    assert [p.name for p in tmp_path.iterdir()] == ["s.db"]


def test_who_comes_second_is_told_and_who_came_first_goes_on(tmp_path: Path) -> None:
    with SampleFile.create(tmp_path / "s.db", HEADER) as first:
        first.append(sample(0))
        with pytest.raises(UsageError, match="another process is measuring into") as caught:
            SampleFile.open(tmp_path / "s.db", writable=True)
        first.append(sample(1))
        assert len(read_samples(tmp_path / "s.db").samples) == 2

    assert "wait until it has ended" in caught.value.hint
    with SampleFile.open(tmp_path / "s.db", writable=True) as again:
        again.append(sample(2))


def test_time_spent_is_counted_over_all_runs(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with SampleFile.create(path, HEADER) as file:
        assert file.gpu_s == 0.0
        file.append(sample(0), gpu_s=60.5)
        file.spend(9.5)
    with SampleFile.open(path, writable=True) as file:
        assert file.gpu_s == 70.0
        file.append(sample(1), gpu_s=1.0)
        assert file.gpu_s == 71.0


@contextmanager
def _room_for(size: int) -> Iterator[None]:
    """Let no file grow beyond a size, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_without_room_is_no_damage_and_loses_nothing(tmp_path: Path) -> None:
    path = filled(tmp_path / "s.db")
    acknowledged = 3

    with (  # noqa: PT012 - until it is full
        _room_for(150_000),
        pytest.raises(DataError) as caught,
        SampleFile.open(path, writable=True) as file,
    ):
        for repeat in range(3, 5000):
            file.append(sample(repeat))
            acknowledged += 1

    assert "damaged" not in str(caught.value)
    assert "cannot use" in str(caught.value)
    assert "the file is whole" in caught.value.hint
    assert 3 < acknowledged == len(read_samples(path).samples)


def test_a_new_file_on_a_disk_without_room_is_none(tmp_path: Path) -> None:
    with _room_for(1000), pytest.raises(UsageError, match="cannot write"):
        SampleFile.create(tmp_path / "s.db", HEADER)

    assert not (tmp_path / "s.db").exists()


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


def test_a_log_left_by_a_kill_does_not_spoil_a_new_file_of_that_name(tmp_path: Path) -> None:
    path = filled(tmp_path / "s.db", 0)
    _killed(path, 40)
    assert path.with_name("s.db-wal").exists()
    path.unlink()

    with SampleFile.create(path, HEADER) as file:
        file.append(sample(0))

    assert [s.repeat for s in read_samples(path).samples] == [0]
