"""Which step a mark is of: counted where steps are put on the stream, and written by the stream.

Every mark carries the number of its step. In a CUDA graph marks are constants, so those say which
step of the graph they are of, and before each replay the stream writes how many came before it.
Replays are seen where Python asks for them; of others the conductor sees that nobody counts.
Standard library only: this is loaded into the training process.
"""

from __future__ import annotations

import weakref

from underclock.runtime.trainer.page import word_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from underclock.runtime.trainer.page import Page
    from underclock.runtime.trainer.streams import MarkStream


class Counting:
    """Counts the steps of one optimiser, and puts their numbers into marks.

    Args:
        page: Told how many steps were put on the stream.
        fail: Called with whatever goes wrong while a graph is captured or replayed.
    """

    def __init__(self, page: Page, fail: Callable[[Exception], None]) -> None:
        self._page, self._fail = page, fail
        self._steps = 0
        self._last = 1  # mark that was put on the stream
        self._captured: list[int] | None = None  # steps and the last mark of a graph, meanwhile
        self._graphs: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()
        self._put_back: list[tuple[Any, str, Any, Any]] = []

    def stepped(self, steps: int = 1) -> None:
        """Count steps that were put on the stream, or into the graph that is captured."""
        if self._captured is not None:
            self._captured[0] += steps
            return
        self._steps += steps
        self._page.enqueued = self._steps

    def word(self, mark: int) -> int:
        """Return what a mark writes."""
        if self._captured is not None:
            self._captured[1] = mark
            return word_of(mark, self._captured[0], captured=True)
        self._last = mark
        return word_of(mark, self._steps)

    def follow(self, graphs: Any, stream: MarkStream) -> None:
        """Be told when graphs are captured and replayed.

        Args:
            graphs: PyTorch's class of them; ``None`` where it has none.
            stream: Writes the marks.
        """
        if graphs is None:
            return

        def before_replay(graph: Any) -> None:
            if self._captured is None and graph in self._graphs:
                # A mark of the replay before would count from the new number: it is told plainly.
                stream.mark(word_of(self._last, self._steps))
                stream.count(self._steps)

        self._around(graphs, "capture_begin", lambda _graph: None, self._begins)
        self._around(graphs, "capture_end", self._ends, lambda _graph: None)
        self._around(graphs, "replay", before_replay, self._replayed)

    def _begins(self, _graph: Any) -> None:
        self._captured = [0, 0]

    def _ends(self, graph: Any) -> None:
        captured, self._captured = self._captured, None
        if captured is not None and captured[1]:
            self._graphs[graph] = captured

    def _replayed(self, graph: Any) -> None:
        if self._captured is None and graph in self._graphs:
            steps, self._last = self._graphs[graph]
            self.stepped(steps)

    def _around(
        self, graphs: Any, name: str, before: Callable[[Any], None], after: Callable[[Any], None]
    ) -> None:
        """Have something done around a method of a class, until `close`."""
        inner = getattr(graphs, name)

        def around(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self._try(before, graph)
            result = inner(graph, *args, **kwargs)
            self._try(after, graph)
            return result

        setattr(graphs, name, around)
        self._put_back.append((graphs, name, inner, around))

    def _try(self, what: Callable[[Any], None], graph: Any) -> None:
        try:
            what(graph)
        except Exception as exc:  # noqa: BLE001 - training must go on
            self._fail(exc)

    def close(self) -> None:
        """Be told of graphs no more."""
        for graphs, name, inner, around in self._put_back:
            if graphs.__dict__.get(name) is around:
                setattr(graphs, name, inner)
        self._put_back.clear()
