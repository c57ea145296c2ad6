"""`plan` of several samples, budgets or latencies: a plan of each, in a folder."""

from collections.abc import Callable
from pathlib import Path

import pytest

from made_boards import made_board
from underclock.app import main
from underclock.store import save

pytestmark = pytest.mark.slow


@pytest.fixture
def samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be where samples of two boards lie."""
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        save(made_board(number), tmp_path / f"{number}.db")
    return tmp_path


def test_a_grid_of_plans_is_what_each_is_by_itself(
    samples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = "1.db 2.db --max-slowdown 0 --max-slowdown 1% --latency free"
    main(["plan", *asked.split(), "-o", "here"])
    said = capsys.readouterr().out

    names = sorted(path.name for path in (samples / "here").iterdir())
    assert names == [f"{n}-{budget}%-free.plan.json" for n in (1, 2) for budget in (0, 1)]
    for name in names:
        assert name in said
    main(["plan", "2.db", "--max-slowdown", "1%", "--latency", "free", "-o", "2.json"])
    assert (samples / "here" / names[-1]).read_bytes() == (samples / "2.json").read_bytes()


def test_a_grid_of_plans_says_what_is_wrong(
    samples: Path, fails: Callable[[str], tuple[int, str]]
) -> None:
    for arguments, words in (
        ("1.db 2.db", "2 plans go into a folder"),
        ("1.db 1.db -o 1.db", "go into a folder"),
    ):
        code, said = fails(f"plan {arguments}")
        assert (code, words in said) == (2, True), said
    (samples / "to").mkdir()
    code, said = fails("plan 1.db 1.db -o to")
    assert (code, "two plans would be called 1-1%-known.plan.json" in said) == (2, True)
