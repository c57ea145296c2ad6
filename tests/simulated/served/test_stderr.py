"""A run whose stderr takes nothing: all three processes live, and clocks are undone."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor as Pool
from pathlib import Path

import pytest

from fault_bench import Bench
from small_training import plan
from underclock.runtime.holding.run import run

_WAITS = """
import os, sys, time
open(sys.argv[1] + ".begun", "w").close()
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
"""


def _has_no_reader() -> None:
    reads, writes = os.pipe()
    os.dup2(writes, 2)
    os.close(writes)
    os.close(reads)


def _is_full() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 2)


def _runs(bench: Bench, path: Path) -> None:
    """Run a command, kill the watchdog meanwhile, and see that another one watches."""
    over = bench.folder / "over"

    def act() -> None:
        try:
            bench.comes((bench.folder / "over.begun").exists)
            controller, watchdog = bench.pids()
            os.kill(watchdog, signal.SIGKILL)  # of which the controller tells on stderr
            bench.comes(lambda: bench.has_another_watchdog(watchdog))
            assert bench.pids()[0] == controller
        finally:
            over.touch()

    with Pool(1) as pool:
        acting = pool.submit(act)
        ran = run(plan(), [sys.executable, "-S", "-c", _WAITS, str(over)], bench.how())
        acting.result()
    path.write_text(ran.why)


@pytest.mark.untraced
@pytest.mark.parametrize(
    "spoil", [lambda: os.close(2), _has_no_reader, _is_full], ids=["closed", "no reader", "full"]
)
def test_a_run_lives_without_stderr(
    spoil: Callable[[], None], bench: Bench, tmp_path: Path
) -> None:
    pid = os.fork()
    if not pid:
        code = 1
        try:
            sys.stderr = None
            spoil()
            _runs(bench, tmp_path / "why")
            code = 0
        except BaseException:  # noqa: BLE001 - told in a file, for want of stderr
            (tmp_path / "failed").write_text(traceback.format_exc())
        finally:
            os._exit(code)
    os.waitpid(pid, 0)

    assert not (tmp_path / "failed").exists(), (tmp_path / "failed").read_text()
    assert (tmp_path / "why").read_text() == "the training process ended"
    assert bench.is_clean()
