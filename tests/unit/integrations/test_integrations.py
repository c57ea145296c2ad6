"""Callbacks and hooks, called as each framework calls them; documented snippets as they stand."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import underclock
from snippets import library
from underclock import integrations
from underclock.errors import NotSupportedError
from underclock.integrations import PLAN

_SCALARS = {"underclock/step_joules": 20.0}
_DOCS = Path(__file__).parents[3] / "docs" / "integrations.md"


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


def _snippet(section: str) -> str:
    """Return the block of Python below a heading of the documentation."""
    _, _, below = _DOCS.read_text().partition(f"\n## {section}\n")
    match = re.search(r"```python\n(.*?)```", below, re.DOTALL)
    assert match, section
    return match[1]


def test_the_torchtitan_hook_holds_while_it_trains(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    class TitanTrainer:
        """As torchtitan's, by its signatures."""

        def __init__(self, job_config: object) -> None:
            assert job_config == "config"

        def train(self) -> None:
            told.events.append("trained")

        def close(self) -> None:
            told.events.append("closed")

    manager = SimpleNamespace(parse_args=lambda: "config")
    library(monkeypatch, "torchtitan.config", ConfigManager=lambda: manager)
    library(monkeypatch, "torchtitan.train", Trainer=TitanTrainer)
    exec(_snippet("torchtitan"), {})  # noqa: S102 - as users would run it

    assert told.events == ["held plan.json", "trained", "given back", "closed"]


def test_the_megatron_hook_chooses_its_gpu_and_holds_while_it_trains(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pretrain(
        train_valid_test_dataset_provider: object,
        model_provider: object,
        model_type: object,
        forward_step_func: object,
        process_non_loss_data_func: object = None,
        extra_args_provider: object = None,
        args_defaults: object = None,
    ) -> None:
        del process_non_loss_data_func, extra_args_provider, args_defaults
        told.events.append(
            f"{train_valid_test_dataset_provider} {model_provider} {model_type} {forward_step_func}"
        )

    def set_device(device: int) -> None:
        told.events.append(f"GPU {device}")

    library(monkeypatch, "megatron.training", pretrain=pretrain)
    library(monkeypatch, "torch", cuda=SimpleNamespace(set_device=set_device))
    monkeypatch.setitem(os.environ, "LOCAL_RANK", "3")
    users = {
        "train_valid_test_datasets_provider": "data",
        "model_provider": "model",
        "forward_step": "step",
        "ModelType": SimpleNamespace(encoder_or_decoder="both"),
    }
    exec(_snippet("Megatron-LM"), users)  # noqa: S102 - as users would run it

    assert told.events == ["GPU 3", "held plan.json", "data model both step", "given back"]
