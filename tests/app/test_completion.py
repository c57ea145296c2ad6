"""A shell completes commands and options through click's own lines."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.untraced

LINE = 'eval "$(_UNDERCLOCK_COMPLETE=bash_source underclock)"'


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
