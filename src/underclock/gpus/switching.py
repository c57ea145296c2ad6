"""How a GPU's clocks follow its locks: what is reported of models, and how a virtual one does it.

A virtual GPU's clocks follow late, each target with a delay of its own.
"""

import functools
import math
import re
import zlib
from dataclasses import dataclass

import numpy as np

from underclock.gpus.sensors import Latency
from underclock.records.latencies import Domain

Bounds = tuple[int, int]
"""Least and greatest clock of a lock in MHz."""

# Measured on an A800: median 4.5 ms, mean 6 ms, 99 % within 13 ms. No log-normal has all three;
# a median and a 99th percentile like these would give it a mean of 5 ms.
_SETTER = Latency(shares=(0.0, 0.5, 0.75, 0.99, 1.0), points_s=(3.5e-3, 4.5e-3, 7e-3, 13e-3, 16e-3))


@dataclass(frozen=True, slots=True)
class ReportedLatency:
    """From call to new clock, as others report it: no more than a first guess for a board.

    Attributes:
        least_s: The least that was reported.
        most_s: The greatest.
        source: Of which GPUs, and how well known.
    """

    least_s: float
    most_s: float
    source: str


_REPORTED = (
    (
        r"[BG]?B[123]00|RTX 50\d\d|Blackwell",
        ReportedLatency(1e-5, 1e-4, "of Blackwell GPUs, unpublished"),
    ),
    (
        r"G?H[128]00|H20",
        ReportedLatency(6e-3, 0.1, "of Hopper GPUs, second-hand"),
    ),
    (r"V100", ReportedLatency(24.5e-3, 24.5e-3, "of a V100")),
    (
        r"Quadro RTX \d+|TITAN RTX|RTX 20\d\d|T4",
        ReportedLatency(0.15, 0.15, "of a Quadro RTX 6000, second-hand"),
    ),
    (
        r"A\d+0|A\d000|RTX [34]0\d\d|L4|L40",
        ReportedLatency(6e-3, 0.15, "of Hopper and Turing GPUs"),
    ),
)
"""What names of models hold, as whole words, and what is reported of those GPUs."""


def reported_latency(model: str) -> ReportedLatency | None:
    """Return what is reported of a GPU model, by its name; ``None`` where nothing is."""
    for names, reported in _REPORTED:
        if re.search(rf"\b(?:{names})S?(?: Ti| D)?\b", model, re.IGNORECASE):
            return reported
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchingModel:
    """What a change of clocks takes.

    First the call blocks; some time after it returns the clock changes. That delay depends on
    the target more than on where the clock comes from (LATEST, arXiv 2502.20075), so each
    target has its own, the same on every GPU of a model. The defaults are assumed: the published
    figures reach from 10 µs to 150 ms, and memory is believed to be much dearer than core.
    """

    setter: Latency = _SETTER
    """How long a call that sets or resets a lock blocks."""
    core_s: float = 0.020
    """Median delay over the targets of the core clock, giving it back to the driver included."""
    mem_s: float = 0.120
    """Median delay over the targets of the memory clock."""
    target_spread: float = 0.3
    """Standard deviation over targets, of the delay's logarithm."""
    jitter: float = 0.1
    """Standard deviation over switches to one target, of the delay's logarithm."""
    mem_stall_s: float = 0.010
    """Nothing executes for this long when the memory clock changes."""

    def __post_init__(self) -> None:
        """Reject what runs backwards."""
        if min(self.core_s, self.mem_s, self.target_spread, self.jitter, self.mem_stall_s) < 0:
            raise ValueError("delays and their spreads must not be negative")

    def usual_s(self, model: str, domain: Domain, bounds: Bounds | None) -> float:
        """Return the delay that a target has without jitter.

        Args:
            model: The GPU's name; it decides which targets are slow.
            domain: Whose clock.
            bounds: The lock; ``None`` gives the clock back.
        """
        median_s = self.core_s if domain is Domain.CORE else self.mem_s
        target = "auto" if bounds is None else f"{bounds[0]}-{bounds[1]}"
        return median_s * math.exp(self.target_spread * _deviation(f"{model}/{domain}/{target}"))

    def delay_s(
        self, model: str, domain: Domain, bounds: Bounds | None, random: np.random.Generator
    ) -> float:
        """Return the delay of one switch."""
        jitter = math.exp(self.jitter * float(random.standard_normal()))
        return self.usual_s(model, domain, bounds) * jitter


@functools.lru_cache(maxsize=4096)
def _deviation(target: str) -> float:
    """Return how a target differs from others, always the same: a standard normal draw."""
    return float(np.random.default_rng(zlib.crc32(target.encode())).standard_normal())
