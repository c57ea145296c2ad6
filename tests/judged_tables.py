"""Plans of tables judged on rows of tables, as if each row were a run of the step."""

from pathlib import Path

import numpy as np

from underclock.app.validating import judged_runs
from underclock.records import TOLERANCE, Clocks, Plan, SampleSet, Validation
from underclock.store import read_samples


def judged(
    plan: Plan, table: SampleSet | Path, *, repeats: int = 10, tolerance: float = TOLERANCE
) -> Validation:
    """Judge a plan's kernels on a table, whose rows of a kernel and clock pair are repeats."""
    rows: dict[tuple[str, Clocks], list[tuple[float, float]]] = {}
    for window in read_samples(table).samples:
        rows.setdefault((window.kernel, window.asked), []).append((window.time_s, window.energy_j))

    def runs(clocks: dict[str, Clocks]) -> np.ndarray:
        counts = {kernel.name: kernel.count for kernel in plan.step.kernels}
        return np.array(
            [
                np.sum(
                    [
                        counts[name] * np.array(rows[name, each][n % len(rows[name, each])])
                        for name, each in clocks.items()
                    ],
                    axis=0,
                )
                for n in range(repeats)
            ]
        )

    totals = {
        "auto": runs(dict.fromkeys(plan.kernels, plan.baseline)),
        "plan": runs({name: choice.clocks for name, choice in plan.kernels.items()}),
    }
    return judged_runs(plan, totals, tolerance)
