"""HiGHS, as both kinds of problem are given to it (extra ``milp``)."""

import math
from typing import Any

from underclock.errors import NotSupportedError

TOLERANCE = 1e-10
"""The least that HiGHS takes. It is absolute: give it numbers around one."""


def loaded() -> Any:  # noqa: ANN401 - highspy is untyped
    """Return highspy.

    Raises:
        NotSupportedError: It is not installed.
    """
    try:
        import highspy  # noqa: PLC0415 - an extra: its absence is said where it is used
    except ImportError as exc:
        raise NotSupportedError(
            "the milp solver needs highspy", hint="in a clone of underclock: pip install '.[milp]'"
        ) from exc
    return highspy


def run(model: Any, *, gap: float, time_limit_s: float) -> Any:  # noqa: ANN401 - likewise
    """Return a silent solver that has worked on a model.

    Args:
        model: A `highspy.HighsLp`.
        gap: Relative gap at which to stop.
        time_limit_s: Wall-clock time at which to stop; ``inf`` for no limit.
    """
    solver = loaded().Highs()
    solver.silent()
    solver.setOptionValue("mip_rel_gap", gap)
    solver.setOptionValue("mip_abs_gap", 0.0)
    for tolerance in ("primal_feasibility_tolerance", "mip_feasibility_tolerance"):
        solver.setOptionValue(tolerance, TOLERANCE)
    if math.isfinite(time_limit_s):
        solver.setOptionValue("time_limit", time_limit_s)
    solver.passModel(model)
    solver.run()
    return solver
