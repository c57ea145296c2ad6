"""Predictive checks: a prior that measurements contradict is widened, by as much as they do."""

import dataclasses
import math

import numpy as np
import pytest

from gpu_specs import SPECS
from underclock.core.prediction.checks import PredictiveCheck, checks_of, widening
from underclock.core.prediction.monte_carlo import draw_costs
from underclock.core.prediction.prior import FITTED, BaselineRun, Prior, ReferenceKernel
from underclock.core.prediction.time_shares import TimeShares
from underclock.records import AUTO, Clocks, Evidence, GpuInfo, Kernel, Sample, SampleSet

_GPU = SPECS["rtx3080ti"].constants
_PRODUCTS = tuple(
    ReferenceKernel(
        shares=TimeShares(core=core, dram=0.95 - core, fixed=0.05), power_share=0.8, source="one"
    )
    for core in (0.7, 0.8, 0.9)
)
_PRIOR = Prior(
    gpu=_GPU, deviations=FITTED, references=_PRODUCTS, dram_j_per_mcycle=0.0075, limit_w=348.0
)
_RUN = BaselineRun(time_s=1e-3, power_w=280.0, core_mhz=1900.0, mem_mhz=9501.0, temperature_c=60.0)
_LOW = tuple(Clocks(core_mhz=mhz) for mhz in (900, 1200, 1500))


def _samples(*samples: Sample, kernels: tuple[str, ...] = ("a",)) -> SampleSet:
    return SampleSet(
        evidence=Evidence.MEASURED,
        gpu=GpuInfo(name="G", power_limit_w=350.0),
        workload="train",
        kernels=tuple(Kernel(name=name) for name in kernels),
        samples=(*(Sample(kernel=name, time_s=1e-3, energy_j=0.28) for name in kernels), *samples),
    )


def _checks(run: BaselineRun = _RUN, *samples: Sample) -> dict[str, PredictiveCheck]:
    found = checks_of(_PRIOR, [run], _samples(*samples), AUTO, seed=0)
    return {check.words.split()[0]: check for check in found}


def test_a_run_that_the_prior_expects_widens_nothing() -> None:
    checks = checks_of(_PRIOR, [_RUN], _samples(), AUTO, seed=0)

    assert len(checks) == 3
    assert widening(checks) == 1.0


def test_a_kernel_that_draws_less_than_the_gpu_at_rest_tells_of_another_gpu() -> None:
    run = dataclasses.replace(_RUN, power_w=30.0)

    check = _checks(run)["a"]

    assert check.deviations > 4.0
    assert "drew 30 W" in check.words
    assert "at rest" in check.words


def test_other_clocks_than_the_driver_would_choose_tell_of_another_gpu() -> None:
    core, memory = (
        check
        for check in checks_of(
            _PRIOR,
            [dataclasses.replace(_RUN, core_mhz=1100.0, mem_mhz=7001.0)],
            _samples(),
            AUTO,
            seed=0,
        )
        if "ran at" in check.words
    )

    assert core.deviations > 10.0
    assert "1100 MHz" in core.words
    assert memory.deviations > 5.0
    assert "7001 MHz" in memory.words


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({"locked": True}, 1),
        ({"capped": True}, 2),
        ({"core_mhz": None}, 2),
        ({"temperature_c": None}, 2),
    ],
)
def test_clocks_that_nobody_left_to_the_driver_or_read_are_not_checked(
    changes: dict[str, object], left: int
) -> None:
    run = dataclasses.replace(_RUN, **changes)  # type: ignore[arg-type]

    assert len(checks_of(_PRIOR, [run], _samples(), AUTO, seed=0)) == left


def _at(clocks: Clocks, time: float, power: float) -> Sample:
    return Sample(kernel="a", asked=clocks, time_s=1e-3 * time, energy_j=0.28 * time * power)


def test_rows_that_change_as_expected_widen_nothing() -> None:
    drawn = draw_costs(_PRIOR, [_RUN], _LOW, draws=40, seed=0)
    time, energy = drawn.time.mean(axis=0)[0], drawn.energy.mean(axis=0)[0]
    rows = [_at(c, t, e / t) for c, t, e in zip(_LOW, time.tolist(), energy.tolist(), strict=True)]

    checks = checks_of(_PRIOR, [_RUN], _samples(*rows), AUTO, seed=0)

    assert len(checks) == 4
    assert widening(checks) == 1.0


def test_rows_that_change_otherwise_widen_and_say_what_they_did() -> None:
    rows = [_at(clocks, 1.0, 1.6) for clocks in _LOW]

    check = _checks(_RUN, *rows)["'a'"]

    assert check.deviations > 3.0
    assert "changed its power by +60%" in check.words
    assert widening([check]) > 1.5


def test_a_kernel_without_rows_elsewhere_is_not_checked() -> None:
    samples = _samples(_at(_LOW[0], 1.5, 0.6), kernels=("a", "b"))

    checks = checks_of(_PRIOR, [_RUN, _RUN], samples, AUTO, seed=0)

    assert [check.words[:3] for check in checks][3:] == ["'a'"]


@pytest.mark.parametrize(
    ("deviations", "factor"),
    [
        ([], 1.0),
        ([0.0, 0.5, 1.0], 1.0),
        ([4.0], math.sqrt((2 + 16) / 3)),
        ([100.0], math.sqrt((2 + 100) / 3)),  # one row says no more than so much
    ],
)
def test_a_prior_is_off_by_what_its_checks_say(deviations: list[float], factor: float) -> None:
    checks = [PredictiveCheck(deviations=each, words="") for each in deviations]

    assert widening(checks) == pytest.approx(factor)


@pytest.mark.slow
def test_a_prior_that_is_off_spreads_more() -> None:
    runs = [_RUN] * 4
    usual, off = (
        draw_costs(dataclasses.replace(_PRIOR, off=off), runs, _LOW, draws=200, seed=0)
        for off in (1.0, 3.0)
    )

    assert (off.energy.std(axis=0) > 1.3 * usual.energy.std(axis=0)).all()
    assert (off.time.std(axis=0) > usual.time.std(axis=0)).all()


@pytest.mark.slow
def test_a_step_may_be_like_the_kernels_of_one_sweep_only() -> None:
    copies = tuple(
        ReferenceKernel(
            shares=TimeShares(core=0.02, dram=0.93, fixed=0.05), power_share=0.8, source="other"
        )
        for _ in range(3)
    )
    together = dataclasses.replace(_PRIOR, references=(*_PRODUCTS, *copies))
    mixed = dataclasses.replace(
        together, references=tuple(dataclasses.replace(r, source="") for r in together.references)
    )

    apart, alike = (
        draw_costs(prior, [_RUN] * 12, _LOW, draws=300, seed=0).time[:, :, 0].mean(axis=1)
        for prior in (together, mixed)
    )

    # Of many kernels the mean is unsure only as far as kernels of a sweep have something in common.
    assert np.std(apart) > 1.1 * np.std(alike)
