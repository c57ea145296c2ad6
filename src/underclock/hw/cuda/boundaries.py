"""The ends of a training script's steps, as PyTorch shows them while the script runs by itself.

A step ends where the first optimizer that steps has stepped: of several optimizers one ends the
step, and gradients may be accumulated over several backward passes before. An optimizer that comes
later, after steps without it, ends steps from then on: it steps more rarely, or trains another
model. A gradient scaler that skips its optimizer's step ends the step all the same. A script that
makes no optimizer, and updates its parameters itself, has no such place: there a step ends where
the next backward pass begins. And a script may say where its steps end: `underclock.step`.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from typing import Any
from weakref import WeakSet

from underclock.hw.cuda import put
from underclock.hw.lockstep import is_distributed

# In a process that made no optimizer; it may make one later. A rank of a pipeline has several in a
# step, and waits for another in each: ranks that make no optimizer wait longer for one.
_BACKWARD_PASSES, _AMONG_RANKS = 8, 256
_LATER = 2  # steps of one optimizer before another's first: the other ends steps from then on
_current: "StepBoundaries | None" = None


class BoundarySource(StrEnum):
    """What ends a step; the value completes the sentence "a step ends ..."."""

    OPTIMIZER = "where its optimizer has stepped"
    BACKWARD = "where the next backward pass begins, for no optimizer of PyTorch's steps"
    CALL = "where the script calls underclock.step()"


class StepBoundaries:
    """Calls back in the thread that trains, at the end of each step of this process."""

    def __init__(self, torch: Any, ended: Callable[[], None]) -> None:
        global _current  # noqa: PLW0603 - one script runs in a process
        self._torch, self._ended = torch, ended
        self._optimizer: Any = None
        self._known = WeakSet[Any]()  # optimizers that have stepped; the script may drop them
        self._steps = 0  # of the one that ends steps
        self._made = False  # an optimizer, whose steps are waited for
        self._backward_passes = 0
        self._inside = False  # of a scaler's or an optimizer's step that will end one
        self.source: BoundarySource | None = None  # what ends a step; None before the first end
        from torch.optim.optimizer import (  # noqa: PLC0415 - the user's own
            register_optimizer_step_post_hook,
        )

        self._handle = register_optimizer_step_post_hook(self._first_stepped)
        wrapped = (
            (torch.autograd, "backward", self._before_backward),
            (torch.autograd, "grad", self._before_backward),
            (torch.optim.Optimizer, "__init__", self._noting_optimizers),
            (torch.amp.GradScaler, "step", self._around_scaler),
        )
        self._undo = [put(of, name, around(getattr(of, name))) for of, name, around in wrapped]
        _current = self

    def close(self) -> None:
        """Leave PyTorch as it was found."""
        global _current  # noqa: PLW0603
        _current = None
        self._handle.remove()
        for undo in self._undo:
            undo()

    def called(self) -> None:
        """End a step where the script says so; from then on nothing else ends one."""
        self.source = BoundarySource.CALL
        self._ended()

    def _first_stepped(self, optimizer: Any, *_: object) -> None:
        """Take an optimizer that steps as the one whose steps end the script's."""
        if optimizer in self._known or self.source is BoundarySource.CALL:
            return
        self._known.add(optimizer)
        if self._optimizer is not None and self._steps < _LATER:
            return
        self._optimizer, self._steps = optimizer, 0
        # From the next step on outside of the optimizer's own frame, so that a profile has all of
        # that; the name that schedulers look for stays.
        step = optimizer.step

        @wraps(step)
        def stepping(*args: Any, **kwargs: Any) -> Any:
            result = step(*args, **kwargs)
            if self._optimizer is optimizer and not self._inside:
                self._end(BoundarySource.OPTIMIZER)
            return result

        optimizer.step = stepping
        if not self._inside:
            self._end(BoundarySource.OPTIMIZER)

    def _around_scaler(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """A scaler's step ends one, whether or not its optimizer's gradients were finite."""

        @wraps(step)
        def stepping(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return step(scaler, optimizer, *args, **kwargs)
            self._inside = True
            try:
                result = step(scaler, optimizer, *args, **kwargs)
            finally:
                self._inside = False
            inner = getattr(optimizer, "optimizer", optimizer)  # of accelerate's wrapper
            if self._optimizer is None or self._optimizer in (optimizer, inner):
                self._end(BoundarySource.OPTIMIZER)
            return result

        return stepping

    def _noting_optimizers(self, make: Callable[..., None]) -> Callable[..., None]:
        @wraps(make)
        def making(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            self._made = True
            make(optimizer, *args, **kwargs)

        return making

    def _before_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(backward)
        def counting(*args: Any, **kwargs: Any) -> Any:
            of_gradients = kwargs.get("create_graph")  # which a later pass goes through
            if not (self._made or of_gradients or self.source is BoundarySource.CALL):
                self._backward_passes += 1
                most = _AMONG_RANKS if is_distributed(self._torch) else _BACKWARD_PASSES
                if self._backward_passes > most:
                    self._end(BoundarySource.BACKWARD)
            return backward(*args, **kwargs)

        return counting

    def _end(self, source: BoundarySource) -> None:
        if self.source is BoundarySource.CALL:
            return
        self.source = source
        self._steps += 1
        self._ended()


def step() -> None:
    """End a training step here; does nothing in a process whose steps are not looked at."""
    if _current is not None:
        _current.called()
