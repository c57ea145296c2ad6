"""The parts that `studies/ablation.py` switches off are where it says; what no clock explains."""

import numpy as np
import pytest

from ablation_parts import PARTS, Off, without
from draws import impossible
from underclock.core.step.cost_table import CostTable
from underclock.records import Clocks, Kernel


@pytest.mark.parametrize("off", PARTS.values(), ids=PARTS)
def test_every_part_is_there_to_be_switched_off(off: Off) -> None:
    with without(off):
        pass


@pytest.mark.parametrize(("ratio", "named"), [(0.94, True), (0.96, False), (2.3, True)])
def test_a_time_ratio_that_no_clock_explains_is_named(*, ratio: float, named: bool) -> None:
    time_s = np.array([[ratio, 1.0]])
    clocks, kernel = (Clocks(core_mhz=500), Clocks(core_mhz=1000)), Kernel(name="k", count=1)
    table = CostTable(
        kernels=(kernel,), settings=clocks, time_s=time_s, energy_j=time_s, baseline=1
    )
    assert impossible(table, np.array([0])).tolist() == [named]
