"""What the process that sets clocks loads, and when."""

import os
from pathlib import Path

import pytest

from fault_bench import Bench
from small_training import Model, plan, training, with_memory
from underclock.stages.applied import applied

# Every Python that is started with it notes what it imports, and what it does to journals.
_NOTES = """
import os, sys
if "underclock.runtime.conductor.entry" in sys.orig_argv[-2]:
    noted = os.open({path!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    def note(event, of):
        if event == "import":
            os.write(noted, f"{{of[0]}}\\n".encode())
        elif event in ("os.rename", "os.remove") and ".journal" in str(of[0]):
            os.write(noted, f"{{event}}\\n".encode())
    sys.addaudithook(note)
"""


@pytest.mark.slow
def test_nothing_is_loaded_while_clocks_are_held(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard judges meanwhile, and finds the plan too slow."""
    (tmp_path / "first").mkdir()
    noted = tmp_path / "noted"
    (tmp_path / "first" / "sitecustomize.py").write_text(_NOTES.format(path=str(noted)))
    paths = [str(tmp_path / "first"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))

    with applied(with_memory(plan(launch_s=1e-3)), bench.how(window=5)):
        for _ in training(Model(), 5000):  # who gets too far ahead waits for the GPU
            if "slower than promised" in bench.events():
                break

    assert "slower than promised" in bench.events()
    names = noted.read_text().split()
    armed = names.index("os.rename")  # the first journal is in its place
    undone = len(names) - names[::-1].index("os.remove")
    assert set(names[armed:undone]) <= {"os.rename", "os.remove"}
    assert "msgspec" in names[:armed]
    assert not {"numpy", "scipy"} & set(names)
