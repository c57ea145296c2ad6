"""Work for a conductor that is about to be killed: it sets one thing after the other."""

import time
from collections.abc import Mapping
from itertools import cycle
from typing import Any

from underclock.hw.settable import Setting, Value
from underclock.runtime.undo.armed import Armed

PERIOD_S = 2e-3
_CHANGES: tuple[tuple[Setting, Value], ...] = (
    (Setting.CORE, 1200),
    (Setting.LIMIT, 300.0),
    (Setting.MEMORY, 5001),
    (Setting.CORE, 1500),
    (Setting.MEMORY, None),
    (Setting.LIMIT, 250.0),
    (Setting.CORE, None),
    (Setting.PERSISTENCE, 1.0),
)


class Restless:
    """Sets the next thing every few milliseconds."""

    def __init__(self, gpu: Armed, first: int) -> None:
        self._gpu = gpu
        self._changes = cycle((*_CHANGES[first:], *_CHANGES[:first]))
        self._next_s = 0.0

    def next_s(self) -> float:
        """Return when the next thing is set."""
        return self._next_s

    def wake(self, now_s: float) -> None:
        """Set it."""
        self._gpu.set(*next(self._changes))
        self._next_s = now_s + PERIOD_S


def begin(gpus: Mapping[str, Armed], options: Mapping[str, Any]) -> Restless:
    """Set one thing, and go on."""
    (gpu,) = gpus.values()
    work = Restless(gpu, int(options["first"]) % len(_CHANGES))
    work.wake(time.monotonic())
    return work
