"""Simulated GPUs whose physics is not the fit's: for whoever judges what a fit makes of them."""

import dataclasses
import importlib.util
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from underclock.hw.simulated.device import VirtualGpu
from underclock.physics import costs as usual_costs

_HARD, _SOFT = 14.0, 1.7  # exponents that join a kernel's parts, for 3.4
_RUNG_MHZ = 150.0  # of a voltage table
_MORE = 1.15  # of DRAM's traffic, once the cache no longer keeps up
_REPLACED = ("duration_s", "busy_w", "idle_w", "WarmPower")
_DRIFT_S, _DRIFT = 1800.0, (0.004, 0.02)  # period, and amplitude of time and of power


def own_physics() -> Any:  # noqa: ANN401 - its names may be replaced
    """Return the physics of time and power as a module of its own: the fit keeps the usual one."""
    spec = importlib.util.spec_from_file_location("strange_costs", usual_costs.__file__)
    if spec is None or spec.loader is None:
        raise AssertionError("physics is a file")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def _drawn(kernel: Any) -> float:  # noqa: ANN401 - of one kernel or of many
    """Return a number from 0 to 1 that only depends on the kernel."""
    return float(np.asarray(kernel.core_mcycles + 7.0 * kernel.dram_mcycles).ravel()[0] * 1e4 % 1.0)


def joining(own: Any) -> None:  # noqa: ANN401
    """Join the parts of some kernels nearly as a roofline, of others hardly overlapping."""
    usual = own.duration_s

    def duration_s(gpu: Any, kernel: Any, *clocks: Any) -> Any:  # noqa: ANN401
        exponent = _HARD if _drawn(kernel) < 0.5 else _SOFT  # noqa: PLR2004 - half of them
        return usual(dataclasses.replace(gpu, exponent=exponent), kernel, *clocks)

    own.duration_s = duration_s


def voltages(own: Any) -> None:  # noqa: ANN401
    """Take the voltage from a table of few rungs instead of a curve."""
    usual = own.voltage_v
    own.voltage_v = lambda gpu, mhz: usual(gpu, _RUNG_MHZ * np.ceil(mhz / _RUNG_MHZ))


def cache(own: Any) -> None:  # noqa: ANN401
    """Let traffic rise in a step, at a core clock of each kernel's own."""
    usual = own.duration_s

    def duration_s(gpu: Any, kernel: Any, core_mhz: Any, mem_mhz: Any) -> Any:  # noqa: ANN401
        missing = core_mhz > gpu.boost_mhz * (0.5 + 0.45 * _drawn(kernel))
        heavy = dataclasses.replace(kernel, dram_mcycles=_MORE * kernel.dram_mcycles)
        few, many = (usual(gpu, each, core_mhz, mem_mhz) for each in (kernel, heavy))
        return np.where(missing, many, few)

    own.duration_s = duration_s


def nothing(_: Any) -> None:  # noqa: ANN401
    """Leave the physics as the fit has it."""


STRANGE: dict[str, Callable[[Any], None]] = {
    "usual": nothing,
    "joining": joining,
    "voltages": voltages,
    "cache": cache,
    "drift": nothing,
}
"""What is strange, by name; what drifts is the noise of runs, not physics."""


@contextmanager
def strange_gpus(name: str) -> Iterator[Any]:
    """Let every simulated GPU of this process be strange, within a block; yield its physics."""
    own = own_physics()
    STRANGE[name](own)
    users = [
        module
        for place, module in sys.modules.items()
        if place.startswith("underclock.hw.simulated") or place == "truth"
    ]
    with ExitStack() as stack:
        for module, what in itertools.product(users, _REPLACED):
            if getattr(module, what, None) is getattr(usual_costs, what):
                stack.enter_context(patch.object(module, what, getattr(own, what)))
        if name == "drift":
            stack.enter_context(patch.object(VirtualGpu, "draw_noise", _drifting))
        yield own


_steady_noise = VirtualGpu.draw_noise


def _drifting(device: VirtualGpu) -> tuple[float, float]:
    """Draw noise of a GPU whose pace and power come and go over half an hour."""
    phase = math.sin(2.0 * math.pi * device.now_s / _DRIFT_S)
    time, power = (
        each * (1.0 + far * phase) for each, far in zip(_steady_noise(device), _DRIFT, strict=True)
    )
    return time, power
