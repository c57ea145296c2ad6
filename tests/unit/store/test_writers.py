"""Two writers of one file, and files that the system does not let us write: nothing is lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sample_files import HEADER, filled
from underclock.errors import DataError, UsageError
from underclock.store import SampleFile, read_samples
from underclock.store.database import WriterLock

# Says what became of it; what it acknowledged is on its standard output.
WRITER = """
import sys
from pathlib import Path
from underclock.errors import UnderclockError
from underclock.records import Evidence, GpuInfo, Kernel, SampleSet, Step, Window
from underclock.store import SampleFile

path, name = Path(sys.argv[1]), sys.argv[2]
header = SampleSet(evidence=Evidence.SIMULATED, gpu=GpuInfo(name="a GPU"),
                 step=Step(name="a step", kernels=(Kernel(name="one"), Kernel(name="two"))))
sys.stdin.readline()
try:
    with (SampleFile.open(path, writable=True) if path.exists()
          else SampleFile.create(path, header)) as file:
        for repeat in range(200):
            file.append(Window(kernel=name, repeat=repeat, time_s=1.0, energy_j=100.0))
        print("acknowledged", flush=True)
        sys.stdin.readline()
except UnderclockError as exc:
    print("refused:", exc, flush=True)
"""


def test_of_two_that_begin_one_file_one_writes_and_the_other_is_told(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    said = [writer.stdout.readline() for writer in writers if writer.stdout is not None]
    for writer in writers:
        writer.communicate("end\n")

    assert sorted(words.split()[0] for words in said) == ["acknowledged", "refused:"]
    winner = ("one", "two")[said.index("acknowledged\n")]
    assert [s.kernel for s in read_samples(path).samples] == [winner] * 200
    assert [p.name for p in tmp_path.iterdir()] == ["s.db"]


def test_another_name_of_the_same_file_is_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "s.db")
    with (
        SampleFile.create(tmp_path / "s.db", HEADER),
        pytest.raises(UsageError, match="another process"),
    ):
        SampleFile.open(tmp_path / "link.db", writable=True)


def test_a_file_that_could_not_be_opened_is_not_kept_locked(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.write_bytes(b"junk" * 1000)
    for _ in range(2):
        with pytest.raises(DataError, match="damaged"):
            SampleFile.open(path, writable=True)

    assert [p.name for p in tmp_path.iterdir()] == ["s.db"]


def test_a_lock_given_back_leaves_nothing_and_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(3):
        lock = WriterLock.take(tmp_path / "s.db")
        with pytest.raises(UsageError):
            WriterLock.take(tmp_path / "s.db")
        lock.release()
        lock.release()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write what is read-only")
def test_a_read_only_file_says_so(tmp_path: Path) -> None:
    path = filled(tmp_path / "s.db")
    path.chmod(0o444)

    with pytest.raises(DataError, match="Permission denied"):
        SampleFile.open(path, writable=True)
    assert len(read_samples(path).samples) == 3


@pytest.mark.parametrize("writable", [False, True])
def test_a_device_is_no_samples_file(*, writable: bool) -> None:
    with pytest.raises(DataError, match="not a regular file"):
        SampleFile.open(Path("/dev/null"), writable=writable)
