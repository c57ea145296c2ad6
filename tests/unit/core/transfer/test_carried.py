"""What samples of one step say of another."""

import msgspec
import numpy as np
import pytest

from made_transfers import BOOST_MHZ, gpt, made_samples, true_costs, true_step
from underclock.core.transfer import Carried, carried
from underclock.core.transfer.matching import matched
from underclock.errors import DataError
from underclock.records import Kernel, Kind, Launch, SampleSet, Step
from underclock.records.carried import MatchWay
from underclock.workloads import workload


@pytest.fixture(scope="module")
def samples() -> SampleSet:
    return made_samples(gpt())


@pytest.fixture(scope="module")
def smaller(samples: SampleSet) -> Carried:
    return carried(samples, gpt(batch=4, tp=2))


def test_a_smaller_step_costs_what_physics_says_within_the_errors_told(smaller: Carried) -> None:
    step = gpt(batch=4, tp=2)
    table = smaller.estimated.table
    boost = next(s for s, c in enumerate(table.settings) if c.core_mhz == BOOST_MHZ)

    off = []
    for k, kernel in enumerate(step.kernels):
        match = smaller.told.matches[kernel.name]
        true_s, _ = true_costs(kernel, BOOST_MHZ)
        off.append(np.log(table.time_s[k, boost] / kernel.count / true_s) / match.time_spread)
        if match.way is MatchWay.ROLE:
            assert match.source == kernel.name
    assert np.mean(np.abs(off) < 2.5) > 0.9
    assert table.auto_time_s == pytest.approx(true_step(step, BOOST_MHZ)[0], rel=0.02)
    assert table.auto_energy_j == pytest.approx(true_step(step, BOOST_MHZ)[1], rel=0.02)
    assert "was not measured" in table.warnings[0]


def test_changes_of_a_clock_lie_within_their_intervals(smaller: Carried) -> None:
    step, estimated = gpt(batch=4, tp=2), smaller.estimated
    auto_s, auto_j = true_step(step, BOOST_MHZ)
    assert not estimated.exact
    assert estimated.time_variance(np.zeros(len(step.kernels), dtype=np.int64)) is None
    for core_mhz in (1200, 1680):
        setting = next(s for s, c in enumerate(estimated.table.settings) if c.core_mhz == core_mhz)
        change = estimated.predicted_change(np.full(len(step.kernels), setting))
        time_s, energy_j = true_step(step, core_mhz)
        assert abs(change.time_change - (time_s / auto_s - 1.0)) < 3 * change.time_spread
        # Heat is not in these truths, and is a part of what is told.
        assert abs(change.energy_change - (energy_j / auto_j - 1.0)) < 0.05
    at_auto = np.full(len(step.kernels), estimated.table.baseline)
    same = estimated.predicted_change(at_auto)
    assert same.time_spread == same.energy_spread == same.time_change == 0.0


def test_the_step_itself_is_told_by_its_own_kernels(samples: SampleSet) -> None:
    own = carried(samples, gpt())
    assert own.told.counts == {MatchWay.SAME: len(samples.kernels)}


def test_a_step_of_other_kernels_is_refused(samples: SampleSet) -> None:
    other = Step(name="other", kernels=(Kernel(name="a", flops=1e9, bytes_moved=1e6),), order=(0,))
    with pytest.raises(DataError, match="other shares no kernel with gpt3-125m"):
        carried(samples, other)


def test_samples_of_kernels_alone_are_refused() -> None:
    alone = made_samples(gpt(), whole=False)
    with pytest.raises(DataError, match="kernels alone"):
        carried(alone, gpt(batch=4))


def test_what_is_like_nothing_measured_stays_at_auto(samples: SampleSet) -> None:
    step = gpt(batch=4)
    odd = Kernel(name="odd", kind=None)
    link = Kernel(name="all-reduce x", kind=Kind.COLLECTIVE, bytes_moved=1e6, shape="2x[1]")
    more = msgspec.structs.replace(
        step,
        kernels=(*step.kernels, odd, link),
        order=(*step.order, len(step.kernels), len(step.kernels) + 1),
    )
    found = carried(samples, more)
    table = found.estimated.table
    assert table.left is not None
    assert [k.name for k, left in zip(table.kernels, table.left, strict=True) if left] == [
        "odd",
        "all-reduce x",
    ]
    assert found.told.matches["odd"].way is MatchWay.NONE
    assert found.told.matches["all-reduce x"].way is MatchWay.LINK
    assert found.told.matches["odd"].time_spread > 1.0


def _traced(name: str, function: str, operator: str, module: str, size: float) -> Kernel:
    launch = Launch(function=function, operator=operator, module=module, identity=f"{name}{size}")
    kind = Kind.GEMM if operator == "aten::mm" else Kind.MEMORY
    return Kernel(name=name, kind=kind, bytes_moved=size, launch=launch)


def test_traced_kernels_are_matched_by_operator_module_and_function() -> None:
    known = (
        _traced("q mm", "nvjet_128", "aten::mm", "layers.*.q", 1e6),
        _traced("o mm", "nvjet_128", "aten::mm", "layers.*.o", 1e6),
        _traced("norm", "layer_norm", "aten::layer_norm", "layers.*.norm", 1e6),
    )
    new = (
        _traced("o mm", "nvjet_64", "aten::mm", "layers.*.o", 3e6),
        _traced("norm", "other_norm", "aten::layer_norm", "layers.*.norm", 3e6),
        known[0],
    )
    usable = np.ones(3, dtype=bool)
    found = matched(known, usable, new)
    assert [(each.way, each.source) for each in found] == [
        (MatchWay.ROLE, 1),
        (MatchWay.NONE, None),
        (MatchWay.SAME, 0),
    ]
    usable[1] = False
    assert matched(known, usable, new)[0].way is MatchWay.NONE


def test_another_model_of_the_family_is_told_by_roles(samples: SampleSet) -> None:
    found = carried(samples, workload("gpt3-350m", {"batch": 4, "collectives": 0}))
    assert found.told.counts[MatchWay.ROLE] > 0.8 * len(found.told.matches)
