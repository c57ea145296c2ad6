"""A user's training step, imported by its file and name."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from underclock.errors import NotSupportedError, UsageError
from underclock.hw.cuda.driver import INSTALL_TORCH
from underclock.hw.cuda.torch_step import StepFunction
from underclock.stages.ranks import own_gpu
from underclock.units import nearest


def load_step(source: str) -> StepFunction:
    """Import ``FILE.py:FUNCTION``.

    Raises:
        UsageError: There is no such file, no such function in it, or none is named.
    """
    file, colon, name = source.rpartition(":")
    if not colon:
        raise UsageError(f"{source!r} names no function", hint="write path/to/train.py:step")
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"cannot read {file!r}: no such file", hint="write path/to/train.py:step")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{file} is not a Python file", hint="write path/to/train.py:step")
    module = importlib.util.module_from_spec(spec)
    # As `python train.py` would: its folder comes first, and its classes can be found by name.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except ImportError as exc:
        raise NotSupportedError(
            f"{file} needs {exc.name or 'a module'!r}, which cannot be imported here: {exc}",
            hint=f"install it beside underclock; for PyTorch 2.8 or newer: {INSTALL_TORCH}",
        ) from exc
    step = getattr(module, name, None)
    _take_own_gpu()
    if not callable(step):
        functions = [n for n, thing in vars(module).items() if callable(thing) and n[0] != "_"]
        raise UsageError(f"{file} has no function {name!r}", hint=nearest(name, functions))
    function: StepFunction = step
    return function


def _take_own_gpu() -> None:
    """Have a rank that ``torchrun`` started work on its own GPU, unless its file saw to that.

    A stream belongs to the GPU that is current when it is made, and the first is made before the
    step runs.
    """
    library: Any = sys.modules.get("torch")
    if library is None or not library.cuda.is_available():
        return
    cuda = library.cuda
    own = own_gpu(os.environ, there=cuda.device_count(), current=cuda.current_device())
    if own is not None:
        cuda.set_device(own)
