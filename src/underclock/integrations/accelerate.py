"""Hugging Face's Accelerate: a tracker, which is what it has of callbacks."""

from pathlib import Path
from typing import Any

from underclock.integrations.held import HoldingHooks, callback_class
from underclock.records import Plan
from underclock.runtime.holding.run import HowToRun


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
        """Take note of nothing: how it goes is in `scalars`, for others to log."""
        del values, step

    def finish(self) -> None:
        """Give it back."""
        self.end()


def accelerate_tracker(plan: Plan | str | Path, how: HowToRun | None = None) -> Any:
    """Return a tracker for Accelerate that holds a plan while it is open.

    ``Accelerator(log_with=[tracker])`` takes it beside other trackers; ``init_trackers`` begins and
    ``end_training`` ends. ``accelerator.log({"loss": loss, **tracker.scalars()})`` hands step time,
    energy and clocks to the others.

    Args:
        plan: With a schedule, or its file.
        how: As of `applied`.
    """
    base = "accelerate.tracking", "GeneralTracker"
    return callback_class(AccelerateHooks, base)(plan, how)
