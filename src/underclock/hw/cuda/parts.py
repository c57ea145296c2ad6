"""A step captured in parts, between the moments at which the host waits for the GPU.

What is captured does not run. So where a step asks for a number (``item``), for a shape that
depends on data (``nonzero``), for a copy in ordinary host memory, or waits for the GPU, the capture
ends, what was captured is launched, the host is given the true answer, and the next part begins.
The step thereby does all that it does in a plain run, and its graphs, replayed in turn, are all of
it but what ran in between.

What ends parts, and where, is in `splitting`.
"""

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

SHAPING = frozenset(
    {
        "aten::nonzero",
        "aten::nonzero.out",
        "aten::_unique2",
        "aten::unique_dim",
        "aten::unique_consecutive",
        "aten::unique_dim_consecutive",
    }
)
"""Operators whose result's shape depends on data; others are made of these."""


class Parts:
    """The graphs of one step, in turn.

    Attributes:
        graphs: PyTorch's; the last one is still being captured between `begin` and `end`.
        between: How often each operator ran between two parts.
        sizes: Numbers that the host learned there, of which sizes may be made: lengths that depend
            on data, and whole numbers that were read.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._pool = torch.cuda.graph_pool_handle()
        self._capturing = False
        self._kept: list[Any] = []  # the graphs read what was written between them
        self.graphs: list[Any] = []
        self.between: Counter[str] = Counter()
        self.sizes: set[int] = set()

    def begin(self) -> None:
        """Begin a part on the current stream, which must not be the default one."""
        graph = self._torch.cuda.CUDAGraph(keep_graph=True)
        self.graphs.append(graph)
        # Relaxed: autograd's threads end parts that others began, and loaders pin memory meanwhile.
        graph.capture_begin(pool=self._pool, capture_error_mode="relaxed")
        self._capturing = True

    def end(self) -> None:
        """End the part, and launch it."""
        self._capturing = False
        graph = self.graphs[-1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a part may well be empty
            graph.capture_end()
        graph.instantiate()
        graph.replay()

    def abandon(self) -> None:
        """End a capture that failed; keep nothing of it."""
        if self._capturing:
            self._capturing = False
            with warnings.catch_warnings(), suppress(RuntimeError):  # the driver may have ended it
                warnings.simplefilter("ignore")
                self.graphs[-1].capture_end()
        self.release()

    def release(self) -> None:
        """Give the graphs and what they read back."""
        for graph in self.graphs:
            graph.reset()
        self.graphs.clear()
        self._kept.clear()

    def replay(self) -> None:
        """Launch all parts on the current stream."""
        for graph in self.graphs:
            graph.replay()

    @contextmanager
    def paused(self, what: str) -> Iterator[bool]:
        """Run the block between two parts; yield whether it is."""
        if not self._capturing:  # before, after, or inside of another such block
            yield False
            return
        self.between[what] += 1
        self.end()
        yield True
        self.begin()  # not after an error, which ends the capture

    def keep(self, thing: object) -> None:
        """Keep what a part will read alive as long as the graphs."""
        self._kept.append(thing)

    def learn(self, numbers: Iterable[object]) -> None:
        """Note numbers that the host was told; those that are no sizes are passed over."""
        self.sizes.update(each for each in numbers if type(each) is int and each > 0)

    @property
    def shapes_depend_on_data(self) -> bool:
        """Whether the step asked for a shape that only the GPU knew."""
        return not SHAPING.isdisjoint(self.between)

    @property
    def capturing(self) -> bool:
        """Whether a part is being captured now."""
        return self._capturing
