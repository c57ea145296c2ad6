"""Sequence problems for tests."""

from typing import Any

import numpy as np

from underclock.core.solvers import SequenceProblem


def sequence(**fields: Any) -> SequenceProblem:
    """Make a problem; unless given, no change is late or needs room, and none is blocked."""
    none = np.zeros((fields["time_s"].shape[1],) * 2)
    usual: dict[str, Any] = dict.fromkeys(
        ("dwell_s", "jitter_s", "miss_time_s", "miss_energy_j"), none
    )
    usual["blocked"] = np.zeros(len(fields["order"]), dtype=np.bool_)
    return SequenceProblem(**(usual | fields))
