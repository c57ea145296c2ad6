"""Ways into other people's training loops: a callback, or what comes nearest, for each framework.

Each stands on what users have themselves: ``underclock.applied``, and what it gives a block. No
framework is imported here; one that the user has imported gives its class, so that its trainer
takes ours for one of its own.
"""

import importlib
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from underclock.errors import NotSupportedError
from underclock.records import Plan
from underclock.records.runs import RunSummary
from underclock.runtime.holding.held_gpu import applied
from underclock.runtime.holding.run import HeldRun, HowToRun

PLAN: Final = "UNDERCLOCK_PLAN"
"""Names the plan that ``report_to="underclock"`` holds."""
_TABLE = "transformers.integrations.integration_utils", "INTEGRATION_TO_CALLBACK"
_HOOKS = ("on_", "setup", "teardown")  # what trainers call on a callback


class AnyHook:
    """Base of a callback where its library was not imported: answers to any hook."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return a hook that does nothing."""
        if name.startswith(_HOOKS):
            return lambda *_args, **_kwargs: None
        raise AttributeError(f"{type(self).__name__} has no {name}")


class HoldingHooks:
    """Holds a plan while a trainer trains; who trains says when by calling hooks.

    Attributes:
        plan: With a schedule, or its file; ``None`` counts what the GPU draws, and sets nothing.
        how: As of ``underclock.applied``.
    """

    def __init__(self, plan: Plan | str | Path | None = None, how: HowToRun | None = None) -> None:
        super().__init__()
        self.plan, self.how = plan, how
        self._held: ExitStack | None = None
        self._run: HeldRun | None = None

    @property
    def summary(self) -> RunSummary | None:
        """Of the last time that it was held, once that is over."""
        return None if self._run is None else self._run.summary

    def scalars(self) -> dict[str, float]:
        """Return how the last steps went, for a logger; empty while nothing is held."""
        return {} if self._held is None or self._run is None else self._run.scalars()

    def begin(self, steps: int | None = None) -> None:
        """Hold it, unless it is held, for a run of so many steps where that is known."""
        if self._held is None:
            how = self.how if steps is None else replace(self.how or HowToRun(), steps=steps)
            with ExitStack() as stack:
                self._run = stack.enter_context(applied(self.plan, how))
                self._held = stack.pop_all()

    def end(self) -> None:
        """Give it back, if it is held."""
        held, self._held = self._held, None
        if held is not None:
            held.close()


def callback_class(hooks: type[HoldingHooks], *places: tuple[str, str]) -> Any:
    """Return a class of callbacks that is also its library's, where the user has imported that."""
    found = [getattr(sys.modules.get(module), name, None) for module, name in places]
    base = next((each for each in found if each is not None), AnyHook)
    return type("UnderclockCallback", (hooks, base), {"__doc__": hooks.__doc__})


class TransformersHooks(HoldingHooks):
    """Holds a plan while Hugging Face's ``Trainer`` trains."""

    # whose log takes scalars; by default they are added to the logs that callbacks after this one
    # read
    trainer: Any = None
    _logs = False  # whether we do, just now

    def on_train_begin(self, *given: Any, **_kwargs: object) -> None:
        """Hold it, for as many steps as the trainer's state says."""
        self.begin(getattr(given[1], "max_steps", None) if given[1:] else None)

    def on_train_end(self, *_args: object, **_kwargs: object) -> None:
        """Give it back."""
        self.end()

    def on_log(
        self, *_args: object, logs: dict[str, float] | None = None, **_kwargs: object
    ) -> None:
        """Add scalars of the last steps to what is logged."""
        scalars = self.scalars()
        if self._logs or not scalars:
            return
        if self.trainer is None:
            (logs if logs is not None else {}).update(scalars)
            return
        self._logs = True
        try:
            self.trainer.log(scalars)
        finally:
            self._logs = False


def transformers_callback(
    plan: Plan | str | Path | None = None, how: HowToRun | None = None
) -> Any:
    """Return a callback for Hugging Face's ``Trainer`` that holds a plan while it trains.

    After training one line on stderr says how it went, and the callback has a ``summary``. Where
    its ``trainer`` is set, step time, energy and clocks go to that trainer's loggers.

    Args:
        plan: With a schedule, or its file.
        how: As of `applied`.
    """
    return _class()(plan, how)


def transformers_report_to() -> None:
    """Have ``report_to="underclock"`` hold the plan that UNDERCLOCK_PLAN names, if any.

    transformers knows the names for ``report_to`` by one table, and asks no entry points; so this
    is called once before ``Trainer`` is made.

    Raises:
        NotSupportedError: There is no transformers here, or it has no such table.
    """
    module, name = _TABLE
    try:
        table = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as exc:
        raise NotSupportedError(
            f"transformers has no table of integrations to report to: {exc}",
            hint="pass callbacks=[underclock.transformers_callback(plan)] to Trainer",
        ) from exc

    class ReportingCallback(_class()):  # type: ignore[misc]
        """Made by ``Trainer``, which says nothing to it."""

        def __init__(self) -> None:
            super().__init__(os.environ.get(PLAN) or None)

    table["underclock"] = ReportingCallback


def _class() -> Any:
    return callback_class(TransformersHooks, ("transformers", "TrainerCallback"))


class LightningHooks(HoldingHooks):
    """Holds a plan while Lightning's ``Trainer`` fits."""

    def on_fit_start(self, *_args: object, **_kwargs: object) -> None:
        """Hold it."""
        self.begin()

    def on_train_batch_end(
        self, _trainer: object, pl_module: Any, *_args: object, **_kwargs: object
    ) -> None:
        """Log how the last steps went."""
        if scalars := self.scalars():
            pl_module.log_dict(scalars)

    def on_fit_end(self, *_args: object, **_kwargs: object) -> None:
        """Give it back."""
        self.end()

    on_exception = teardown = on_fit_end


def lightning_callback(plan: Plan | str | Path | None = None, how: HowToRun | None = None) -> Any:
    """Return a callback for Lightning's ``Trainer`` that holds a plan while it fits.

    After training one line on stderr says how it went, and the callback has a ``summary``. Step
    time, energy and clocks go to the trainer's loggers, by ``self.log_dict`` of the module.

    Args:
        plan: With a schedule, or its file.
        how: As of `applied`.
    """
    places = ("lightning.pytorch", "Callback"), ("pytorch_lightning", "Callback")
    return callback_class(LightningHooks, *places)(plan, how)


class AccelerateHooks(HoldingHooks):
    """Holds a plan from ``init_trackers`` to ``end_training``, on every rank its own GPU."""

    name = "underclock"
    requires_logging_directory = False
    main_process_only = False

    @property
    def tracker(self) -> Any:
        """What is held, once it is."""
        return self._run

    def start(self) -> None:
        """Hold it."""
        self.begin()

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Hold it, where an older Accelerate calls no ``start``."""
        del values
        self.begin()

    def log(self, values: dict[str, Any], step: int | None = None, **_kwargs: object) -> None:
        """Ignore values: Underclock's own are in `scalars`, for further trackers to log."""
        del values, step

    def finish(self) -> None:
        """Give it back."""
        self.end()


def accelerate_tracker(plan: Plan | str | Path | None = None, how: HowToRun | None = None) -> Any:
    """Return a tracker for Accelerate that holds a plan while it is open.

    ``Accelerator(log_with=[tracker])`` takes it with other trackers; ``init_trackers`` begins and
    ``end_training`` ends. ``accelerator.log({"loss": loss, **tracker.scalars()})`` hands step time,
    energy and clocks to those.

    Args:
        plan: With a schedule, or its file.
        how: As of `applied`.
    """
    base = "accelerate.tracking", "GeneralTracker"
    return callback_class(AccelerateHooks, base)(plan, how)
