"""What one clock leaves possible, and what a plan on it would save."""

import dataclasses

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpu_specs import SPECS
from underclock.core.prediction.draws import draw_costs
from underclock.core.prediction.prior import (
    FITTED,
    PUBLISHED,
    BaselineRun,
    Prior,
    ReferenceKernel,
    TimeShares,
    reference_kernels,
    time_shares,
)
from underclock.core.prediction.savings import (
    CostTableDraws,
    at_baseline,
    baseline_runs,
    draw_tables,
    interval,
    savings_after_measuring,
    savings_without_measuring,
)
from underclock.errors import DataError
from underclock.physics.constants import KernelConstants
from underclock.physics.costs import duration_s, xbar_mhz
from underclock.records import (
    AUTO,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    SampleSet,
    Strategy,
    ThrottleReason,
    Utilisation,
    Window,
)
from windows import gathered

_MODEL = SPECS["rtx3080ti"]
_GPU = _MODEL.constants
_TOP = 9501.0
_REFERENCES = (
    ReferenceKernel(shares=TimeShares(core=0.9, dram=0.05, fixed=0.05), power_share=0.95),
    ReferenceKernel(shares=TimeShares(core=0.1, dram=0.8, fixed=0.1), power_share=0.7),
    ReferenceKernel(shares=TimeShares(core=0.3, dram=0.3, fixed=0.4, serial=True), power_share=0.5),
)
_PRIOR = Prior(
    gpu=_GPU, deviations=FITTED, references=_REFERENCES, dram_j_per_mcycle=0.0075, limit_w=348.0
)
_CLOCKS = (*(Clocks(core_mhz=mhz) for mhz in (600, 900, 1200, 1500, 1800)), AUTO)
_COPY = Utilisation(sm=1.0, tensor=0.0, fp32=0.2, dram=0.92)
_PRODUCT = Utilisation(sm=1.0, tensor=0.9, fp32=0.0, dram=0.1)


def _run(**changes: object) -> BaselineRun:
    run = BaselineRun(time_s=1e-3, power_w=250.0, core_mhz=1900.0, mem_mhz=_TOP, temperature_c=60.0)
    return dataclasses.replace(run, **changes)  # type: ignore[arg-type]


parts = st.floats(0.01, 1.0)


@given(parts, parts, parts, parts, st.floats(500.0, 1900.0), st.booleans())
def test_shares_are_what_time_follows(
    core: float,
    dram: float,
    xbar: float,
    fixed: float,
    core_mhz: float,
    serial: bool,  # noqa: FBT001
) -> None:
    kernel = KernelConstants(
        core_mcycles=core * core_mhz,
        dram_mcycles=dram * _TOP,
        xbar_mcycles=xbar * float(xbar_mhz(_GPU, core_mhz)),
        fixed_s=fixed,
        serial=serial,
    )
    shares = time_shares(_GPU, kernel, core_mhz, _TOP)
    time_s, slower_s = (
        duration_s(_GPU, kernel, mhz, _TOP) for mhz in (core_mhz, core_mhz * 0.9999)
    )
    follows = core_mhz - _GPU.xbar_lag_mhz > _GPU.xbar_floor_mhz + 1.0
    bends = core_mhz - _GPU.xbar_lag_mhz < _GPU.xbar_floor_mhz - 1.0

    assume(follows or bends)
    expected = shares.core
    if follows:
        expected += shares.xbar * core_mhz / (core_mhz - _GPU.xbar_lag_mhz)
    assert (slower_s / time_s - 1.0) / 1e-4 == pytest.approx(expected, rel=1e-2, abs=1e-6)


def test_a_kernel_of_fixed_time_follows_no_clock() -> None:
    still = time_shares(_GPU, KernelConstants(fixed_s=1e-3), 1900.0, _TOP)

    assert (still.core, still.dram, still.fixed) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize("parts", [(0.5, 0.6), (1.2, -0.2)])
def test_shares_that_do_not_add_to_one_are_refused(parts: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="add to 1"):
        TimeShares(core=parts[0], dram=parts[1], fixed=0.0)


@pytest.mark.untraced
def test_a_busier_memory_leaves_less_to_the_core() -> None:
    runs = [
        _run(utilisation=Utilisation(sm=1.0, tensor=0.0, fp32=0.3, dram=dram))
        for dram in (0.05, 0.3, 0.6, 0.9)
    ]
    slower = draw_costs(_PRIOR, runs, _CLOCKS, draws=100, seed=0).time[:, :, 2].mean(axis=0)

    assert (np.diff(slower) < 0.0).all()


def test_reference_kernels_are_described_at_the_clocks_they_run_at() -> None:
    hungry = KernelConstants(core_mcycles=1.9, work_j_per_v2=0.4)
    light = KernelConstants(core_mcycles=1.9, work_j_per_v2=0.01)
    bins_mhz = np.array(_MODEL.core_mhz, dtype=np.float64)

    capped, free = reference_kernels(_GPU, [hungry, light], bins_mhz, 348.0)

    assert capped.power_share == pytest.approx(1.0, abs=0.01)
    assert free.power_share < 0.8
    assert capped.shares.core == pytest.approx(1.0)


def test_nothing_is_said_without_reference_kernels() -> None:
    with pytest.raises(ValueError, match="reference kernels"):
        dataclasses.replace(_PRIOR, references=())


@pytest.mark.parametrize(
    "run",
    [
        _run(),
        _run(core_mhz=None, temperature_c=None),
        _run(core_mhz=None, power_w=349.0, capped=True),
        _run(core_mhz=1700.0, power_w=349.0, capped=True),
        _run(locked=True, core_mhz=1200.0),
        _run(utilisation=_COPY),
        _run(utilisation=_PRODUCT),
        _run(power_w=60.0),  # less than such a GPU draws at rest
    ],
)
def test_every_draw_is_a_possible_gpu(run: BaselineRun) -> None:
    costs = draw_costs(_PRIOR, [run], _CLOCKS, draws=20, seed=0)

    assert costs.time.shape == costs.energy.shape == (20, 1, 6)
    assert np.isfinite(costs.time).all()
    assert (costs.time > 0).all()
    assert (costs.energy > 0).all()
    # A slower core never makes a kernel faster.
    assert (np.diff(costs.time[:, 0, :5], axis=1) <= 1e-12).all()


def test_the_same_seed_draws_alike() -> None:
    one, two, other = (
        draw_costs(_PRIOR, [_run()], _CLOCKS, draws=5, seed=seed) for seed in (1, 1, 2)
    )

    assert (one.time == two.time).all()
    assert (one.time != other.time).any()


def test_progress_is_told_draw_by_draw() -> None:
    tables = _tables(_sample_set(*_TWO), draws=2)
    drawn: list[float] = []
    draw_costs(_PRIOR, [_run()], _CLOCKS, draws=2, seed=0, progress=drawn.append)
    chosen: list[float] = []
    savings_after_measuring(tables, 0.05, 0.95, progress=chosen.append)

    assert drawn == chosen == [0.5, 1.0]


@pytest.mark.untraced
def test_counters_tell_what_a_clock_costs() -> None:
    runs = [_run(), _run(utilisation=_COPY), _run(utilisation=_PRODUCT)]
    costs = draw_costs(_PRIOR, runs, _CLOCKS, draws=200, seed=0)
    unknown, copy, product = costs.time[:, :, 3].T

    assert copy.mean() < unknown.mean() < product.mean()
    assert max(copy.std(), product.std()) < unknown.std()


@pytest.mark.untraced
def test_what_is_less_known_spreads_more() -> None:
    run = _run(utilisation=_PRODUCT)
    guessed = dataclasses.replace(_PRIOR, deviations=PUBLISHED)
    sure, unsure = (
        draw_costs(prior, [run], _CLOCKS, draws=200, seed=0) for prior in (_PRIOR, guessed)
    )

    assert unsure.energy[:, 0, 2].std() > sure.energy[:, 0, 2].std()


def test_no_memory_clock_is_free_where_memory_bounds() -> None:
    costs = draw_costs(
        _PRIOR,
        [_run(utilisation=_COPY)],
        [Clocks(mem_mhz=5001), Clocks(mem_mhz=9251), AUTO],
        draws=50,
        seed=0,
    )

    assert np.median(costs.time[:, 0, 0]) > 1.3
    assert np.median(costs.time[:, 0, 2]) == pytest.approx(1.0, abs=0.01)


def _sample_set(*samples: Window, in_situ: tuple[Window, ...] = ()) -> SampleSet:
    names = dict.fromkeys(sample.kernel for sample in samples)
    return SampleSet(
        evidence=Evidence.MEASURED,
        gpu=GpuInfo(name="G", power_limit_w=350.0),
        workload="train",
        kernels=tuple(Kernel(name=name, count=2) for name in names),
        windows=gathered(samples, in_situ=in_situ),
    )


_FULL = Clocks(core_mhz=1900, mem_mhz=9501)
_TWO = (
    Window(kernel="a", time_s=1e-3, energy_j=0.25, observed=_FULL, temperature_c=60.0),
    Window(
        kernel="b",
        time_s=2e-3,
        energy_j=0.7,
        observed=_FULL,
        throttle_reasons=ThrottleReason.SW_POWER_CAP,
    ),
)
_SETTINGS = tuple(Clocks(core_mhz=mhz) for mhz in (900, 1200, 1500, 1800))


def _tables(sample_set: SampleSet, baseline: Clocks = AUTO, draws: int = 30) -> CostTableDraws:
    runs = baseline_runs(sample_set, baseline, mem_mhz=_TOP, limit_w=350.0)
    return draw_tables(sample_set, baseline, _PRIOR, runs, _SETTINGS, draws=draws, seed=0)


def test_only_the_baseline_is_looked_at() -> None:
    locked = msgspec.structs.replace(_TWO[0], asked=Clocks(core_mhz=900))
    kept = at_baseline(_sample_set(*_TWO, locked, in_situ=_TWO[:1]), AUTO)

    assert kept.samples == _TWO
    assert [step.time_s for step in kept.in_situ] == [_TWO[0].time_s]


def test_locked_rows_can_be_the_baseline_but_the_step_was_not_run_there() -> None:
    asked = Clocks(core_mhz=1500)
    locked = tuple(msgspec.structs.replace(s, asked=asked, observed=None) for s in _TWO)
    kept = at_baseline(_sample_set(*locked, in_situ=_TWO[:1]), asked)
    runs = baseline_runs(kept, asked, mem_mhz=_TOP, limit_w=350.0)

    assert not kept.in_situ
    assert [run.locked for run in runs] == [True, True]
    assert [run.core_mhz for run in runs] == [1500, None]  # the cap outranks a lock


def test_a_kernel_without_a_row_at_auto_is_named() -> None:
    locked = msgspec.structs.replace(_TWO[1], asked=Clocks(core_mhz=900))

    with pytest.raises(DataError, match="'b' has no sample at core auto"):
        at_baseline(_sample_set(_TWO[0], locked), AUTO)


def test_repeats_are_averaged_and_readings_taken_where_there_are_any() -> None:
    bare = Window(kernel="a", time_s=3e-3, energy_j=0.75)
    seen = msgspec.structs.replace(_TWO[0], observed=Clocks(), utilisation=_COPY)
    (run,) = baseline_runs(_sample_set(bare, seen), AUTO, mem_mhz=_TOP, limit_w=350.0)

    assert run == BaselineRun(
        time_s=2e-3,
        power_w=250.0,
        core_mhz=None,
        mem_mhz=_TOP,
        temperature_c=60.0,
        utilisation=_COPY,
    )


@pytest.mark.parametrize(("time_s", "energy_j"), [(1e-3, 250.0), (1.0, 0.25)])
def test_a_power_that_tells_of_wrong_units_is_refused(time_s: float, energy_j: float) -> None:
    wrong = Window(kernel="a", time_s=time_s, energy_j=energy_j)

    with pytest.raises(DataError, match="'a' draws") as caught:
        baseline_runs(_sample_set(wrong), AUTO, mem_mhz=_TOP, limit_w=350.0)
    assert "units" in caught.value.hint


def test_without_event_reasons_power_tells_who_is_capped() -> None:
    hungry = Window(kernel="a", time_s=1.0, energy_j=345.0)
    (run,) = baseline_runs(_sample_set(hungry), AUTO, mem_mhz=_TOP, limit_w=350.0)

    assert run.capped


def test_the_baseline_costs_what_was_measured_in_every_draw() -> None:
    tables = _tables(_sample_set(*_TWO))
    place = tables.measured.baseline

    assert tables.measured.settings == (*_SETTINGS, AUTO)
    assert np.allclose(tables.time_s[:, :, place], [2e-3, 4e-3])
    assert np.allclose(tables.energy_j[:, :, place], [0.5, 1.4])


def test_what_is_overlapped_others_costs_the_same_in_every_draw() -> None:
    sample_set = _sample_set(*_TWO)
    first, second = sample_set.kernels
    beside = msgspec.structs.replace(first, waited_for=0.0)
    tables = _tables(msgspec.structs.replace(sample_set, kernels=(beside, second)))

    assert np.ptp(tables.energy_j[:, 0]) == pytest.approx(0.0, abs=1e-9)
    assert tables.energy_j[0, 0, 0] == pytest.approx(0.5)
    assert tables.time_s[:, 0].max() < 1e-8
    assert np.ptp(tables.energy_j[:, 1]) > 0.1
    for arm in savings_after_measuring(tables, 0.05, 0.95):
        assert arm.energy_change.low > -0.9


def test_the_whole_step_settles_what_auto_costs() -> None:
    step = Window(kernel="train", time_s=5.9e-3, energy_j=1.85)
    tables = _tables(_sample_set(*_TWO, in_situ=(step,)))

    assert tables.measured.auto_time_s == pytest.approx(5.9e-3)
    assert np.allclose(tables.energy_j[:, :, tables.measured.baseline].sum(axis=1), 1.85)
    assert tables.measured.closure is not None


def test_freer_ways_and_looser_budgets_save_more() -> None:
    tables = _tables(_sample_set(*_TWO))
    savings = {}
    for budget in (0.0, 0.05):
        for arm in savings_after_measuring(tables, budget, 0.95):
            change = arm.energy_change
            savings[arm.name, budget] = -change.expected
            assert change.low <= change.expected <= change.high + 1e-12 <= 1e-9
            assert arm.time_change.high <= budget + 1e-9
    for name in (Strategy.BEST_FIXED, Strategy.PASS, Strategy.KERNEL_LOCAL, Strategy.KERNEL_GLOBAL):
        assert savings[name, 0.05] >= savings[name, 0.0]
        assert savings[Strategy.KERNEL_GLOBAL, 0.05] >= savings[name, 0.05] - 1e-9


def test_a_budget_that_nothing_keeps_is_no_budget() -> None:
    with pytest.raises(ValueError, match="below the baseline"):
        savings_after_measuring(_tables(_sample_set(*_TWO), draws=2), -0.9, 0.95)


def test_who_does_not_measure_saves_less() -> None:
    tables = _tables(_sample_set(*_TWO))
    unmeasured = savings_without_measuring(tables, 0.05, 0.95)
    informed = {arm.name: arm for arm in savings_after_measuring(tables, 0.05, 0.95)}[
        Strategy.KERNEL_GLOBAL
    ]

    assert unmeasured.name is Strategy.KERNEL_GLOBAL
    assert 0.0 < unmeasured.time_change.expected <= 0.05 + 1e-9
    assert unmeasured.time_change.high >= informed.time_change.high


@settings(max_examples=30)
@given(st.lists(st.floats(-1.0, 1.0), min_size=2, max_size=50), st.floats(0.1, 0.9))
def test_a_surer_interval_is_wider(values: list[float], confidence: float) -> None:
    narrow = interval(np.array(values), confidence)
    wide = interval(np.array(values), confidence + 0.09)

    assert min(values) - 1e-12 <= wide.low <= narrow.low + 1e-12
    assert narrow.high - 1e-12 <= wide.high <= max(values) + 1e-12
