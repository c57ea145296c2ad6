"""Ranks of a job in touch with each other, through the store by which they found one another."""

import itertools
from importlib import import_module
from typing import Any

from underclock.errors import NotSupportedError
from underclock.hw.base import Clock
from underclock.hw.clock import SystemClock
from underclock.hw.cuda.profiling import is_distributed

_LOOK_S = 1e-3  # a signal can end such a wait, which it could not inside of the store's own
_LONGEST_S = 10.0
_MEETINGS = itertools.count()
_LINES = itertools.count()  # of this process; every rank's process makes as many


def meet(torch: Any, clock: Clock, longest_s: float = _LONGEST_S) -> bool:
    """Wait until every rank is here, for what one does before the others shows as their waiting.

    The GPUs take no part in it.

    Args:
        torch: PyTorch.
        clock: For waiting.
        longest_s: After which to go on without the others.

    Returns:
        Whether all came.
    """
    if not is_distributed(torch):
        return True
    store, ranks = _store(torch), int(torch.distributed.get_world_size())
    key, begun_s = f"underclock/meeting{next(_MEETINGS)}", clock.now_s()
    here = int(store.add(key, 1))
    while here < ranks and clock.now_s() - begun_s < longest_s:
        clock.sleep_s(_LOOK_S)
        here = int(store.add(key, 0))
    return here >= ranks


def _store(torch: Any) -> Any:
    return torch.distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - nothing else has it


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
            torch: Any = import_module("torch")  # CUDA plays no part here
            if not is_distributed(torch):
                raise NotSupportedError(
                    "the step has collectives, but its ranks did not meet in "
                    "torch.distributed.init_process_group",
                    hint="let the step's file or its first run call it, as in training",
                )
            self._store = _store(torch).clone()
        return self._store
