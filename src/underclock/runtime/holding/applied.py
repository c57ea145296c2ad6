"""applied: a plan held while a block of this process trains, and as callbacks of trainers."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from underclock.errors import UsageError
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import gpu_count, nvml_session
from underclock.records import Plan
from underclock.records.runs import RunSummary
from underclock.runtime.holding.run import HeldRun, HowToRun, held_run
from underclock.runtime.trainer.marking import RUN, attach
from underclock.store import as_record

_RANK = "LOCAL_RANK"
_HOOKS = ("on_", "setup", "teardown")  # what trainers call on a callback


@contextmanager
def applied(plan: Plan | str | Path, how: HowToRun | None = None) -> Iterator[HeldRun]:
    """Hold a plan's clocks while the block trains with PyTorch; give them back after it.

    Marks begin with the second step that an optimiser takes in the block. Each process of a job
    holds its own GPU. After the block one line on stderr says how it went, and what the block was
    given has a ``summary``.

    Args:
        how: By default on the GPU that this process trains on.

    Raises:
        UsageError: A plan without a schedule, no PyTorch, a GPU that somebody else sets, or a
            process that `underclock run` holds already.
        DataError: The plan is of another GPU, board, driver or limit.
        DeviceError: The GPU does not answer, or clocks may not be set.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        raise UsageError(
            "nothing can be held before PyTorch is there", hint="import torch before the block"
        )
    if os.environ.get(RUN):
        raise UsageError(
            "`underclock run` holds a plan in this process already",
            hint="start the script without it, or take the block away",
        )
    with held_run(as_record(plan, Plan), how or HowToRun(gpus=(_own_gpu(torch),))) as held:
        held.start(os.getpid())
        marker = attach(torch, str(held.run.path), rank=0)
        try:
            yield held
        finally:
            if marker is not None:
                marker.detach()


def _own_gpu(torch: Any) -> str:  # noqa: ANN401 - PyTorch, of any version
    """Return the GPU that this process trains on, as the driver counts."""
    if not torch.cuda.is_available():
        return f"nvml:{os.environ.get(_RANK, '0')}"
    wanted = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    with nvml_session():
        for index in range(gpu_count()):
            if NvmlGpu(index).uuid().removeprefix("GPU-") == wanted:
                return f"nvml:{index}"
    raise UsageError(
        f"the driver does not list GPU-{wanted}, on which this process trains",
        hint="name it: applied(plan, HowToRun(gpus=('nvml:0',)))",
    )


def transformers_callback(plan: Plan | str | Path, how: HowToRun | None = None) -> Any:  # noqa: ANN401
    """Return a callback for Hugging Face's ``Trainer`` that holds a plan while it trains.

    After training one line on stderr says how it went, and the callback has a ``summary``.
    Arguments are those of `applied`.
    """
    base = _base("transformers", "TrainerCallback")
    return _callback(base, plan, how, begins=("on_train_begin",), ends=("on_train_end",))


def lightning_callback(plan: Plan | str | Path, how: HowToRun | None = None) -> Any:  # noqa: ANN401
    """Return a callback for Lightning's ``Trainer`` that holds a plan while it fits.

    After training one line on stderr says how it went, and the callback has a ``summary``.
    Arguments are those of `applied`.
    """
    base = _base("lightning.pytorch", "Callback") or _base("pytorch_lightning", "Callback")
    ends = ("on_fit_end", "on_exception", "teardown")
    return _callback(base, plan, how, begins=("on_fit_start",), ends=ends)


def _base(module: str, name: str) -> type | None:
    """Return a library's class of callbacks, if the user has imported the library."""
    found: type | None = getattr(sys.modules.get(module), name, None)
    return found


def _callback(
    base: type | None,
    plan: Plan | str | Path,
    how: HowToRun | None,
    *,
    begins: tuple[str, ...],
    ends: tuple[str, ...],
) -> Any:  # noqa: ANN401
    """Make a callback; one without a library's class answers to every hook a trainer may call."""
    holding = _Holding(plan, how)
    methods: dict[str, Any] = {
        **{name: _calling(holding.begin) for name in begins},
        **{name: _calling(holding.end) for name in ends},
        "summary": property(lambda _self: holding.summary),
    }
    if base is None:

        def answer(self: object, name: str) -> Callable[..., None]:
            if name.startswith(_HOOKS):
                return lambda *_args, **_kwargs: None
            raise AttributeError(f"{type(self).__name__} has no {name}")

        methods["__getattr__"] = answer
    return type("UnderclockCallback", (base or object,), methods)()


def _calling(function: Callable[[], None]) -> Callable[..., None]:
    return lambda _self, *_args, **_kwargs: function()


class _Holding:
    def __init__(self, plan: Plan | str | Path, how: HowToRun | None) -> None:
        self._plan, self._how = plan, how
        self._held: ExitStack | None = None
        self._run: HeldRun | None = None

    @property
    def summary(self) -> RunSummary | None:
        """Of the last time that it was held, once that is over."""
        return None if self._run is None else self._run.summary

    def begin(self) -> None:
        """Hold it, unless it is held."""
        if self._held is None:
            with ExitStack() as stack:
                self._run = stack.enter_context(applied(self._plan, self._how))
                self._held = stack.pop_all()

    def end(self) -> None:
        """Give it back, if it is held."""
        held, self._held = self._held, None
        if held is not None:
            held.close()
