"""``underclock paper`` as a user types it."""

from collections.abc import Callable
from pathlib import Path

import pytest

Fails = Callable[[str], tuple[int, str]]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ("paper --gpu sim:rtx3080", 2, "did you mean 'rtx3080ti'"),
        ("paper --gpu sim:rtx3080ti#papers", 2, "boards with a name are sim:rtx3080ti#paper"),
        ("paper --gpu cpu", 2, "unknown GPU 'cpu'"),
        ("paper --gpu replay:sweep.csv", 2, "'replay:sweep.csv' is not simulated"),
        ("paper --gpu nvml:0", 2, "'nvml:0' is not simulated"),
        ("paper --grid fine", 2, "invalid value"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_a_code(
    arguments: str, code: int, sentence: str, fails: Fails
) -> None:
    found, said = fails(arguments)

    assert sentence in said
    assert found == code
