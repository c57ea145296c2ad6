"""A step that is run over and over is fed the same batches each time, and none is lost to it.

A data loader cannot be put back. So what a step took from one is given to it again on every try;
and once all is done, to whoever takes from that loader next, before anything new.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary


class Batches:
    """What was taken from the iterators of PyTorch's data loaders."""

    def __init__(self, kind: type) -> None:
        """Stand between the iterators of this class and those who take from them."""
        self._kind = kind
        self._next: Any = kind.__next__  # type: ignore[attr-defined]
        self._taken: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
        self._given: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._ended = False

        def give(iterator: Any) -> Any:  # a function, for a class makes methods of those only
            return self._give(iterator)

        kind.__next__ = give  # type: ignore[attr-defined]

    def rewind(self) -> None:
        """Begin again with the first batch taken."""
        self._given.clear()

    def end(self) -> None:
        """Give what was taken once more, then step aside."""
        self.rewind()
        self._ended = True
        self._step_aside()

    def _give(self, iterator: Any) -> Any:
        taken = self._taken.setdefault(iterator, [])
        if self._ended:
            if not taken:
                return self._next(iterator)
            batch = taken.pop(0)
            self._step_aside()
            return batch
        given = self._given.get(iterator, 0)
        if given == len(taken):
            taken.append(self._next(iterator))
        self._given[iterator] = given + 1
        return taken[given]

    def _step_aside(self) -> None:
        if not any(self._taken.values()):
            self._kind.__next__ = self._next  # type: ignore[attr-defined]


@contextmanager
def same_batches(torch: Any) -> Iterator[Batches]:
    """Feed a step the same batches, after each `Batches.rewind`."""
    batches = Batches(torch.utils.data.dataloader._BaseDataLoaderIter)  # noqa: SLF001 - of all its iterators
    try:
        yield batches
    finally:
        batches.end()
