"""A shell completes commands and options through click's own lines."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from underclock.app.main import cli

pytestmark = pytest.mark.untraced

LINE = 'eval "$(_UNDERCLOCK_COMPLETE=bash_source underclock)"'


def _offered(*words: str) -> list[str]:
    *before, incomplete = words
    complete = BashComplete(cli, {}, "underclock", "_UNDERCLOCK_COMPLETE")
    return [item.value for item in complete.get_completions(before, incomplete)]


def test_commands_and_options_are_offered() -> None:
    assert _offered("tra") == ["trace", "transfer"]
    assert "tune" in _offered("t")
    assert "--max-slowdown" in _offered("plan", "samples.db", "--max")
    assert _offered("nonsense", "--max") == []


def test_the_line_that_the_docs_give_works_in_a_shell(tmp_path: Path) -> None:
    assert LINE in (Path(__file__).parents[2] / "docs/install.md").read_text()
    (tmp_path / "underclock").write_text(
        f"#!{sys.executable}\nfrom underclock.app import main\nmain()\n"
    )
    (tmp_path / "underclock").chmod(0o755)
    asked = (
        f"PATH={tmp_path}:$PATH; {LINE}\n"
        "COMP_WORDS=(underclock tra); COMP_CWORD=1; _underclock_completion underclock\n"
        'echo "${COMPREPLY[@]}"'
    )

    ran = subprocess.run(
        ["/bin/bash", "-c", asked], capture_output=True, text=True, check=True, timeout=60
    )

    assert ran.stdout.split() == ["trace", "transfer"]
