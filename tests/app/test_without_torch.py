"""`trace` where PyTorch is not installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_GONE = "raise ImportError(\"No module named 'torch'\", name='torch')\n"


@pytest.mark.slow
@pytest.mark.parametrize("needs", ["import time", "import torch"])
@pytest.mark.parametrize("how", [("t.py:step",), ("t.py", "--steps", "2:4")])
def test_a_step_without_pytorch_is_a_sentence_that_says_how_to_install_it(
    tmp_path: Path, needs: str, how: tuple[str, ...]
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(_GONE)
    (tmp_path / "t.py").write_text(f"{needs}\ndef step():\n    pass\n")
    environment = dict(os.environ, PYTHONPATH=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "underclock", "trace", *how, "-o", "step.json"],
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
