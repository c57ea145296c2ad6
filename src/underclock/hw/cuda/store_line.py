"""What the first rank says to the others, through the store by which they found one another."""

import itertools
from importlib import import_module
from typing import Any

from underclock.errors import NotSupportedError
from underclock.hw.base import Clock
from underclock.hw.clock import SystemClock

_LOOK_S = 1e-3  # a signal can end such a wait, which it could not inside of the store's own
_LINES = itertools.count()  # of this process; every rank's process makes as many


class StoreLine:
    """A line over PyTorch's store; the step's own code makes the job's ranks meet there.

    Args:
        number: Of this line among those of the job; by default they are counted.
        clock: For waiting; by default the machine's.
    """

    def __init__(self, number: int | None = None, clock: Clock | None = None) -> None:
        self._prefix = f"underclock/line{next(_LINES) if number is None else number}"
        self._clock = clock or SystemClock()
        self._place = 0
        self._store: Any = None

    def say(self, words: bytes) -> None:
        """Say something to every rank.

        Raises:
            NotSupportedError: The ranks never met.
        """
        self._met().set(self._next(), words)

    def hear(self) -> bytes:
        """Wait for what is said next.

        Raises:
            NotSupportedError: The ranks never met.
        """
        store, key = self._met(), self._next()
        while not store.check([key]):
            self._clock.sleep_s(_LOOK_S)
        return bytes(store.get(key))

    def _next(self) -> str:
        self._place += 1
        return f"{self._prefix}/{self._place}"

    def _met(self) -> Any:
        """Return a connection of our own, which nobody else waits on."""
        if self._store is None:
            distributed: Any = import_module("torch").distributed  # CUDA plays no part here
            if not distributed.is_available() or not distributed.is_initialized():
                raise NotSupportedError(
                    "the step has collectives, but its ranks did not meet in "
                    "torch.distributed.init_process_group",
                    hint="let the step's file or its first run call it, as in training",
                )
            self._store = distributed.distributed_c10d._get_default_store().clone()  # noqa: SLF001
        return self._store
