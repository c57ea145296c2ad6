"""``underclock paper`` as a user types it."""

from pathlib import Path

import pytest

from underclock.cli import main


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _fails(arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run a command that must fail; return its code and what it said."""
    before = sorted(Path().iterdir())
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    assert sorted(Path().iterdir()) == before, "a failed command left a file behind"
    assert isinstance(ended.value.code, int)
    return ended.value.code, said.err


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ("paper --gpu sim:rtx3080", 2, "did you mean 'rtx3080ti'"),
        ("paper --gpu cpu", 2, "unknown GPU 'cpu'"),
        ("paper --gpu replay:sweep.csv", 2, "'replay:sweep.csv' is not simulated"),
        ("paper --gpu nvml:0 -o out", 2, "'nvml:0' is not simulated"),
        ("paper --grid fine", 2, "invalid value"),
        ("paper --svg", 2, "--svg needs a folder"),
        ("paper -o /proc/out", 2, "cannot make /proc/out"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_a_code(
    arguments: str, code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, said = _fails(arguments, capsys)

    assert sentence in said
    assert found == code
