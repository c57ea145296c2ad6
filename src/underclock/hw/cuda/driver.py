"""The CUDA driver's calls, each one's error turned into ours at this one boundary."""

import ctypes
import ctypes.util
import threading
from types import ModuleType
from typing import Any

from underclock.errors import DeviceError, NotSupportedError, StuckError

_WITHOUT = "or trace without a GPU, kernels assumed: underclock trace --assume train.py"
INSTALL_TORCH = "pip install 'torch>=2.8'"
_MISSING = "in a clone of underclock: pip install '.[cuda]'"
STUCK_S = 60.0
"""Longest wait for what the GPU was given, in s: a launch takes less, and a training step too."""


def cuda() -> ModuleType:
    """Return cuda-bindings' driver module."""
    try:
        from cuda.bindings import driver  # noqa: PLC0415 - an extra, needed on real GPUs only
    except ImportError as exc:
        raise NotSupportedError("isolating kernels needs cuda-bindings", hint=_MISSING) from exc
    module: ModuleType = driver
    return module


def installed() -> Any:
    """Return PyTorch, on whatever device it runs."""
    try:
        import torch as module  # noqa: PLC0415 - the user's own
    except ImportError as exc:
        raise NotSupportedError(
            "tracing a step needs PyTorch, which is not installed", hint=INSTALL_TORCH
        ) from exc
    return module


def torch() -> Any:
    """Return PyTorch with a CUDA device."""
    module = installed()
    if module.version.cuda is None:
        other = "for AMD's GPUs" if getattr(module.version, "hip", None) else "without CUDA"
        raise NotSupportedError(
            f"this PyTorch ({module.__version__}) was built {other}",
            hint=f"install a CUDA build of torch; {_WITHOUT}",
        )
    if not module.cuda.is_available():
        raise NotSupportedError(
            "PyTorch sees no CUDA device",
            hint="look at nvidia-smi, CUDA_VISIBLE_DEVICES, and whether the driver is new enough "
            f"for CUDA {module.version.cuda}; {_WITHOUT}",
        )
    return module


def check(what: str, result: tuple[Any, ...]) -> Any:
    """Return what a driver call returned besides its error code."""
    code, *values = result
    if int(code) != 0:
        raise DeviceError(f"could not {what}: {code.name}")
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


def demangled(name: str) -> str:
    """Return a C++ symbol as the profiler writes it; anything else as it is."""
    if not name.startswith("_Z"):
        return name
    library = ctypes.CDLL(ctypes.util.find_library("stdc++") or "libstdc++.so.6")
    demangle = getattr(library, "__cxa_demangle")
    demangle.restype = ctypes.c_void_p
    status = ctypes.c_int(0)
    text = demangle(name.encode(), None, None, ctypes.byref(status))
    if status.value != 0 or not text:
        return name
    try:
        return ctypes.string_at(text).decode()
    finally:
        libc = ctypes.CDLL(None)
        libc.free.argtypes = [ctypes.c_void_p]
        libc.free(text)


def wait_for_gpu(torch: Any) -> None:
    """Wait until the current device has done all it was given.

    Signals interrupt it: the waiting itself is done in another thread, which a GPU that never
    answers keeps.
    """
    device, done = torch.cuda.current_device(), threading.Event()
    failed: list[Exception] = []

    def wait() -> None:
        try:
            torch.cuda.synchronize(device)
        except Exception as exc:  # noqa: BLE001 - raised in the thread that asked
            failed.append(exc)
        finally:
            done.set()

    threading.Thread(target=wait, daemon=True).start()
    if not done.wait(STUCK_S):
        raise StuckError(
            f"the GPU did not finish what it was given in {STUCK_S:g} s",
            hint="a collective may wait for a rank that is gone; look at the GPU with `nvidia-smi`",
        )
    if failed:
        raise DeviceError(f"a launch failed: {failed[0]}") from failed[0]
