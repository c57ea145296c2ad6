"""What a shell is told when somebody presses tab."""

import shutil
import subprocess
from pathlib import Path

import pytest
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from underclock.app import main
from underclock.app.main import cli
from underclock.testing import simulated_driver

pytestmark = pytest.mark.untraced


def _offered(*words: str) -> list[str]:
    *before, incomplete = words
    complete = BashComplete(cli, {}, "underclock", "_UNDERCLOCK_COMPLETE")
    return [item.value for item in complete.get_completions(before, incomplete)]


def test_commands_gpus_and_workloads_are_offered() -> None:
    assert _offered("tra") == ["trace", "transfer"]
    assert "tune" in _offered("t")
    assert _offered("measure", "--gpu", "sim:rtx") == ["sim:rtx3080ti", "sim:rtx3080ti#paper"]
    assert {"sim:h200", "sim:a100", "replay:"} <= {*_offered("tune", "--gpu", "")}
    assert _offered("trace", "gpt3-x") == ["gpt3-xl"]
    assert "--max-slowdown" in _offered("plan", "samples.db", "--max")


def test_the_drivers_gpus_are_offered() -> None:
    with simulated_driver("rtx3080ti", count=2):
        assert _offered("run", "plan.json", "--gpu", "nvml") == ["nvml:0", "nvml:1"]


@pytest.mark.parametrize(
    ("shell", "file", "kind"),
    [
        ("bash", ".local/share/bash-completion/completions/underclock", BashComplete),
        ("zsh", ".zfunc/_underclock", ZshComplete),
        ("fish", ".config/fish/completions/underclock.fish", FishComplete),
    ],
)
def test_it_is_installed_where_the_shell_looks(
    shell: str,
    file: str,
    kind: type[BashComplete],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)

    main(["--install-completion", shell])

    written = (tmp_path / file).read_text()
    complete = kind(cli, {}, "underclock", "_UNDERCLOCK_COMPLETE")
    assert written.endswith(complete.source_template % complete.source_vars())
    assert str(tmp_path / file) in capsys.readouterr().out
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(tmp_path / file)], check=True)
