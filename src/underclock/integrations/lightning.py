"""Lightning's ``Trainer``: a callback."""

from pathlib import Path
from typing import Any

from underclock.integrations.held import HoldingHooks, callback_class
from underclock.records import Plan
from underclock.runtime.holding.run import HowToRun


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


def lightning_callback(plan: Plan | str | Path, how: HowToRun | None = None) -> Any:
    """Return a callback for Lightning's ``Trainer`` that holds a plan while it fits.

    After training one line on stderr says how it went, and the callback has a ``summary``. Step
    time, energy and clocks go to the trainer's loggers, by ``self.log_dict`` of the module.

    Args:
        plan: With a schedule, or its file.
        how: As of `applied`.
    """
    places = ("lightning.pytorch", "Callback"), ("pytorch_lightning", "Callback")
    return callback_class(LightningHooks, *places)(plan, how)
