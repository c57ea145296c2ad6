"""What a step at auto costs, shared among kernels that were measured alone.

Who knows kernels at one pair of clocks only, as a breakdown and a prediction do, cannot say at
which clock the cap lets each of them run in the step. The difference is left on the kernels that
were at the cap.

Shape letters: K kernels.
"""

import dataclasses

import numpy as np

from underclock.arrays import Bools, Floats
from underclock.core.costs.table import CostTable, step_means
from underclock.errors import DataError
from underclock.records import Closure, Sample


def settle_auto(table: CostTable, in_situ: tuple[Sample, ...], capped: Bools) -> CostTable:
    """Make the auto column add up to the step as it really runs; other columns stay as measured.

    Args:
        table: Costs with an isolated auto column.
        in_situ: Samples of the whole step at auto.
        capped: Which kernels were at the power cap when measured alone at auto. Shape (K,).

    Raises:
        DataError: The step costs less than its kernels away from the cap do.
    """
    real_s, real_j = step_means(in_situ)
    time_s, energy_j = table.time_s.copy(), table.energy_j.copy()
    for costs, real in ((time_s, real_s), (energy_j, real_j)):
        costs[:, table.baseline] *= _settling_factors(costs[:, table.baseline], real, capped)
    return dataclasses.replace(
        table,
        time_s=time_s,
        energy_j=energy_j,
        closure=Closure(time=table.auto_time_s / real_s, energy=table.auto_energy_j / real_j),
    )


def _settling_factors(auto: Floats, total: float, capped: Bools) -> Floats:
    """Return by how much each kernel's isolated auto cost must change to add up to the step's.

    A power cap averages over many kernels: in the step a kernel at the cap borrows power from its
    neighbours, alone it cannot, so isolated kernels at auto do not add up to the step. The
    difference is put on the kernels that were at the cap, in proportion; on all where none was.

    Args:
        auto: Isolated cost of all invocations of each kernel. Shape (K,).
        total: Cost of the whole step, in the same unit.
        capped: Which kernels were at the power cap. Shape (K,).

    Raises:
        DataError: The step costs less than its kernels away from the cap do by themselves.
    """
    movable = capped if capped.any() else np.ones_like(capped)
    factor = (total - auto[~movable].sum()) / auto[movable].sum()
    if factor <= 0:
        raise DataError(
            f"the whole step cost {total:g} s or J, less than its kernels did one by one",
            hint="the samples are not of this step: measure again",
        )
    return np.where(movable, factor, 1.0)
