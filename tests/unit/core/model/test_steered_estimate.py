"""Costs of a step whose clocks were steered with co-load, on a GPU made of physics alone."""

import msgspec
import numpy as np
import pytest

from steered_gpu import KERNELS, Synthetic, campaign
from underclock.core.model.entries import offered_settings
from underclock.core.model.estimate import estimate
from underclock.core.model.sample_sets import check_values
from underclock.core.steering import clock_range
from underclock.errors import DataError
from underclock.records import ALONE, AUTO, Clocks, SampleSet
from windows import having


@pytest.fixture(scope="module")
def samples() -> SampleSet:
    return campaign(Synthetic(seed=1), most=50)


def test_of_steered_clocks_those_within_reach_are_settings(samples: SampleSet) -> None:
    lowest, highest = clock_range(samples) or (0.0, 0.0)
    outside = (Clocks(core_mhz=int(lowest) - 15), Clocks(core_mhz=int(highest) + 15))
    memory = (Clocks(core_mhz=int(highest), mem_mhz=5001), Clocks(mem_mhz=5001))
    within = Clocks(core_mhz=int(lowest))
    asked = (AUTO, *outside, *memory, within, Clocks(core_mhz=int(highest)))
    offered = offered_settings(msgspec.structs.replace(samples, settings=asked), AUTO)

    assert offered == (within, Clocks(core_mhz=int(highest)))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"kernel": "another"}, "is no kernel of the step"),
        ({"kernel_s": ()}, "has 0 durations instead of 1"),
        ({"kernel": "", "kernel_s": ()}, "the step with co-load has 0 durations instead of 5"),
        ({"energy_j": 1e9}, "W"),
        ({"core_mhz": 1e6}, "MHz"),
    ],
)
def test_measurements_with_coload_that_cannot_be_are_refused(
    samples: SampleSet, changed: dict[str, object], words: str
) -> None:
    beside = next(w for w in samples.mixed if w.kernel and w.mix != ALONE)
    bad = msgspec.structs.replace(beside, **{"spin_mhz": None, **changed})

    with pytest.raises(DataError, match=words):
        check_values(msgspec.structs.replace(samples, windows=(bad,)))


@pytest.mark.parametrize("waited_for", [0.0, 0.5])
def test_what_launches_beside_others_draw_is_the_same_at_all_clocks(
    samples: SampleSet, waited_for: float
) -> None:
    kernels = [
        msgspec.structs.replace(kernel, waited_for=waited_for if kernel.name == "softmax" else 1.0)
        for kernel in samples.kernels
    ]
    table = estimate(having(samples, kernels=tuple(kernels))).costs.table
    at = list(KERNELS).index("softmax")

    assert table.fixed_j[at] > 0.0
    assert (np.delete(table.fixed_j, at) == 0.0).all()
    known = np.isfinite(table.energy_j[at])
    assert (table.energy_j[at, known] > table.fixed_j[at]).all()
    assert (np.ptp(table.time_s[at, known]) == 0.0) == (waited_for == 0.0)
