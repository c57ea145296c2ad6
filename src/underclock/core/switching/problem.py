"""The planning problem when clocks take time and energy to change.

A step repeats, so its kernels form a ring: the last is followed by the first. Boundary i lies
before invocation i; boundary 0 is the wrap-cycle. A segment is a longest run of invocations at one
setting, round the wrap too.

Shape letters: K kernels, n invocations, S settings.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from underclock.arrays import Bools, Floats, Ints

# Sums are floats: a budget that is the exact time of a choice must admit the choice, and a dwell
# that is the exact length of a segment must let go of it.
SLACK = 1e-12
DWELL_SLACK = 1e-9


def _no_floats() -> Floats:
    return np.zeros((0, 0))


def _no_bools() -> Bools:
    return np.zeros(0, dtype=np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceProblem:
    """Pick one setting per invocation: least energy within a time budget, switches included.

    Attributes:
        time_s: Of one invocation; ``inf`` where a setting is not available. Shape (K, S).
        energy_j: Of one invocation; ``inf`` in the same places. Shape (K, S).
        order: Which kernel each invocation is. Shape (n,).
        switch_time_s: Time lost by changing setting, row to column; zero diagonal. Shape (S, S).
        switch_energy_j: Energy of the change, row to column; zero diagonal. Shape (S, S).
        dwell_s: Least length of a segment at the row's setting before the column's can follow, for
            the change is asked for ahead and takes that long. Nothing dwells in a schedule that
            never switches. Zeros unless given. Shape (S, S).
        jitter_s: Standard deviation of when a change happens, row to column. No solver looks here,
            nor at the two that follow. Zeros unless given. Shape (S, S).
        miss_time_s: Of `switch_time_s`, what stands for changes that come early or late, as it is
            at a usual boundary. Zeros unless given. Shape (S, S).
        miss_energy_j: The same of `switch_energy_j`. Shape (S, S).
        blocked: Where no change may happen: boundary i lies before invocation i, the first after
            the last. Nowhere unless given. Shape (n,).
        max_switches: Most changes in one round; ``None`` for no limit.
        budget_s: Most time one round may take; ``inf`` for no limit.
    """

    time_s: Floats
    energy_j: Floats
    order: Ints
    switch_time_s: Floats
    switch_energy_j: Floats
    dwell_s: Floats = field(default_factory=_no_floats)
    jitter_s: Floats = field(default_factory=_no_floats)
    miss_time_s: Floats = field(default_factory=_no_floats)
    miss_energy_j: Floats = field(default_factory=_no_floats)
    blocked: Bools = field(default_factory=_no_bools)
    max_switches: int | None = None
    budget_s: float = math.inf

    def __post_init__(self) -> None:
        """Fill in what was left out, and reject what does not fit together."""
        self._check_kernels()
        settings = self.time_s.shape[1]
        for name in ("dwell_s", "jitter_s", "miss_time_s", "miss_energy_j"):
            if getattr(self, name).size == 0:
                object.__setattr__(self, name, np.zeros((settings, settings)))
        if self.blocked.size == 0:
            object.__setattr__(self, "blocked", np.zeros(len(self.order), dtype=np.bool_))
        for name in ("switch_time_s", "switch_energy_j", "dwell_s", "jitter_s"):
            _check_pairs(name, getattr(self, name), settings)
        if self.blocked.shape != self.order.shape or self.blocked.dtype != np.bool_:
            raise ValueError(
                f"blocked needs {len(self.order)} booleans, one per invocation, "
                f"got {self.blocked.dtype} of shape {self.blocked.shape}"
            )
        if self.max_switches is not None and self.max_switches < 0:
            raise ValueError(f"max_switches must not be negative, got {self.max_switches}")
        if not self.budget_s > -math.inf:
            raise ValueError(f"budget_s must be a number or inf, got {self.budget_s}")

    def _check_kernels(self) -> None:
        if self.time_s.shape != self.energy_j.shape or self.time_s.ndim != 2:  # noqa: PLR2004
            raise ValueError(
                f"need two (K, S) tables, got {self.time_s.shape} and {self.energy_j.shape}"
            )
        known = np.isfinite(self.time_s)
        chooses = known.size > 0 and known.any(axis=1).all()
        if (known != np.isfinite(self.energy_j)).any() or not chooses:
            raise ValueError("every kernel needs a setting with both a time and an energy")
        if not ((self.time_s >= 0).all() and (self.energy_j >= 0).all()):
            raise ValueError("times and energies must not be negative")
        if self.order.ndim != 1 or not len(self.order) or self.order.dtype.kind not in "iu":
            raise ValueError("order must name the kernel of at least one invocation, as integers")
        if self.order.min() < 0 or self.order.max() >= len(self.time_s):
            raise ValueError(
                f"order names kernels {self.order.min()} to {self.order.max()}, "
                f"the tables hold {len(self.time_s)}"
            )

    @property
    def latest_s(self) -> float:
        """Return the budget with what rounding may add to a sum that meets it exactly."""
        return self.budget_s + SLACK * abs(self.budget_s)


def _check_pairs(name: str, values: Floats, settings: int) -> None:
    if values.shape != (settings, settings):
        raise ValueError(f"{name} needs shape {(settings, settings)}, got {values.shape}")
    if not (np.isfinite(values).all() and (values >= 0).all()):
        raise ValueError(f"{name} must be finite and not negative")
    if values.diagonal().any():
        raise ValueError(f"{name} must be zero from a setting to itself")
