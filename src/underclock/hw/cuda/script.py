"""A training script, run as it is until one of its steps can be held.

A step ends where the optimiser's does. The script runs in its own thread, for the caller
waits in a block; it is held within a step's end, and ended when the block is left.
"""

import queue
import runpy
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import wraps
from pathlib import Path
from typing import Any, Generic, TypeVar

from underclock.errors import MeasurementError, UnderclockError, UsageError
from underclock.hw.cuda.torch_step import reason_of

_T = TypeVar("_T")
Steps = Generator[None, None, None]
"""What looks at a script's steps; each ``yield`` lets it take one."""

_END_S = 20.0


@contextmanager
def held(
    path: Path,
    arguments: Sequence[str],
    look: Callable[[Callable[[_T], None]], Steps],
) -> Iterator[_T]:
    """Run a script until a step of its is handed over; hold it during the block, then end it.

    What the script prints goes to stderr. ``look`` looks at its steps, and calls what it is given
    with what it has to hand over.

    Raises:
        UsageError: The script takes too few steps, or none with an optimiser of PyTorch's.
        MeasurementError: It fails.
        UnderclockError: ``look`` raised it.
    """
    run = _Run(path, look)
    thread = threading.Thread(target=run.to_the_end, args=[arguments], daemon=True)
    thread.start()
    try:
        thing = run.told.get()
        if isinstance(thing, BaseException):
            raise thing
        yield thing
    finally:
        run.released.set()
        thread.join(_END_S)


class _EndedError(BaseException):
    """Ends a script whose steps are no longer needed; no script catches it by mistake."""


class _Run(Generic[_T]):
    """One run of a script.

    Attributes:
        told: Gets what is handed over, or why nothing ever will be.
        released: Set once the script is needed no longer.
    """

    def __init__(self, path: Path, look: Callable[[Callable[[_T], None]], Steps]) -> None:
        self.told: queue.Queue[_T | BaseException] = queue.Queue()
        self.released = threading.Event()
        self._path = path
        self._steps = look(self._hold)
        self._taken = 0
        self._optimizer: Any = None
        self._redirected = ExitStack()

    def to_the_end(self, arguments: Sequence[str]) -> None:
        """Run the script; whatever becomes of it, the caller hears."""
        try:
            with self._redirected, _as_main(self._path, arguments), self._boundaries():
                self._redirected.enter_context(redirect_stdout(sys.stderr))
                next(self._steps)
                runpy.run_path(str(self._path), run_name="__main__")
            self.told.put(self._too_few())
        except _EndedError:
            pass
        except BaseException as exc:  # noqa: BLE001 - it is told in the other thread
            self.told.put(self._because_of(exc))
        finally:
            self._steps.close()

    def _hold(self, thing: _T) -> None:
        self._redirected.close()
        self.told.put(thing)
        self.released.wait()

    def _because_of(self, exc: BaseException) -> BaseException:
        """Return what to tell of an error of the script's; what looks on may know better."""
        try:
            self._steps.throw(exc)
        except UnderclockError as ours:
            return ours
        except BaseException:  # noqa: BLE001, S110 - it is `exc` itself
            pass
        if isinstance(exc, SystemExit) and not exc.code:
            return self._too_few()
        return MeasurementError(
            f"{self._path.name} failed in step {self._taken}: {type(exc).__name__}: "
            f"{reason_of(exc)}",
            hint="run it by itself first: it must train as it is",
        )

    def _too_few(self) -> UsageError:
        name = self._path.name
        if self._optimizer is None:
            return UsageError(
                f"{name} ended without a step of an optimiser of PyTorch's",
                hint="name a function that runs one step: train.py:step",
            )
        return UsageError(
            f"{name} ended after {self._taken} steps, before those to be looked at were over",
            hint="ask for earlier ones with --steps, or let it train for longer",
        )

    @contextmanager
    def _boundaries(self) -> Iterator[None]:
        """Be told of the end of every step, as long as the block runs."""
        from torch.optim.optimizer import (  # noqa: PLC0415 - the user's own
            register_optimizer_step_post_hook,
        )

        handle = register_optimizer_step_post_hook(self._stepped)
        try:
            yield
        finally:
            handle.remove()

    def _stepped(self, optimizer: Any, *_: object) -> None:
        """Take the first optimiser that steps as the one whose steps end the script's."""
        if self._optimizer is None:
            self._optimizer = optimizer
            optimizer.step = self._then_boundary(optimizer.step)
            self._boundary()

    def _then_boundary(self, step: Callable[..., Any]) -> Callable[..., Any]:
        # Outside of the optimiser's own frame, so that a profile has all of that.
        @wraps(step)
        def stepping(*args: Any, **kwargs: Any) -> Any:
            result = step(*args, **kwargs)
            self._boundary()
            return result

        return stepping

    def _boundary(self) -> None:
        self._taken += 1
        if self.released.is_set():
            raise _EndedError
        try:
            next(self._steps)
        except StopIteration:
            raise _EndedError from None
        except UnderclockError as exc:
            self.told.put(exc)
            raise _EndedError from exc


@contextmanager
def _as_main(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Give a script its command line and its folder."""
    before, folders = sys.argv, list(sys.path)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before, folders
