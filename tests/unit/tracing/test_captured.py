from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from underclock.errors import NotSupportedError, UsageError
from underclock.records.work import NodeKind, TracedActivity
from underclock.tracing.captured import check_one_device, looked_again, obstacle_of
from underclock.tracing.held import trace
from underclock.tracing.source import load_step


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("import helper\ndef step():\n    return helper.ANSWER\nbatch = 3\n")
    (tmp_path / "helper.py").write_text("ANSWER = 42\n")
    return path


def test_a_function_is_found_with_what_lies_beside_its_file(script: Path) -> None:
    assert load_step(f"{script}:step")() == 42


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nowhere/train.py:step", "no such file"),
        ("train.py:", "no such file"),
        ("{script}:stop", "no function 'stop'"),
        ("{script}:batch", "no function 'batch'"),
        ("{folder}/notes.txt:step", "not a Python file"),
    ],
)
def test_what_cannot_be_imported_is_a_sentence(
    source: str, words: str, script: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("step")
    with pytest.raises(UsageError, match=words) as caught:
        load_step(source.format(script=script, folder=tmp_path))
    assert caught.value.hint


def test_a_size_that_a_step_does_not_take_is_refused(script: Path) -> None:
    with pytest.raises(UsageError, match="so it cannot be run at one"):
        trace(f"{script}:step", batch=8)


@pytest.mark.parametrize(
    ("operators", "cause"),
    [
        ((), "CUDA graph (why)"),
        (("aten::item",), "aten::item makes the host wait"),
        (("aten::item", "aten::nonzero"), "aten::nonzero returns a shape that depends on data"),
    ],
)
def test_an_obstacle_names_the_operator(operators: tuple[str, ...], cause: str) -> None:
    sentence = obstacle_of("why", operators)
    assert cause in sentence
    assert sentence.endswith("measured and planned whole")


def test_a_step_on_several_gpus_is_refused() -> None:
    def on(device: int) -> TracedActivity:
        return TracedActivity(kind=NodeKind.KERNEL, start_s=0, duration_s=1, device=device)

    check_one_device([on(1), on(1)], 1)
    check_one_device([], 0)
    with pytest.raises(NotSupportedError, match="GPUs 0, 1 from one process") as refused:
        check_one_device([on(1), on(0)], 0)
    assert "torchrun" in refused.value.hint


BLIND: Mapping[str, Any] = {"traceEvents": []}
SEEN: Mapping[str, Any] = {
    "traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 0.0, "dur": 1.0}]
}


@pytest.mark.parametrize(
    ("traces", "looks", "taken"),
    [((SEEN, BLIND), 3, 1), ((BLIND, SEEN, BLIND), 3, 2), ((BLIND, BLIND, BLIND, SEEN), 3, 3)],
)
def test_a_look_that_saw_nothing_is_taken_again_from_the_same_state(
    traces: tuple[Mapping[str, Any], ...], looks: int, taken: int
) -> None:
    done: list[str] = []

    def look() -> Mapping[str, Any]:
        done.append("look")
        return traces[done.count("look") - 1]

    assert looked_again(look, lambda: done.append("again"), looks) is traces[taken - 1]
    assert done == ["look", *["again", "look"] * (taken - 1)]
