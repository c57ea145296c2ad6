"""What holds a plan and is never ended, as where a cell of a notebook raises."""

import atexit
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

import underclock
from small_training import plan
from underclock.runtime.holding import held_gpu
from underclock.runtime.holding.run import HowToRun


@pytest.fixture
def at_exit(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Have what is to be done as the process ends, where nothing is held for real."""
    waiting: list[Callable[[], None]] = []
    monkeypatch.setattr(atexit, "register", waiting.append)
    monkeypatch.setattr(atexit, "unregister", waiting.remove)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    return waiting


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return how often what was held ended, in order with the marks."""
    ended: list[str] = []

    @contextmanager
    def held_run(*_: object) -> Iterator[SimpleNamespace]:
        run = SimpleNamespace(path="run.json")
        try:
            yield SimpleNamespace(run=run, start=lambda _pid: None, summary=None)
        finally:
            ended.append("held")

    monkeypatch.setattr(held_gpu, "held_run", held_run)
    marker = SimpleNamespace(detach=lambda: ended.append("marks"))
    monkeypatch.setattr(held_gpu, "attach", lambda *_, **__: marker)
    return ended


def test_a_callback_that_is_never_ended_ends_with_its_process(
    at_exit: list[Callable[[], None]], ended: list[str]
) -> None:
    callback = underclock.transformers_callback(plan(), HowToRun(gpus=("nvml:0",)))
    callback.on_train_begin(None, None, None)
    assert ended == []

    (close,) = tuple(at_exit)
    close()
    assert ended == ["marks", "held"]
    callback.on_train_end(None, None, None)
    del callback

    assert ended == ["marks", "held"]


def test_a_block_that_raises_ends_at_once_and_leaves_nothing_for_later(
    at_exit: list[Callable[[], None]], ended: list[str]
) -> None:
    with (
        pytest.raises(RuntimeError, match="out of memory"),
        underclock.applied(plan(), HowToRun(gpus=("nvml:0",))),
    ):
        raise RuntimeError("out of memory")

    assert ended == ["marks", "held"]
    assert at_exit == []
