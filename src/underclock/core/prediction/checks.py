"""Predictive checks: does what was measured fall where the prior said?

A prediction is worth what its prior is. Samples at auto clocks can show that the prior is of
another GPU: a kernel may draw less than the GPU would at rest, or the clocks may be others. They
cannot show how kernels follow clocks. Samples at other clocks can, where there are any.

Every check is a number of standard deviations of the prior's own. Together they say by how much
more the prior is off than it allows for, and its deviations grow by that.

Shape letters: K kernels, S settings, D draws.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from underclock.core.prediction.monte_carlo import draw_costs, least_at_rest_w, vary
from underclock.core.prediction.prior import BaselineRun, Prior
from underclock.physics.costs import boost_mhz
from underclock.records import Clocks, Sample, SampleSet

_DRAWS = 40
_USUAL_CHECKS = 2.0  # a prior is believed in as if so many checks had gone as expected
_WORST = 10.0  # deviations; beyond them a row tells more of itself than of the prior
_CLOCK = 0.03  # relative deviation of boost and memory clocks among boards of one model
_ROW = 0.02  # relative scatter of a row


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictiveCheck:
    """How far something measured is from where the prior said.

    Attributes:
        deviations: As many of the prior's own standard deviations.
        words: What was seen, and what the prior said.
    """

    deviations: float
    words: str


def checks_of(
    prior: Prior, runs: Sequence[BaselineRun], sample_set: SampleSet, baseline: Clocks, seed: int
) -> tuple[PredictiveCheck, ...]:
    """Check a prior by all that was measured.

    Args:
        prior: As it is, its deviations not yet widened.
        runs: What each kernel did at the baseline. Length K.
        sample_set: All samples; those away from the baseline are checks too.
        baseline: Its clocks.
        seed: Of draws from the prior.
    """
    return (
        *_rest(prior, runs, np.random.default_rng([seed, 1])),
        *_clocks(prior, runs),
        *_rows(prior, runs, sample_set, baseline, seed),
    )


def widening(checks: Sequence[PredictiveCheck]) -> float:
    """Return by how much more a prior is off than it allows for; 1 or more."""
    squares = math.fsum(min(check.deviations, _WORST) ** 2 for check in checks)
    return max(1.0, math.sqrt((_USUAL_CHECKS + squares) / (_USUAL_CHECKS + len(checks))))


def _rest(
    prior: Prior, runs: Sequence[BaselineRun], random: np.random.Generator
) -> Iterator[PredictiveCheck]:
    """Check that no kernel draws less than the GPU at rest."""
    deviations = prior.deviations.times(prior.off)
    rest_w = np.array(
        [least_at_rest_w(vary(prior.gpu, deviations, random), runs) for _ in range(_DRAWS)]
    )
    drawn_w = np.array([run.power_w for run in runs])
    above = np.log(rest_w / drawn_w)
    away = above.mean(axis=0) / above.std(axis=0)
    k = int(away.argmax())
    yield PredictiveCheck(
        deviations=max(0.0, float(away[k])),
        words=(
            f"a kernel drew {drawn_w[k]:.3g} W, and the GPU would draw about "
            f"{float(np.median(rest_w[:, k])):.3g} W at rest"
        ),
    )


def _clocks(prior: Prior, runs: Sequence[BaselineRun]) -> Iterator[PredictiveCheck]:
    """Check that clocks left to the driver are those that it would choose."""
    free = [
        (run.core_mhz, boost_mhz(prior.gpu, run.temperature_c))
        for run in runs
        if not (run.capped or run.locked or run.core_mhz is None or run.temperature_c is None)
    ]
    points = np.array(prior.gpu.mem_points_mhz)
    nearest = [float(points[np.abs(np.log(points / run.mem_mhz)).argmin()]) for run in runs]
    memory = [(run.mem_mhz, mhz) for run, mhz in zip(runs, nearest, strict=True) if not run.locked]
    for what, pairs in (("core", free), ("memory", memory)):
        if pairs:
            seen, said = np.median(np.array(pairs), axis=0).tolist()
            yield PredictiveCheck(
                deviations=abs(math.log(seen / said)) / (_CLOCK * prior.off),
                words=f"the {what} ran at {seen:.0f} MHz, and was said to run at {said:.0f}",
            )


def _rows(
    prior: Prior, runs: Sequence[BaselineRun], sample_set: SampleSet, baseline: Clocks, seed: int
) -> Iterator[PredictiveCheck]:
    """Check that costs at other clocks change as the prior says, kernel by kernel."""
    away = [sample for sample in sample_set.samples if sample.asked != baseline]
    if not away:
        return
    settings = list(dict.fromkeys(sample.asked for sample in away))
    drawn = draw_costs(prior, runs, settings, draws=_DRAWS, seed=seed)
    said = np.log(np.stack([drawn.time, drawn.energy / drawn.time]))
    mean, spread = said.mean(axis=1), np.hypot(said.std(axis=1), _ROW)
    for k, (kernel, run) in enumerate(zip(sample_set.kernels, runs, strict=True)):
        mine = [sample for sample in away if sample.kernel == kernel.name]
        if not mine:
            continue
        columns = [settings.index(sample.asked) for sample in mine]
        seen = np.log(np.array([_over(sample, run) for sample in mine])).T
        z = (seen - mean[:, k, columns]) / spread[:, k, columns]
        c, s = np.unravel_index(np.abs(z).argmax(), z.shape)
        what = ("time", "power")[c]
        yield PredictiveCheck(
            deviations=math.sqrt(float((z**2).mean())),
            words=(
                f"{kernel.name!r} at {mine[s].asked} changed its {what} by "
                f"{math.expm1(seen[c, s]):+.0%}, and was said to by "
                f"{math.expm1(mean[c, k, columns[s]]):+.0%}"
            ),
        )


def _over(sample: Sample, run: BaselineRun) -> tuple[float, float]:
    """Return time and power over those of the run."""
    return sample.time_s / run.time_s, sample.energy_j / sample.time_s / run.power_w
