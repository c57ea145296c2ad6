"""The parts of the estimation, and what stands for which name of the package while one is off."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias
from unittest.mock import patch

import numpy as np

from underclock.arrays import Floats
from underclock.core.inference.curves import Curves, power_curves, time_curves
from underclock.core.inference.field import Sizes
from underclock.core.inference.runs import RunLogs
from underclock.core.inference.sizes import likeliest
from underclock.core.inference.table import Optimism
from underclock.core.model.in_step import StepRatio
from underclock.records import SampleSet

Off: TypeAlias = Mapping[str, Any]
"""What stands for which name while a part is off."""


def _same_clocks(core: Floats, mem: Floats, other_core: Floats, other_mem: Floats) -> Floats:
    same = (core[:, None] == other_core) & (mem[:, None] == other_mem)
    return np.asarray(same, dtype=np.float64)


def _every_run(sample_set: SampleSet) -> Floats:
    return np.ones((2, len(sample_set.samples)))


def _as_it_is(_: Any, state: Any) -> Any:  # noqa: ANN401
    return state


_MODEL = "underclock.core.model."
MODEL: dict[str, Off] = {
    "several starts": {f"{_MODEL}most_likely.restart": _as_it_is},
    "learned prior of kernels": {f"{_MODEL}most_likely.learn_prior": _as_it_is},
    "widened prior of the GPU": {f"{_MODEL}most_likely.check_shared": _as_it_is},
    "learned sizes of errors": {f"{_MODEL}most_likely.estimate_errors": _as_it_is},
    "scale per kernel": {
        f"{_MODEL}most_likely._scale": lambda _, state, __: np.ones_like(state.scale)
    },
    "discrepancy along clocks": {
        f"{_MODEL}predictive.alike": _same_clocks,
        f"{_MODEL}whitening.alike": _same_clocks,
    },
    "power in the step": {f"{_MODEL}estimate.step_ratio": lambda *_: StepRatio()},
    "peak of power": {"underclock.core.steering.power_peak.peak_seen_w": lambda *_: math.inf},
    "heat of the step": {f"{_MODEL}estimate._heat": lambda *_: None},
    "error of the step": {
        f"{_MODEL}cost_estimate.CostEstimate.with_step_error": lambda one, *_: one
    },
    "odd repeats": {
        f"{_MODEL}estimate.sample_weights": _every_run,
        f"{_MODEL}sample_rows.sample_weights": _every_run,
    },
}
FIVE = (
    *("several starts", "learned prior of kernels", "widened prior of the GPU"),
    *("scale per kernel", "power in the step"),
)


def _sized(**sizes: float) -> Callable[..., Sizes]:
    return lambda *at: dataclasses.replace(likeliest(*at), **sizes)


def _without_shared(curves: Callable[..., Curves]) -> Callable[..., Curves]:
    return lambda *at: dataclasses.replace(c := curves(*at), shared=1e-9 * np.eye(len(c.mean)))


def _power_law(grid: Any, *_: Any) -> Curves:  # noqa: ANN401
    draws = [
        [-a * np.log(grid.core) - b * np.log(grid.mem) for b in (-0.5, 0.0, 0.5, 1.0)]
        for a in (-2.0, -1.0, 0.0, 1.0)
    ]
    every = np.array([row for rows in draws for row in rows])
    return Curves.of(np.stack([every, every]))


def _all_alike(runs: RunLogs, *_: Any) -> Floats:  # noqa: ANN401
    return np.ones(len(runs.kernel))


_TABLE, _FIELD = "underclock.core.inference.table.", "underclock.core.inference.field."
INFERENCE: dict[str, Off] = {
    "physics of the curves": {
        f"{_TABLE}time_curves": _power_law,
        f"{_TABLE}power_curves": _power_law,
    },
    "curves that kernels share": {
        f"{_TABLE}likeliest": _sized(shared=1e-6),
        **{
            f"{_TABLE}{name}": _without_shared(curves)
            for name, curves in (("time_curves", time_curves), ("power_curves", power_curves))
        },
    },
    "power follows time": {f"{_FIELD}_COUPLED": 1e-6},
    "a scale per kernel": {f"{_FIELD}SCALES": np.ones(1), f"{_FIELD}_LOG_ODDS": np.zeros(1)},
    "a row's own": {f"{_TABLE}likeliest": _sized(row=1e-6)},
    "smooth deviation": {f"{_TABLE}likeliest": _sized(smooth=1e-6)},
    "learned sizes": {f"{_TABLE}likeliest": lambda *_: Sizes()},
    "odd runs": {
        f"{_TABLE}reweighed": _all_alike,
        f"{_TABLE}without_odd": _all_alike,
        f"{_TABLE}first_weights": _all_alike,
    },
    "widening by left-out rows": {"underclock.core.inference.table._factor": lambda *_: 1.0},
    "optimism": {f"{_TABLE}optimism": lambda *_: Optimism()},
}


@contextmanager
def without(off: Off) -> Iterator[None]:
    """Switch parts off for the length of a block."""
    with ExitStack() as stack:
        for target, instead in off.items():
            stack.enter_context(patch(target, instead))
        yield
