"""Hugging Face's ``Trainer``: a callback, and a name for ``report_to``."""

import importlib
import os
from pathlib import Path
from typing import Any, Final

from underclock.errors import NotSupportedError, UsageError
from underclock.integrations.held import HoldingHooks, callback_class
from underclock.records import Plan
from underclock.runtime.holding.run import HowToRun

PLAN: Final = "UNDERCLOCK_PLAN"
"""Names the plan that ``report_to="underclock"`` holds."""
_TABLE = "transformers.integrations.integration_utils", "INTEGRATION_TO_CALLBACK"


class TransformersHooks(HoldingHooks):
    """Holds a plan while Hugging Face's ``Trainer`` trains.

    Attributes:
        trainer: Whose ``log`` takes scalars; by default they are added to what others log, for the
            callbacks that come after this one.
    """

    trainer: Any = None
    _logs = False  # whether we do, just now

    def on_train_begin(self, *_args: object, **_kwargs: object) -> None:
        """Hold it."""
        self.begin()

    def on_train_end(self, *_args: object, **_kwargs: object) -> None:
        """Give it back."""
        self.end()

    def on_log(
        self, *_args: object, logs: dict[str, float] | None = None, **_kwargs: object
    ) -> None:
        """Log how the last steps went beside what is logged."""
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


def transformers_callback(plan: Plan | str | Path, how: HowToRun | None = None) -> Any:
    """Return a callback for Hugging Face's ``Trainer`` that holds a plan while it trains.

    After training one line on stderr says how it went, and the callback has a ``summary``. Where
    its ``trainer`` is set, step time, energy and clocks go to that trainer's loggers.

    Args:
        plan: With a schedule, or its file.
        how: As of `applied`.
    """
    return _class()(plan, how)


def transformers_report_to() -> None:
    """Have ``report_to="underclock"`` hold the plan that UNDERCLOCK_PLAN names.

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
            named = os.environ.get(PLAN)
            if not named:
                raise UsageError(
                    "nothing says which plan to hold", hint=f"set {PLAN}=plan.json before training"
                )
            super().__init__(named)

    table["underclock"] = ReportingCallback


def _class() -> Any:
    return callback_class(TransformersHooks, ("transformers", "TrainerCallback"))
