"""What every test rests on: how many examples Hypothesis draws, which tests coverage follows.

And no inherited read-only mode or deafness to signals, and one thread for each worker's matrices,
as the command line has.
"""

import gc
import os
import signal
from collections.abc import Generator

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when NumPy is loaded, by what follows

import coverage
import pytest
from hypothesis import settings

from underclock.hw.nvml_calls import READ_ONLY, SIMULATOR
from underclock.hw.zeusd import SOCKET as ZEUSD
from underclock.ledger import LEDGER

# A test that is slow on a loaded machine is not wrong: no example has a deadline.
settings.register_profile("ci", deadline=None, max_examples=40, print_blob=True)
settings.register_profile("thorough", deadline=None, max_examples=400, print_blob=True)
settings.register_profile("dev", deadline=None, max_examples=10)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

_NOT_FOLLOWED = ("slow", "untraced")
_FIRST = (
    "test_training_commands.py",
    "test_docs_blocks.py",
    "test_run_command.py",
    "test_ray.py",
    "test_docs_figures.py",
    "test_tune_command.py",
    "test_adaptive_campaign.py",
    "test_pages_in_a_browser.py",
    "test_faults.py",
    "test_job_run.py",
    "test_docs_site.py",
    "test_assumed_step.py",
)
"""Files that take long, the longest first, so that no worker is left alone with one at the end."""


@pytest.fixture(scope="session", autouse=True)
def _writable() -> None:
    """Forget what the machine may ask for or offer; a test sets it where it is meant."""
    for name in (READ_ONLY, SIMULATOR, ZEUSD):
        os.environ.pop(name, None)
    os.environ[LEDGER] = ""  # what tests save is nothing that anybody pays for


@pytest.fixture(scope="session", autouse=True)
def _hears_signals() -> None:
    """Hear Ctrl-C and hang-ups, which what runs the tests may ignore, as a shell's ``&`` does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """Keep what was loaded from the collector: PyTorch alone has a million objects.

    To look through them takes a second, and what finds all that a step may change does so often.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the longest files run first, then all as they are listed."""
    turns = {name: turn for turn, name in enumerate(_FIRST)}
    items.sort(key=lambda item: turns.get(item.path.name, len(turns)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let no coverage follow some tests: they would take three times as long and add nothing."""
    stopped = []
    if any(item.get_closest_marker(name) is not None for name in _NOT_FOLLOWED):
        # A worker has one that follows from the start, under the one that follows its tests.
        while (following := coverage.Coverage.current()) is not None:
            following.stop()
            stopped.append(following)
    try:
        return (yield)
    finally:
        for each in reversed(stopped):
            each.start()
