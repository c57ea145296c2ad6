"""What every callback does: holds a plan from one hook of a trainer to another."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from underclock.records import Plan
from underclock.records.runs import RunSummary
from underclock.runtime.holding.applied import applied
from underclock.runtime.holding.run import HeldRun, HowToRun

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
        plan: With a schedule, or its file.
        how: As of ``underclock.applied``.
    """

    def __init__(self, plan: Plan | str | Path, how: HowToRun | None = None) -> None:
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

    def begin(self) -> None:
        """Hold it, unless it is held."""
        if self._held is None:
            with ExitStack() as stack:
                self._run = stack.enter_context(applied(self.plan, self.how))
                self._held = stack.pop_all()

    def end(self) -> None:
        """Give it back, if it is held."""
        held, self._held = self._held, None
        if held is not None:
            held.close()


def callback_class(hooks: type[HoldingHooks], *places: tuple[str, str]) -> Any:
    """Return a class of callbacks that is also its library's, where the user has imported that.

    Args:
        hooks: What ours do.
        places: Where the library's class may be: modules, and names in them.
    """
    found = [getattr(sys.modules.get(module), name, None) for module, name in places]
    base = next((each for each in found if each is not None), AnyHook)
    return type("UnderclockCallback", (hooks, base), {"__doc__": hooks.__doc__})
