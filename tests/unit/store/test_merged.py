"""Files of several boards in one: nothing lost, nothing twice, and told apart again."""

from pathlib import Path

import msgspec
import pytest

from sample_files import HEADER, sample
from underclock.errors import DataError, UsageError
from underclock.records import Evidence, GpuInfo, Provenance, SampleSet, Window
from underclock.store import SampleFile, is_merged, joined, merge, read_parts, read_samples

BOARD = msgspec.structs.replace(
    HEADER,
    gpu=GpuInfo(name="G", uuid="GPU-0", driver="1.2", power_limit_w=350.0),
    provenance=Provenance(seed=0, version="1"),
)


def board(number: int) -> SampleSet:
    return msgspec.structs.replace(
        BOARD, gpu=msgspec.structs.replace(BOARD.gpu, uuid=f"GPU-{number}")
    )


def window(time_s: float, repeat: int = 0) -> Window:
    return msgspec.structs.replace(sample(repeat), time_s=time_s)


def file(path: Path, header: SampleSet, *windows: Window) -> Path:
    with SampleFile.create(path, header) as made:
        for each in windows:
            made.append(each, gpu_s=2.0)
    return path


def test_boards_come_apart_as_they_were(tmp_path: Path) -> None:
    files = [
        file(tmp_path / f"{n}.db", board(n), window(1.0 + n), window(1.1 + n, 1)) for n in (0, 1)
    ]
    before = [path.read_bytes() for path in files]

    merged = merge(files, tmp_path / "all.db")

    assert [path.read_bytes() for path in files] == before
    assert is_merged(tmp_path / "all.db")
    assert not is_merged(files[0])
    assert not is_merged(tmp_path / "none.db")
    found = read_parts(tmp_path / "all.db")
    assert found == merged == tuple(read_samples(path) for path in files)
    assert read_parts(files[0]) == found[:1]
    together = read_samples(tmp_path / "all.db")
    assert [each.time_s for each in together.windows] == [1.0, 1.1, 2.0, 2.1]
    assert [each.repeat for each in together.windows] == [0, 1, 2, 3]
    assert together.gpu.uuid is None
    assert "4 windows are from 2 boards, whose powers may differ" in together.warnings
    with pytest.raises(DataError, match="was merged of several samples files"):
        SampleFile.open(tmp_path / "all.db", writable=True)


def test_runs_on_one_board_are_repeats_and_each_keeps_its_provenance(tmp_path: Path) -> None:
    other = msgspec.structs.replace(BOARD, provenance=Provenance(seed=1, version="1"))
    files = [
        file(tmp_path / "0.db", BOARD, window(1.0), window(1.1, 1)),
        file(tmp_path / "1.db", other, window(1.2)),
    ]

    merge(files, tmp_path / "all.db")
    found = read_samples(tmp_path / "all.db")

    assert [(each.time_s, each.repeat) for each in found.windows] == [(1.0, 0), (1.1, 1), (1.2, 2)]
    assert found.provenance == Provenance(version="1")
    assert found.warnings == ("take care", "3 windows of one board are from 2 files")
    parts = read_parts(tmp_path / "all.db")
    assert [each.provenance for each in parts] == [BOARD.provenance, other.provenance]
    alike = joined([read_samples(path) for path in files])
    assert alike == read_samples(tmp_path / "all.db")
    same = joined([msgspec.structs.replace(each, provenance=BOARD.provenance) for each in parts])
    assert same.provenance == BOARD.provenance


def test_merged_files_merge_and_replace_only_merged_ones(tmp_path: Path) -> None:
    files = [file(tmp_path / f"{n}.db", board(n), window(1.0 + n)) for n in range(3)]
    merge(files[:2], tmp_path / "two.db")

    merge([tmp_path / "two.db", files[2]], tmp_path / "all.db")

    assert read_parts(tmp_path / "all.db") == tuple(read_samples(each) for each in files)
    with pytest.raises(UsageError, match="will not overwrite"):
        merge(files, tmp_path / "all.db")
    merge(files[:1], tmp_path / "all.db", force=True)
    assert read_samples(tmp_path / "all.db") == read_samples(files[0])
    with pytest.raises(UsageError, match="it holds measurements"):
        merge(files[1:], files[0], force=True)
    with pytest.raises(UsageError, match="it is read as"):
        merge([tmp_path / "all.db"], tmp_path / "all.db", force=True)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"gpu": msgspec.structs.replace(board(1).gpu, name="H")}, "two GPU models: G and H"),
        ({"gpu": msgspec.structs.replace(board(1).gpu, driver="2")}, "two drivers: 1.2 and 2"),
        (
            {"gpu": msgspec.structs.replace(board(1).gpu, power_limit_w=300.0)},
            "two power limits: 350.0 and 300.0",
        ),
        (
            {"step": msgspec.structs.replace(BOARD.step, name="another")},
            "two steps: a step and another",
        ),
        (
            {"step": msgspec.structs.replace(BOARD.step, order=(1, 0) * 24)},
            "two captures of the step: ",
        ),
        ({"evidence": Evidence.MEASURED}, "two kinds of evidence: simulated and measured"),
        ({"gpu": GpuInfo(name="G")}, "does not say which board"),
        ({"evidence": Evidence.REPLAYED}, "does not say which board"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(
    tmp_path: Path, changed: dict[str, object], words: str
) -> None:
    other = msgspec.structs.replace(board(1), **changed)
    files = [
        file(tmp_path / "0.db", BOARD, window(1.0)),
        file(tmp_path / "1.db", other, window(2.0)),
    ]

    with pytest.raises(DataError, match=words) as caught:
        merge(files, tmp_path / "all.db")

    assert str(files[1]) in str(caught.value)
    assert not (tmp_path / "all.db").exists()


def test_nothing_is_merged_twice(tmp_path: Path) -> None:
    first = file(tmp_path / "0.db", BOARD, window(1.0), window(1.1, 1))
    longer = file(tmp_path / "1.db", BOARD, window(0.9), window(1.0, 1))
    merge([first], tmp_path / "one.db")

    for pair in ([first, first], [first, longer], [first, tmp_path / "one.db"]):
        with pytest.raises(DataError, match="hold the same measurements") as caught:
            merge(pair, tmp_path / "all.db")
        assert all(str(path) in str(caught.value) for path in pair)
    with pytest.raises(UsageError, match="nothing to merge"):
        merge([], tmp_path / "all.db")
