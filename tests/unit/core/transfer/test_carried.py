"""What samples of one step say of another."""

import math
import re

import msgspec
import numpy as np
import pytest

from made_transfers import BOOST_MHZ, gpt, made_samples, true_costs, true_step
from underclock.core.planning.best_choice import Goal
from underclock.core.planning.strategies import solve_strategies
from underclock.core.step.power_capped_step import cap_of
from underclock.core.transfer import Carried, carried
from underclock.core.transfer.matching import matched, rows_apart, work_of
from underclock.core.transfer.unseen import KnownKernels, Unseen, unseen
from underclock.errors import DataError
from underclock.records import Kernel, Kind, Launch, SampleSet, Step, Strategy
from underclock.records.planned import MatchWay
from windows import with_step


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
        match = smaller.matches.matches[kernel.name]
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
    link = Kernel(name="all-reduce x", kind=Kind.COLLECTIVE, bytes_moved=1e12, shape="2x[1]")
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
    assert found.matches.matches["odd"].way is MatchWay.NONE
    assert found.matches.matches["all-reduce x"].way is MatchWay.LINK
    assert found.matches.matches["odd"].time_spread > 1.0
    # Of links a time is assumed, however long; of what nothing tells, the longest measured is most.
    each, boards = table.launches.time_s, found.estimated.boards
    assert boards is not None
    drawn_s = np.array([launches.time_s[-2:] for launches in boards.launches])
    assert np.log(drawn_s[:, 1, 0]).mean() == pytest.approx(math.log(each[-1, 0]), abs=0.01)
    longest_s = each[:-2, 0].max()
    assert each[-1, 0] > 10 * longest_s
    assert drawn_s[:, 0, 0].max() < 1.01 * max(w.time_s for w in samples.windows if w.kernel)
    # The whole step may have one clock, the two of it no clocks of their own.
    _, settings = solve_strategies(table, Goal(max_slowdown=0.01), found.estimated)
    setting = settings[Strategy.KERNEL_GLOBAL]
    assert (setting[table.left] == table.baseline).all()
    assert (setting[~table.left] != table.baseline).any()


def test_a_step_that_its_cap_holds_is_held_at_another_size_too() -> None:
    step = gpt(batch=6)
    found = carried(made_samples(gpt(), held_mhz=1600), step).estimated
    table = found.table
    limit_w = cap_of(table).limit_w
    assert table.auto_w < limit_w * 1.001
    # A clock below the cap changes time as physics says, against the clock that is held.
    held_mhz = next(
        mhz
        for mhz in range(BOOST_MHZ, 900, -5)
        if np.divide(*true_step(step, mhz)[::-1]) <= limit_w
    )
    setting = next(s for s, c in enumerate(table.settings) if c.core_mhz == 1200)
    choice = np.full(len(step.kernels), setting)
    change = found.predicted_change(choice)
    truth = true_step(step, 1200)[0] / true_step(step, held_mhz)[0] - 1.0
    assert abs(change.time_change - truth) < 3 * change.time_spread + 0.003
    assert found.hangs_on(choice).argmax() in range(len(step.kernels))
    assert (found.hangs_on(choice) >= 0.0).all()


def test_kernels_that_were_measured_after_all_are_the_same(samples: SampleSet) -> None:
    step = gpt(batch=4)
    own = made_samples(step, whole=False)
    names = {kernel.name for kernel in step.kernels[2:5]}
    some = msgspec.structs.replace(
        own,
        step=Step(name="some", kernels=step.kernels[2:5]),
        windows=tuple(w for w in own.windows if w.kernel in names),
    )
    found = carried(samples, step, confirmed=some)
    assert found.matches.confirmed == tuple(kernel.name for kernel in step.kernels[2:5])
    assert all(found.matches.matches[name].way is MatchWay.SAME for name in names)
    before = carried(samples, step).matches.matches
    assert all(
        found.matches.matches[name].energy_spread < before[name].energy_spread for name in names
    )


def _known(count: int) -> KnownKernels:
    sizes = np.arange(1.0, count + 1.0)
    return KnownKernels(
        kinds=np.ones(count, dtype=np.int64),
        work=np.stack([1e9 * sizes, 1e6 * sizes]),
        parameters=np.log(np.outer(sizes, [1.0, 0.5, 0.1, 2.0])),
        cov=np.tile(1e-6 * np.eye(4), (count, 1, 1)),
    )


def _unseen(
    known: KnownKernels,
    bytes_moved: float,
) -> Unseen:
    """Tell of a kernel of the same kind by its bytes."""
    flops_per_byte = known.work[0, 0] / known.work[1, 0]
    return unseen(
        known,
        np.ones(len(known.kinds), dtype=bool),
        np.ones(1, dtype=np.int64),
        np.outer([flops_per_byte, 1.0], bytes_moved),
        np.full(1, -1),
        np.zeros(1, dtype=bool),
        np.zeros(1),
    )


@pytest.mark.parametrize("count", [2, 8])
def test_a_size_of_a_kind_follows_its_work(count: int) -> None:
    told = _unseen(_known(count), 5e6)
    # What a launch takes is that of the smallest.
    assert np.exp(told.parameters[0]) == pytest.approx([5.0, 2.5, 0.1, 10.0], rel=0.02)
    assert told.kept[0] == 0.0
    # Two kernels show no deviation from a line; eight show that there is none.
    assert (np.sqrt(np.diag(told.cov[0])) > 0.4).all() == (count == 2)


def _traced(name: str, function: str, operator: str, module: str, size: float) -> Kernel:
    launch = Launch(function=function, operator=operator, module=module, identity=f"{name}{size}")
    kind = Kind.GEMM if operator == "aten::mm" else Kind.MEMORY
    flops = 2e3 * size if kind is Kind.GEMM else None
    return Kernel(name=name, kind=kind, flops=flops, bytes_moved=size, launch=launch)


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
    fused = msgspec.structs.replace(new[0], flops=None)
    assert matched(known, usable, [fused])[0].way is MatchWay.NONE  # its work is not known
    usable[1] = False
    assert matched(known, usable, new)[0].way is MatchWay.NONE


@pytest.mark.parametrize(("rows", "warned"), [(128, False), (64, True)])
def test_rows_of_another_length_are_warned_of(
    samples: SampleSet, rows: int, *, warned: bool
) -> None:
    def laid_out(kernels: tuple[Kernel, ...], length: int) -> tuple[Kernel, ...]:
        return tuple(
            msgspec.structs.replace(
                kernel,
                launch=Launch(
                    function=kernel.name,
                    operator=kernel.name,
                    shapes=f"bf16[8x{length}]",
                    identity=f"{kernel.name} of {kernel.bytes_moved}",
                ),
            )
            for kernel in kernels
        )

    known = with_step(samples, kernels=laid_out(samples.kernels, 128))
    step = gpt(batch=4)
    step = msgspec.structs.replace(step, kernels=laid_out(step.kernels, rows))

    warnings = carried(known, step).estimated.table.warnings

    assert any("rows of another length" in each for each in warnings) is warned


def test_auto_itself_is_told_as_surely_as_it_is_known(samples: SampleSet) -> None:
    for step in (gpt(batch=4, tp=2), gpt(batch=6)):
        found = carried(samples, step).estimated
        ends = re.search(r"takes (\S+) ms to (\S+) ms at auto", found.table.warnings[0])
        assert ends is not None
        assert float(ends[1]) < 1e3 * true_step(step, BOOST_MHZ)[0] < float(ends[2])


def _of_shapes(shapes: str, identity: str) -> Kernel:
    launch = Launch(
        function="softmax",
        operator="aten::_softmax",
        module="b.*",
        shapes=shapes,
        identity=identity,
    )
    return Kernel(name="softmax", kind=Kind.MEMORY, launch=launch)


@pytest.mark.parametrize(
    ("shapes", "moved"),
    [
        ("bf16[8x1024], bool[4]@1", 2 * 8 * 1024 + 4),
        ("fp32[2x3], i64[]", 24 + 8),
        ("3 tensors[12]", 12),
        ("", 0),
    ],
)
def test_a_traced_kernel_moves_what_its_inputs_hold(shapes: str, moved: int) -> None:
    assert work_of([_of_shapes(shapes, "a")])[1, 0] == moved


@pytest.mark.parametrize(
    ("known", "wanted", "apart"),
    [
        ("bf16[40x16x128], bool[128]", "bf16[8x16x128], bool[128]", 1.0),
        ("bf16[16384x2048], bf16[2048x512]", "bf16[16384x1024], bf16[1024x1024]", 2.0),
        ("bf16[40x128]", "bf16[40x128], bf16[128]", 1.0),
        ("3 tensors[12], i64[]", "3 tensors[6], i64[]", 1.0),
        ("bf16[8x0]", "bf16[8x4]", 4.0),
    ],
)
def test_rows_are_apart_where_last_axes_are(known: str, wanted: str, apart: float) -> None:
    one, other = _of_shapes(known, "a"), _of_shapes(wanted, "b")

    assert np.exp(rows_apart(one, other)) == pytest.approx(apart)
    assert rows_apart(one, other) == rows_apart(other, one)
    assert rows_apart(one, Kernel(name="named", kind=Kind.MEMORY)) == 0.0
