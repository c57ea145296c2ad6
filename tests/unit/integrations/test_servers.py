"""Hooks of servers as the documentation has them, with stand-ins of the same signatures."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest

import underclock
from snippets import library, run_snippet

PAGE = "serving.md"


class Heard:
    """In the place of a governor."""

    def __init__(self) -> None:
        self.said: list[tuple[object, ...]] = []

    @contextmanager
    def governor(self, plan: str, *, gpu: str, **more: str) -> Iterator["Heard"]:
        del more
        self.said.append((plan, gpu))
        yield self

    def begin(self, phase: str, batch: int, context: int = 1) -> None:
        self.said.append((phase, batch, context))

    def end(self) -> None:
        self.said.append(("end",))


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    made = Heard()
    monkeypatch.setattr(underclock, "governor", made.governor)
    return made


def test_a_pace() -> None:
    names = run_snippet(PAGE, "Pace(")

    assert 0.0 < names["within_s"] <= 0.020
    assert 0.0 < names["first_within_s"] <= 0.5 - 0.1
    assert 0.0 < names["rise_s"] <= 0.5


def test_vllm(monkeypatch: pytest.MonkeyPatch, heard: Heard) -> None:
    class GPUModelRunner:
        """As vLLM's, as far as steps go."""

        device = SimpleNamespace(index=3)

        def execute_model(self, scheduler_output: Any, intermediate_tensors: Any = None) -> Any:
            del intermediate_tensors
            return scheduler_output.total_num_scheduled_tokens

    library(monkeypatch, "vllm.v1.worker.gpu_model_runner", GPUModelRunner=GPUModelRunner)
    run_snippet(PAGE, "vllm.v1")
    runner = GPUModelRunner()

    for tokens in ({"a": 700}, {"a": 1, "b": 512}, {"a": 1, "b": 1}, {}):
        step = SimpleNamespace(
            num_scheduled_tokens=tokens, total_num_scheduled_tokens=sum(tokens.values())
        )
        assert runner.execute_model(step) == sum(tokens.values())

    assert heard.said == [
        ("serving.json", "nvml:3"),
        ("prefill", 1, 700),
        ("mixed", 2, 512),
        ("decode", 2, 1),
        ("end",),
    ]


def test_sglang(monkeypatch: pytest.MonkeyPatch, heard: Heard) -> None:
    class Mode(IntEnum):
        """As SGLang's, as far as phases go."""

        EXTEND = 1
        DECODE = 2
        MIXED = 3
        IDLE = 4

        def is_decode(self) -> bool:
            return self is Mode.DECODE

        def is_mixed(self) -> bool:
            return self is Mode.MIXED

        def is_idle(self) -> bool:
            return self is Mode.IDLE

    class ModelRunner:
        """As SGLang's, as far as steps go."""

        gpu_id = 1

        def forward(self, forward_batch: Any, skip: object = None) -> Any:
            del skip
            return forward_batch.batch_size

    library(monkeypatch, "sglang.srt.model_executor.model_runner", ModelRunner=ModelRunner)
    run_snippet(PAGE, "sglang.srt")

    for number, mode in enumerate(Mode, 1):
        step = SimpleNamespace(forward_mode=mode, batch_size=number)
        assert ModelRunner().forward(step) == number

    phases = [said[:2] for said in heard.said if said[0] != "serving.json"]
    assert phases == [("prefill", 1), ("decode", 2), ("mixed", 3), ("end",)]
