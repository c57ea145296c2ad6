"""``underclock latency`` as a user types it."""

import json
from pathlib import Path

import pytest

from underclock.app import main
from underclock.hw.nvml_calls import READ_ONLY
from underclock.records.latencies import LatencyTable
from underclock.store import read_document

_SHORT = ["--targets", "2", "--repeats", "2"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_table_for_people_and_a_file_for_the_planner(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["latency", "--gpu", "sim:rtx3080ti", "-o", "latency.json", *_SHORT])
    said = capsys.readouterr()

    assert "changing clocks on RTX 3080 Ti: simulated" in said.out
    assert max(len(line) for line in said.out.splitlines()) <= 80
    for word in ("call", "delay", "jitter", "stall", "405", "9501", "auto"):
        assert word in said.out
    assert "warning: the delays are those that the simulator assumes" in said.err
    table = read_document(Path("latency.json"), LatencyTable)
    assert len(table.slowest()) == 3 + 6


def test_machines_get_json_and_force_replaces(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["latency", "--gpu", "sim:a100", "-o", "latency.json", "--json", *_SHORT]
    main(command)
    made = json.loads(capsys.readouterr().out)
    main([*command, "--force", "--seed", "3"])
    again = json.loads(capsys.readouterr().out)

    assert made["evidence"] == "simulated"
    assert made["switches"] != again["switches"]
    assert again == json.loads(Path("latency.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ("latency --gpu sim:a100", 2, "missing option '-o'"),
        ("latency --gpu sim:a100x -o l.json", 2, "no simulated GPU"),
        ("latency --gpu cpu -o l.json", 2, "unknown GPU 'cpu'"),
        ("latency --gpu replay:sweep.csv -o l.json", 2, "cannot be watched changing its clocks"),
        ("latency --gpu nvml:0 -o l.json", 3, "this version does that on simulated GPUs only"),
        ("latency --gpu sim:a100 -o l.json --targets 1", 2, "at least 2 targets"),
        ("latency --gpu sim:a100 -o l.json --repeats 0", 2, "one repeat"),
        ("latency --gpu sim:a100 -o there.json", 2, "will not overwrite there.json"),
        ("latency --gpu sim:a100 -o nowhere/l.json", 2, "there is no folder nowhere"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_a_code(
    arguments: str, code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("there.json").write_text("{}")
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    said = capsys.readouterr()

    assert ended.value.code == code
    assert sentence in said.err
    assert said.out == ""
    assert [path.name for path in Path().iterdir()] == ["there.json"]


def test_read_only_mode_is_for_real_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(READ_ONLY, "1")
    main(["latency", "--gpu", "sim:a100", "-o", "latency.json", *_SHORT])

    assert read_document(Path("latency.json"), LatencyTable).switches
