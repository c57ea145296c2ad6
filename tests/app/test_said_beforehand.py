"""What the commands that take long say before and while they do."""

import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from underclock.app import main
from underclock.records import Kernel, Step
from underclock.tracing.source import TRACING, Onlooker, TracePhase


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")


def _trace() -> None:
    main(["trace", "gpt3-125m", "--size", "layers=1", "--size", "batch=4", "-o", "step.json"])


def _measure(options: str) -> None:
    short = "--gpu sim:rtx3080ti --window 0.1s,0.2s"
    main(f"measure step.json -o s.db {short} {options}".split())


@pytest.mark.slow  # it warms for minutes of simulated time
def test_measure_says_what_it_will_take(capsys: pytest.CaptureFixture[str]) -> None:
    _trace()
    _measure("--time-limit 200s --precision 1% --max-samples 60")
    said = capsys.readouterr()
    words = (
        r"50 kernels: about 2\.\d+ min of GPU time for the first 60 measurements, then samples of "
        r"highest value, until the promise is sure to 1 %; the time limit leaves \d\S* (s|min) for "
        r"that$"
    )
    assert re.match(words, said.err.splitlines()[0])
    assert "measurements" not in said.out


def test_trace_says_what_it_does_with_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def trace_step(step: object, *, onlooker: Onlooker) -> Any:
        assert step == "step"
        for phase in TRACING:
            onlooker.tell(phase)
        return SimpleNamespace(step=Step(name="s", kernels=(Kernel(name="a"),), order=(0,)))

    monkeypatch.setattr("underclock.tracing.held.load_step", lambda _source: "step")
    monkeypatch.setattr("underclock.tracing.captured.trace_step", trace_step)
    Path("train.py").touch()
    shown = _Terminal()

    with redirect_stderr(shown):
        main(["trace", "train.py:step", "-o", "step.json"])

    assert TracePhase.CHECKING[:30] in shown.getvalue()
    assert "3/4" in shown.getvalue()


_GONE = "raise ImportError(\"No module named 'torch'\", name='torch')\n"


@pytest.mark.slow
@pytest.mark.parametrize("needs", ["import time", "import torch"])
def test_a_step_without_pytorch_is_a_sentence_that_says_how_to_install_it(
    tmp_path: Path, needs: str
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(_GONE)
    (tmp_path / "t.py").write_text(f"{needs}\ndef step():\n    pass\n")
    environment = dict(os.environ, PYTHONPATH=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "underclock", "trace", "t.py:step", "-o", "step.json"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert "Traceback" not in done.stderr
    assert "pip install 'torch>=2.8'" in done.stderr
    assert done.returncode not in {0, 1}
