"""Predictive checks: a prior that measurements contradict is widened, by as much as they do."""

import dataclasses
import math

import numpy as np
import pytest

from gpu_specs import SPECS
from underclock.core.prediction.draws import draw_costs
from underclock.core.prediction.prior import (
    FITTED,
    BaselineRun,
    PredictiveCheck,
    Prior,
    ReferenceKernel,
    TimeShares,
    checks_of,
    prior_widening,
)
from underclock.records import Clocks

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


def test_a_run_that_the_prior_expects_widens_nothing() -> None:
    checks = checks_of(_PRIOR, [_RUN], seed=0)

    assert len(checks) == 3
    assert prior_widening(checks) == 1.0


def test_a_kernel_that_draws_less_than_the_gpu_at_rest_tells_of_another_gpu() -> None:
    run = dataclasses.replace(_RUN, power_w=30.0)

    check = next(each for each in checks_of(_PRIOR, [run], seed=0) if "drew" in each.words)

    assert check.deviations > 4.0
    assert "drew 30 W" in check.words
    assert "at rest" in check.words


def test_other_clocks_than_the_driver_would_choose_tell_of_another_gpu() -> None:
    core, memory = (
        check
        for check in checks_of(
            _PRIOR, [dataclasses.replace(_RUN, core_mhz=1100.0, mem_mhz=7001.0)], seed=0
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

    assert len(checks_of(_PRIOR, [run], seed=0)) == left


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

    assert prior_widening(checks) == pytest.approx(factor)


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
