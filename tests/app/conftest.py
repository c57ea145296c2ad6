"""How a command is run that must fail: with a sentence, a code, and no file left behind."""

from collections.abc import Callable
from pathlib import Path

import pytest

from underclock.app import main


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Callable[[str], tuple[int, str]]:
    """Run a command that must fail; return its code and what it said."""

    def run(arguments: str) -> tuple[int, str]:
        before = _files()
        with pytest.raises(SystemExit) as ended:
            main(arguments.split())
        said = capsys.readouterr()
        assert said.out == ""
        assert "Traceback" not in said.err
        assert _files() == before, "a failed command left a file behind"
        assert isinstance(ended.value.code, int)
        return ended.value.code, said.err

    return run


def _files() -> list[Path]:
    """Return what lies in the folder, but for byte code: Python keeps it beside what it imports."""
    return sorted(path for path in Path().iterdir() if path.name != "__pycache__")
