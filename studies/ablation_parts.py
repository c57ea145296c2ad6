"""The parts of the estimate, and what stands for which name of the package while one is off."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias
from unittest.mock import patch

import numpy as np

from underclock.arrays import Floats
from underclock.core.model.conditioning import Sizes, likeliest_sizes
from underclock.core.model.observed import Observed
from underclock.records import SampleSet

Off: TypeAlias = Mapping[str, Any]
"""What stands for which name while a part is off."""
_NONE = 1e-6


def _every_run(sample_set: SampleSet) -> Floats:
    return np.ones((2, len(sample_set.samples)))


def _as_it_is(_: Any, state: Any) -> Any:  # noqa: ANN401
    return state


def _usual_priors(problem: Any, _: Any) -> Any:  # noqa: ANN401
    return problem


def _sized(**sizes: Any) -> Callable[..., Sizes]:  # noqa: ANN401
    return lambda *at, **of: dataclasses.replace(likeliest_sizes(*at, **of), **sizes)


def _usual_noise(observed: Any, usual: Floats) -> Floats:  # noqa: ANN401
    return np.tile(usual[:, None], observed.squares.shape[1])


def _known_noise(*of: Any, **_: bool) -> Observed:  # noqa: ANN401
    return _OBSERVED(*of, alike=True)


_OBSERVED = Observed.of
_MODEL = "underclock.core.model."
PARTS: dict[str, Off] = {
    "several starts": {f"{_MODEL}most_likely.restart": _as_it_is},
    "learned priors": {f"{_MODEL}most_likely.learn_priors": _usual_priors},
    "learned sizes": {f"{_MODEL}estimate.likeliest_sizes": lambda *_, **__: Sizes()},
    "deviations that kernels share": {
        f"{_MODEL}estimate.likeliest_sizes": _sized(shared=(_NONE, _NONE))
    },
    "smooth deviations": {f"{_MODEL}estimate.likeliest_sizes": _sized(smooth=(_NONE, _NONE))},
    "a row's own": {f"{_MODEL}estimate.likeliest_sizes": _sized(row=(_NONE, _NONE))},
    "a scale per kernel": {
        f"{_MODEL}conditioning.SCALES": np.ones(1),
        f"{_MODEL}posterior.SCALES": np.ones(1),
        f"{_MODEL}conditioning.LOG_ODDS": np.zeros(1),
    },
    "noise per kernel": {f"{_MODEL}observed.Observed.noise": _usual_noise},
    "power follows time": {f"{_MODEL}conditioning.COUPLED": 0.0, f"{_MODEL}posterior.COUPLED": 0.0},
    "odd repeats": {
        f"{_MODEL}estimate.sample_weights": _every_run,
        f"{_MODEL}sample_rows.sample_weights": _every_run,
    },
    "disturbed rows": {f"{_MODEL}left_out.LeftOut.odd": np.zeros(1, dtype=bool)},
    "widening by left-out rows": {f"{_MODEL}left_out.LeftOut.factor": lambda *_: 1.0},
    "sums off together": {
        f"{_MODEL}estimate._TOGETHER": (1.0, 1.0),
        f"{_MODEL}estimate._AT_LOCKS": (1.0, 1.0),
    },
    "bounds of time": {f"{_MODEL}estimate.bounded": lambda log_s, *_: log_s},
    "times between rows": {f"{_MODEL}estimate.between_rows": lambda posterior, *_: posterior},
    "attested rows": {f"{_MODEL}estimate._ATTESTED": np.inf},
    "impossible rows": {f"{_MODEL}estimate._slips": lambda log_s, _: np.zeros_like(log_s, bool)},
    "scale of unknown noise": {f"{_MODEL}estimate.Observed.of": _known_noise},
}


@contextmanager
def without(off: Off) -> Iterator[None]:
    """Switch parts off for the length of a block."""
    with ExitStack() as stack:
        for target, instead in off.items():
            stack.enter_context(patch(target, instead))
        yield
