"""`underclock merge`, and files named after host and GPU."""

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
