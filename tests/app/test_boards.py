"""`underclock merge`, and `plan` of several samples, budgets or latencies in a folder."""

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from made_boards import made_board
from underclock.app import main
from underclock.records import Plan
from underclock.store import read_document, read_parts, read_samples, save


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be where samples of two boards lie."""
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        save(made_board(number), tmp_path / f"{number}.db")
    return tmp_path


@pytest.mark.slow
def test_boards_are_merged_and_planned_together(
    folder: Path, capsys: pytest.CaptureFixture[str], fails: Callable[[str], tuple[int, str]]
) -> None:
    main(["merge", "1.db", "2.db", "-o", "all.db"])
    assert "w on G, simulated" in capsys.readouterr().out
    main(["merge", "all.db", "-o", "again.db", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert said["boards"] == {f"GPU-{n}": len(made_board(n).windows) for n in (1, 2)}
    assert read_parts(folder / "again.db") == tuple(read_samples(f"{n}.db") for n in (1, 2))

    main(["plan", "all.db", "--max-slowdown", "1%", "--latency", "free", "-o", "plan.json"])
    assert "are from 2 boards, whose powers may differ" in capsys.readouterr().err
    assert read_document(folder / "plan.json", Plan).gpu.uuid is None
    code, words = fails("merge 1.db 1.db -o twice.db")
    assert code == 4
    assert "1.db and 1.db hold the same measurements" in words


@pytest.mark.untraced
def test_a_campaigns_file_is_named_after_host_and_gpu(
    folder: Path, capsys: pytest.CaptureFixture[str], fails: Callable[[str], tuple[int, str]]
) -> None:
    few = "--core-mhz 1050,auto --mem-mhz auto --window 0s,0.1s"
    main(["trace", "gpt3-xl", "-o", "step.json"])
    main(f"measure step.json --gpu sim:rtx3080ti {few} -o %h-%g.db".split())
    capsys.readouterr()

    (made,) = folder.glob("*-*.db")
    uuid = read_samples(made).gpu.uuid or ""
    host = socket.gethostname().partition(".")[0]
    assert made.name == f"{host}-{uuid.removeprefix('GPU-')[:8]}.db"

    (folder / "table.csv").write_text("gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w\n")
    code, words = fails("measure --gpu replay:table.csv -o %g.db")
    assert code == 2
    assert "table" in words


@pytest.mark.slow
def test_a_grid_of_plans_is_what_each_is_by_itself(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = "1.db 2.db --max-slowdown 0 --max-slowdown 1% --latency free"
    main(["plan", *asked.split(), "-o", "here"])
    said = capsys.readouterr().out

    names = sorted(path.name for path in (folder / "here").iterdir())
    assert names == [f"{n}-{budget}%-free.plan.json" for n in (1, 2) for budget in (0, 1)]
    for name in names:
        assert name in said
    main(["plan", "2.db", "--max-slowdown", "1%", "--latency", "free", "-o", "2.json"])
    assert (folder / "here" / names[-1]).read_bytes() == (folder / "2.json").read_bytes()


@pytest.mark.slow
def test_a_grid_of_plans_says_what_is_wrong(
    folder: Path, fails: Callable[[str], tuple[int, str]]
) -> None:
    for arguments, words in (
        ("1.db 2.db", "2 plans go into a folder"),
        ("1.db 1.db -o 1.db", "go into a folder"),
    ):
        code, said = fails(f"plan {arguments}")
        assert (code, words in said) == (2, True), said
    (folder / "to").mkdir()
    code, said = fails("plan 1.db 1.db -o to")
    assert (code, "two plans would be called 1-1%-known.plan.json" in said) == (2, True)
