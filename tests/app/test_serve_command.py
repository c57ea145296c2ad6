"""What ``underclock serve`` refuses; what it does is tried in ``tests/simulated/served``."""

from collections.abc import Callable
from pathlib import Path

import pytest

from underclock.hw.leased import HELPER
from underclock.hw.nvml_calls import READ_ONLY, SIMULATOR
from underclock.runtime.undo.ownership import RUNTIME_DIR
from underclock.testing import served_gpus


def test_what_it_cannot_do_is_said(
    fails: Callable[[str], tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SIMULATOR, str(tmp_path / "s"))
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path / "run"))
    code, said = fails(f"serve --socket {tmp_path / 'h'}")
    assert code == 3
    assert "no simulated GPU answers" in said
    with served_gpus("rtx3080ti", tmp_path / "s"):
        for arguments, words in (
            (f"--socket {tmp_path / 'h'} --group nobody-at-all", "no group 'nobody-at-all'"),
            (f"--socket {tmp_path / 'h'} --limit 0s", "a lease of 0 s is none"),
            (f"--socket {tmp_path / 's'}", "somebody already listens"),
            (f"--socket {tmp_path / 'no' / 'h'}", "cannot put a socket"),
        ):
            code, said = fails(f"serve {arguments}")
            assert code == 2
            assert words in said
        monkeypatch.setenv(HELPER, str(tmp_path / "h"))
        monkeypatch.setenv(READ_ONLY, "1")
        code, said = fails("serve")
        assert code == 3
        assert READ_ONLY in said
    assert not (tmp_path / "h").exists()
