"""A server calls its hook at every step: what a call takes is bounded."""

import os
import select
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from underclock.runtime.trainer.notes import NOTE, Hook

CALLS, MOST_S = 5000, 20e-6  # a call takes 2 µs on a core of its own

pytestmark = pytest.mark.untraced  # coverage would be timed too


@pytest.fixture
def hook() -> Iterator[Hook]:
    reads, writes = os.pipe()

    def read() -> None:
        while select.select([reads], [], []) and os.read(reads, NOTE.size * 1024):
            pass

    reader = threading.Thread(target=read)
    reader.start()
    yield Hook(writes, reads)
    os.close(writes)
    reader.join()
    os.close(reads)


def _calls(hook: Hook) -> dict[str, Callable[[], None]]:
    return {
        "begin": partial(hook.begin, "decode", 12, 1400),
        "begin within": partial(hook.begin, "decode", 12, 1400, within_s=0.01),
        "end": hook.end,
        "late": hook.late,
    }


@pytest.mark.parametrize("name", ["begin", "begin within", "end", "late"])
def test_a_call_takes_20_us_at_most_in_the_median(hook: Hook, name: str) -> None:
    call, took_s = _calls(hook)[name], []
    for _ in range(CALLS):
        began_s = time.perf_counter()
        call()
        took_s.append(time.perf_counter() - began_s)

    assert statistics.median(took_s) <= MOST_S
