"""Callbacks as each framework calls them; hooks of servers as the documentation has them."""

import atexit
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import underclock
from small_training import plan
from underclock import integrations
from underclock.errors import NotSupportedError
from underclock.integrations import PLAN
from underclock.runtime.holding import held_gpu
from underclock.runtime.holding.run import HowToRun

_DOCS = Path(__file__).parents[3] / "docs"


def run_snippet(page: str, word: str) -> dict[str, Any]:
    """Run the one Python block of a page that has a word; return its names."""
    blocks = re.findall(r"```python\n(.*?)```", (_DOCS / page).read_text(), re.DOTALL)
    (block,) = (each for each in blocks if word in each)
    names: dict[str, Any] = {}
    exec(block, names)  # noqa: S102 - our own words
    return names


def library(monkeypatch: pytest.MonkeyPatch, name: str, **attributes: object) -> ModuleType:
    """Put a module in the place of a library, its parents too."""
    parts = name.split(".")
    for at in range(1, len(parts)):
        parent = ".".join(parts[:at])
        if parent not in sys.modules:
            monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    module = ModuleType(name)
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, name, module)
    return module


_SCALARS = {"underclock/step_joules": 20.0}


class Told:
    """In the place of ``applied``: notes what is held, and for how long."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.summary = "a summary"

    @contextmanager
    def applied(self, plan: object, how: object = None) -> Iterator["Told"]:
        del how
        self.events.append(f"held {plan}")
        yield self
        self.events.append("given back")

    def scalars(self) -> dict[str, float]:
        return dict(_SCALARS)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    made = Told()
    monkeypatch.setattr(integrations, "applied", made.applied)
    monkeypatch.setattr(underclock, "applied", made.applied)
    return made


class TrainerCallback:
    """As Hugging Face's: hooks that do nothing."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...


class Trainer:
    """As Hugging Face's, as far as callbacks and logs go."""

    def __init__(self, callbacks: list[Any]) -> None:
        made = [each() if isinstance(each, type) else each for each in callbacks]
        self.callbacks, self.logged = made, list[dict[str, float]]()

    def call(self, event: str, **kwargs: Any) -> None:
        for each in self.callbacks:
            getattr(each, event)("args", "state", "control", model=None, **kwargs)

    def log(self, logs: dict[str, float]) -> None:
        self.logged.append(logs)
        self.call("on_log", logs=logs)

    def train(self) -> None:
        self.call("on_train_begin")
        self.call("on_step_end")
        self.log({"loss": 1.0})
        self.call("on_train_end")


class Reporter(TrainerCallback):
    """As the one for TensorBoard: writes what is logged."""

    def __init__(self) -> None:
        self.written: dict[str, float] = {}

    def on_log(self, *_args: Any, **kwargs: Any) -> None:
        self.written |= kwargs["logs"]


@pytest.mark.parametrize("is_loaded", [True, False])
def test_transformers_trains_between_hold_and_give_back(
    told: Told, monkeypatch: pytest.MonkeyPatch, *, is_loaded: bool
) -> None:
    if is_loaded:
        library(monkeypatch, "transformers", TrainerCallback=TrainerCallback)
    callback = underclock.transformers_callback("plan.json")
    assert issubclass(type(callback), TrainerCallback) is is_loaded
    reporter = Reporter()
    trainer = Trainer([reporter, callback])
    callback.trainer = trainer
    callback.on_train_end()  # what was never begun ends quietly
    trainer.train()

    assert told.events == ["held plan.json", "given back"]
    assert callback.summary == "a summary"
    assert reporter.written == {"loss": 1.0, **_SCALARS}
    assert trainer.logged == [{"loss": 1.0}, _SCALARS]
    assert callback.scalars() == {}


def test_report_to_is_a_name_once_it_was_asked_for(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    table: dict[str, Any] = {"tensorboard": Reporter}
    utils = "transformers.integrations.integration_utils"
    library(monkeypatch, "transformers", TrainerCallback=TrainerCallback)
    library(monkeypatch, utils, INTEGRATION_TO_CALLBACK=table)
    underclock.transformers_report_to()
    names = ["underclock", "tensorboard"]  # as after report_to=

    monkeypatch.delenv(PLAN, raising=False)
    Trainer([table[name] for name in names]).train()
    assert told.events == ["held None", "given back"]  # it counts what the GPU draws
    told.events.clear()
    monkeypatch.setenv(PLAN, "named.json")
    trainer = Trainer([table[name] for name in names])
    trainer.train()

    assert told.events == ["held named.json", "given back"]
    assert trainer.callbacks[1].written == {"loss": 1.0, **_SCALARS}

    library(monkeypatch, utils)
    with pytest.raises(NotSupportedError, match="no table of integrations") as unsupported:
        underclock.transformers_report_to()
    assert "transformers_callback(plan)" in unsupported.value.hint


class LightningModule:
    """As Lightning's, as far as logs go."""

    def __init__(self) -> None:
        self.logged: dict[str, float] = {}

    def log_dict(self, dictionary: dict[str, float]) -> None:
        self.logged |= dictionary


@pytest.mark.parametrize("ends", [["on_fit_end", "teardown"], ["on_exception", "teardown"]])
def test_lightning_fits_between_hold_and_give_back(
    told: Told, monkeypatch: pytest.MonkeyPatch, ends: list[str]
) -> None:
    class Callback:
        """As Lightning's."""

    library(monkeypatch, "lightning.pytorch", Callback=Callback)
    callback, module = underclock.lightning_callback("plan.json"), LightningModule()
    assert issubclass(type(callback), Callback)
    callback.on_fit_start("trainer", module)
    callback.on_train_batch_end("trainer", module, "outputs", "batch", 0)
    assert told.events == ["held plan.json"]
    for end in ends:
        getattr(callback, end)("trainer", module, "fit")

    assert told.events == ["held plan.json", "given back"]
    assert module.logged == _SCALARS
    callback.on_train_batch_end("trainer", module, "outputs", "batch", 1)


class GeneralTracker:
    """As Accelerate's: says what a tracker lacks."""

    main_process_only = True

    def __init__(self, _blank: bool = False) -> None:  # noqa: FBT001, FBT002 - as theirs
        for name in ("name", "requires_logging_directory", "tracker"):
            assert _blank or name in dir(self), name

    def start(self) -> None: ...

    def store_init_configuration(self, values: dict[str, Any]) -> None: ...

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None: ...

    def finish(self) -> None: ...


@pytest.mark.parametrize("starts", [True, False])
def test_accelerate_holds_while_its_trackers_are_open(
    told: Told, monkeypatch: pytest.MonkeyPatch, *, starts: bool
) -> None:
    library(monkeypatch, "accelerate.tracking", GeneralTracker=GeneralTracker)
    tracker = underclock.accelerate_tracker("plan.json")
    assert issubclass(type(tracker), GeneralTracker)
    assert tracker.main_process_only is False  # every rank has a GPU
    if starts:
        tracker.start()
    tracker.store_init_configuration({"lr": 0.1})
    tracker.log({"loss": 1.0, **tracker.scalars()}, step=3)

    assert tracker.tracker is told
    assert tracker.scalars() == _SCALARS
    tracker.finish()
    assert told.events == ["held plan.json", "given back"]


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
