"""``underclock latency`` as a user types it, and what `plan` makes of its file."""

from collections.abc import Callable
from pathlib import Path

import pytest

import underclock
from underclock.app import latency, main
from underclock.app.latency import measure_latency
from underclock.app.planning import named_latencies
from underclock.campaign.switches import measure_moves
from underclock.errors import NotSupportedError, UnderclockError
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import READ_ONLY
from underclock.hw.simulated.driver import simulated_driver
from underclock.records import Evidence
from underclock.records.latencies import DriverMoves, LatencyTable
from underclock.store import read_document


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_line_for_each_change_and_reader_and_a_file_that_plans_take(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["latency", "--gpu", "sim:a100", "--targets", "900", "-o", "latency.json"])
    said = capsys.readouterr().out.splitlines()

    assert max(map(len, said)) <= 80
    assert said[1].split() == ["call", "switching", "transition", "n"]
    assert [line.split()[:5] for line in said[2:]] == [
        ["core", *pair, by]
        for pair in (["900", "to", "auto"], ["auto", "to", "900"])
        for by in ("kernels", "nvml")
    ]
    found = named_latencies("latency.json", None)
    assert found is not None
    assert (
        found[0]
        == underclock.load("latency.json")
        == read_document(Path("latency.json"), LatencyTable)
    )
    assert found[0].evidence is Evidence.SIMULATED
    assert {switch.repeats for switch in found[0].switches} == {20}


def test_with_read_only_no_clock_is_set_and_the_drivers_own_moves_are_no_latencies(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(READ_ONLY, "1")
    monkeypatch.setattr(latency, "measure_moves", lambda on, _, show: measure_moves(on, 4.0, show))
    monkeypatch.setattr(NvmlGpu, "lock", _never)
    monkeypatch.setattr(NvmlGpu, "unlock", _never)
    main(["latency", "--gpu", "sim:h200", "-o", "moves.json"])
    said = capsys.readouterr()

    assert f"({READ_ONLY} is set): the driver's own moves, transition only; switching" in said.err
    assert [line.split()[:4] for line in said.out.splitlines()[2:]] == [
        ["core", way, by, "-"] for way in ("up", "down") for by in ("kernels", "nvml")
    ]
    assert underclock.load("moves.json") == read_document(Path("moves.json"), DriverMoves)
    with pytest.raises(UnderclockError, match="is a driver moves file, where a latencies file"):
        named_latencies("moves.json", None)


def _never(*_: object) -> None:
    raise AssertionError("nothing may be set")


def test_no_target_can_be_asked_for_without_permission(
    monkeypatch: pytest.MonkeyPatch, fails: Callable[[str], tuple[int, str]]
) -> None:
    monkeypatch.setenv(READ_ONLY, "1")
    code, said = fails("latency --gpu sim:a100 --targets 900")

    assert code == 3
    assert f"clocks may not be set here ({READ_ONLY} is set), so none can be asked for" in said
    assert "without --targets the driver's own moves are watched" in said


def test_a_gpu_in_pieces_and_one_without_pytorch_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_driver("a100"):
        with pytest.raises(NotSupportedError, match="which PyTorch with CUDA runs: ") as caught:
            measure_latency("nvml:0")
        assert "pip install 'torch" in caught.value.hint
        monkeypatch.setattr(NvmlGpu, "is_partitioned", lambda _: True)
        with pytest.raises(NotSupportedError, match="split into MIG instances"):
            measure_latency("nvml:0")
