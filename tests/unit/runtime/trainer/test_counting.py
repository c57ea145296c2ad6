"""Steps that are counted as they are put on the stream, by hand and by graphs that are replayed."""

import gc
import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.runtime.trainer.marks import Counting
from underclock.runtime.trainer.page import CAPTURED, STEP_OFFSET, STEPS, Page, word_of

MARKS = (0, 3, 9)


class Stream:
    """A stream whose writes happen when they are asked for, or are captured."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.graph: list[int] | None = None
        self.seen: list[tuple[int, int]] = []  # whatever could be read in between

    def mark(self, word: int) -> None:
        if self.graph is not None:
            self.graph.append(word)
        else:
            self.page.write(word)
            self.seen.append(self.page.reached())

    def count(self, steps: int) -> None:
        self.page.write(steps, STEP_OFFSET)
        self.seen.append(self.page.reached())

    def close(self) -> None:
        """Hold nothing."""


class Graphs:
    """A class of graphs as PyTorch's, of one stream."""

    def __init__(self, stream: Stream) -> None:
        class Graph:
            def __init__(self) -> None:
                self.words: list[int] = []

            def capture_begin(self) -> None:
                stream.graph = self.words

            def capture_end(self) -> None:
                stream.graph = None

            def replay(self) -> None:
                for word in self.words:
                    stream.mark(word)

        self.kind = Graph


class Bench:
    """A step that is put on a stream by hand, or by a graph."""

    def __init__(self, page: Page) -> None:
        self.failed: list[Exception] = []
        self.stream = Stream(page)
        self.graphs = Graphs(self.stream)
        self.counting = Counting(page, self.failed.append)
        self.counting.follow(self.graphs.kind, self.stream)

    def put(self, mark: int) -> None:
        if mark == 1:
            self.counting.stepped()
        self.stream.mark(self.counting.word(mark))

    def captured(self, marks: list[int]) -> object:
        graph = self.graphs.kind()
        graph.capture_begin()
        for mark in marks:
            self.put(mark)
        graph.capture_end()
        return graph


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with closing(Page.create(tmp_path / "run.page", digest=bytes(32), marks=MARKS)) as page:
        yield Bench(page)


def test_a_process_that_replaces_another_counts_on(bench: Bench) -> None:
    for _ in range(3):
        bench.put(1)
    page = bench.stream.page

    again = Bench(page)
    again.put(1)

    assert page.enqueued == 4
    assert page.reached() == (1, 4)


def test_every_mark_that_a_replay_writes_is_of_its_own_step(bench: Bench) -> None:
    for mark in (1, 2, 3):
        bench.put(mark)
    graph = bench.captured([2, 3, 1, 2])  # the optimiser steps within it
    page = bench.stream.page
    assert page.enqueued == 1  # what is captured has not run

    bench.put(1)
    bench.stream.seen.clear()
    for _ in range(3):
        graph.replay()  # type: ignore[attr-defined]
    told = [pair for pair, _ in itertools.groupby(bench.stream.seen)]

    assert told == [
        (1, 2), *((2, 2), (3, 2), (1, 3), (2, 3)), *((3, 3), (1, 4), (2, 4)), *((3, 4), (1, 5)),
        (2, 5),
    ]  # fmt: skip
    assert page.enqueued == 5
    assert not bench.failed


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(
        st.tuples(st.booleans(), st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=8
    ),
    rotated=st.integers(0, 2),
)
def test_numbers_of_steps_never_go_back_and_end_at_what_was_put_there(
    parts: list[tuple[bool, int, int]], rotated: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("page") / "run.page"
    with closing(Page.create(path, digest=bytes(32), marks=MARKS)) as page:
        bench = Bench(page)
        bench.put(1)
        order = [1, 2, 3][rotated:] + [1, 2, 3][:rotated]
        steps = 1
        for by_graph, inside, times in parts:
            marks = order * inside
            if by_graph:
                graph = bench.captured(marks)
            for _ in range(times):
                if by_graph:
                    graph.replay()  # type: ignore[attr-defined]
                else:
                    for mark in marks:
                        bench.put(mark)
                steps += inside

        numbers = [number for _, number in bench.stream.seen]
        assert numbers == sorted(numbers)
        assert (numbers[-1], page.enqueued) == (steps, steps)
        begun = [number for (mark, number) in dict.fromkeys(bench.stream.seen) if mark == 1]
        assert begun == list(range(1, steps + 1))  # each step's first mark, once


def test_graphs_are_as_before_once_nobody_counts(bench: Bench) -> None:
    before = Graphs(bench.stream).kind.replay
    bench.counting.close()
    bench.stream.seen.clear()
    graph = bench.captured([2])
    graph.replay()  # type: ignore[attr-defined]

    assert bench.graphs.kind.replay.__name__ == before.__name__ == "replay"
    assert bench.stream.seen == [(2, 0)]


def test_a_graph_that_is_gone_is_forgotten(bench: Bench) -> None:
    bench.captured([2, 1])
    gc.collect()

    assert not bench.counting._graphs  # noqa: SLF001 - nothing else shows it


def test_a_mark_is_read_with_its_step_whatever_begins_anew(bench: Bench) -> None:
    page = bench.stream.page
    page.write(word_of(3, STEPS + 5))
    assert (page.reached()[0], page.reached()) == (3, (3, 5))
    page.write(STEPS * 4 - 1, STEP_OFFSET)
    page.write(word_of(2, 1, captured=True))
    assert (page.reached()[0], page.reached()) == (2, (2, 0))
    assert word_of(65535, STEPS - 1) == CAPTURED - 1
