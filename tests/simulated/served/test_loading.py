"""What the process that sets clocks loads, and when."""

import os
import sys
from pathlib import Path

import msgspec
import pytest

from fault_bench import Bench
from small_training import Model, plan, training
from underclock.hw.clock import SystemClock
from underclock.runtime.holding.held_gpu import applied

_LONGEST_S = 90.0  # of waiting for the guard, who judges when the processor is there for it
# Every Python that is started with it notes what it imports, and what it does to journals.
_NOTES = """
import os, sys
if "underclock.runtime.controller.starting" in sys.orig_argv[-2]:
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

    made = plan(launch_s=2e-3)
    bound_by_core = tuple(
        msgspec.structs.replace(each, flops=2e10, bytes_moved=2e6) for each in made.runs
    )
    with applied(msgspec.structs.replace(made, runs=bound_by_core), bench.how(window=5)):
        clock = SystemClock()
        until_s = clock.now_s() + _LONGEST_S
        for step, _ in enumerate(training(Model(), sys.maxsize)):  # who is ahead waits
            if step % 10 == 0 and (
                "slower than promised" in bench.events() or clock.now_s() > until_s
            ):
                break

    assert "slower than promised" in bench.events()
    names = noted.read_text().split()
    armed = names.index("os.rename")  # the first journal is in its place
    undone = len(names) - names[::-1].index("os.remove")
    assert set(names[armed:undone]) <= {"os.rename", "os.remove"}
    assert "msgspec" in names[:armed]
    assert not {"numpy", "scipy"} & set(names)
