"""`underclock fleet` and `underclock refine`: a plan for all boards, and one of a board's own."""

import json
from pathlib import Path

import msgspec
import pytest

from made_boards import made_board
from underclock import plan_fleet
from underclock.app import main
from underclock.records import Plan
from underclock.store import SampleFile, read_document, write_document


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the samples of two boards lie, and a plan."""
    folder = tmp_path_factory.mktemp("fleet")
    for number in (1, 2):
        board = made_board(number)
        header = msgspec.structs.replace(board, windows=())
        with SampleFile.create(folder / f"{number}.db", header) as file:
            for window in board.windows:
                file.append(window)
    write_document(folder / "plan.json", plan_fleet([folder / "1.db"], boards=2, latency="free"))
    (folder / "table.csv").write_text("gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w\n")
    return folder


@pytest.fixture
def files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be there."""
    monkeypatch.chdir(folder)
    return folder


def run(command: str, *arguments: object) -> int:
    try:
        main([command, *map(str, arguments)])
    except SystemExit as exc:
        return int(exc.code or 0)
    return 0


def test_a_fleet_is_planned_into_a_file(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("1.db", "2.db", "--max-slowdown", "1%", "--latency", "free", "--boards", "3")
    assert run("fleet", *asked, "-o", "fleet.json") == 0
    said = capsys.readouterr()
    made = read_document(files / "fleet.json", Plan)

    assert made.max_slowdown == 0.01
    assert made.gpu.uuid is None
    assert "over 3 boards" in said.err
    assert "promises" in said.out
    assert run("fleet", *asked, "-o", "fleet.json") == 2
    assert "will not overwrite fleet.json" in capsys.readouterr().err
    assert run("fleet", *asked, "--json") == 0
    assert (
        json.loads(capsys.readouterr().out)["arms"]
        == json.loads((files / "fleet.json").read_text())["arms"]
    )


@pytest.mark.parametrize(
    ("command", "code", "sentence"),
    [
        ("fleet 1.db 1.db", 4, "boards 1 and 2 have the same samples"),
        ("fleet nowhere.db", 4, "nowhere.db"),
        ("fleet", 2, "missing argument 'SAMPLES...'"),
        ("fleet 1.db --boards 0", 2, "a fleet of 0 boards is none"),
        ("refine 1.db 1.db --gpu sim:rtx3080ti#3 -o mine.json", 4, "is not a readable plan file"),
        ("refine nowhere.json 1.db --gpu sim:rtx3080ti#3 -o mine.json", 4, "nowhere.json"),
        ("refine plan.json 1.db --gpu sim:a100 -o mine.json", 4, "the plan is for"),
        ("refine plan.json 1.db --gpu sim:rtx3080ti#three -o mine.json", 2, "three"),
        ("refine plan.json 1.db --gpu replay:table.csv -o mine.json", 2, "cannot run"),
        ("refine plan.json 1.db --gpu sim:rtx3080ti#3 -o -", 2, "the samples need a file"),
        ("refine plan.json 1.db --gpu sim:rtx3080ti#3", 2, "missing option '-o'"),
        ("refine plan.json 1.db -o mine.json", 2, "missing option '--gpu'"),
        ("refine plan.json --gpu sim:rtx3080ti#3 -o mine.json", 2, "missing argument 'SAMPLES"),
    ],
)
def test_what_cannot_be_planned_or_refined(
    files: Path, command: str, code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*command.split()) == code
    assert sentence in capsys.readouterr().err
    assert not list(files.glob("mine*"))
