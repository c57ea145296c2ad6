"""A job from pipelines that were really executed: frontiers of instructions, learned from plans.

Times of passes are learned from times of passes, transfers from iteration times, powers from
energies of iterations. What another plan would take follows from its clocks alone, with intervals
from plans that were left out, one at a time.

Shape letters as in `runs`; D plans that are predicted.
"""

from dataclasses import dataclass

import numpy as np

from learned_jobs.pass_times import PassTimes
from learned_jobs.runs import LEAST_PLANS, PASSES, ExecutedRuns
from learned_jobs.stage_power import StagePower
from learned_jobs.transfers import (
    Links,
    PipelineTimes,
    fit_links,
    laid_out,
    waited_loads,
)
from underclock.arrays import Bools, Floats, Ints
from underclock.core.statistics.student import student_quantile
from underclock.errors import DataError
from underclock.records.job import Job, Profile, ProfileRow

_BIN_MHZ = 15
_LEAST_SPREAD = 2e-4  # relative, of time and energy: what is written down is rounded
_SLACK = 0.95  # quantile of what slow boundaries that plans do not contradict would cost
_PRUDENT = 0.1  # of the likeliest: what is still planned for
_HALVINGS = 60


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What plans would take, with 95 % intervals.

    Attributes:
        time_s: Of an iteration. Shape (D,).
        time_low_s: Shape (D,).
        time_high_s: With what a slow boundary that never showed may cost. Shape (D,).
        slack_s: That cost. Shape (D,).
        energy_j: Of all ranks in an iteration. Shape (D,).
        energy_low_j: Shape (D,).
        energy_high_j: Shape (D,).
    """

    time_s: Floats
    time_low_s: Floats
    time_high_s: Floats
    slack_s: Floats
    energy_j: Floats
    energy_low_j: Floats
    energy_high_j: Floats


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """What is learned from some plans."""

    times: PassTimes
    power: StagePower
    loads_s: Floats

    @classmethod
    def of(cls, runs: ExecutedRuns) -> "_Parts":
        return cls(
            times=PassTimes.of(runs),
            power=StagePower.of(runs),
            loads_s=np.median(runs.loads_s, axis=0),
        )

    def passes_s(self, clocks_mhz: Ints) -> Floats:
        """Return what passes take, loading apart. Shape (D, S, K, M)."""
        times_s = self.times.times_s(clocks_mhz)
        times_s[:, 0, 0] -= self.loads_s[0]
        return times_s

    def durations_s(self, pipeline: PipelineTimes, passes_s: Floats, links: Links) -> Floats:
        """Return what instructions take. Shape (D, n)."""
        loads_s = np.broadcast_to(
            waited_loads(self.loads_s, links.waited_for), (len(passes_s), len(self.loads_s))
        )
        return pipeline.durations_s(passes_s, links.transfer_s(len(self.loads_s)), loads_s)

    def costs(
        self, pipeline: PipelineTimes, clocks_mhz: Ints, links: Links
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Return iteration times and ranks' mean energies, each with its relative model error.

        Shapes (D,), (D,), (D,) and (D,).
        """
        passes_s = self.passes_s(clocks_mhz)
        duration_s = self.durations_s(pipeline, passes_s, links)
        path = pipeline.on_path(duration_s)
        time_s = path.taken_s + links.reduce_s
        group, mhz, which = self.times.points(clocks_mhz)
        _, covariance = self.times.at(group, mhz)
        weight = np.zeros((len(time_s), len(mhz)))
        for d in range(len(time_s)):
            np.add.at(weight[d], which[d], path.passed[d] * passes_s[d])
        error_s = np.sqrt(np.maximum(np.einsum("du,uv,dv->d", weight, covariance, weight), 0.0))
        energy_j, error_j = self.power.energy_j(clocks_mhz, passes_s, time_s)
        total_j = energy_j.sum(axis=1)
        return time_s, error_s / time_s, total_j, error_j / total_j


class FittedJob:
    """What was learned of an executed job.

    Attributes:
        runs: That it was learned from.
        links: What explains their iteration times, likeliest first.
        likely: How likely each is.
        time_spread: Standard deviation of iteration times around predictions, relative, beside
            what the curves themselves are unsure of.
        energy_spread: The same of energies.
    """

    def __init__(self, runs: ExecutedRuns) -> None:
        """Learn it."""
        self.runs = runs
        self._pipeline = PipelineTimes(runs)
        self.links, self.likely = fit_links(runs, self._pipeline)
        self._parts = _Parts.of(runs)
        count = len(runs.plans)
        judged = (
            np.flatnonzero(~runs.cold) if (~runs.cold).sum() >= LEAST_PLANS else np.arange(count)
        )
        left_out = [self._left_out(np.arange(count) == at) for at in judged]
        self.time_spread, self.energy_spread = (
            _spread(*(np.array([row[at] for row in left_out]) for at in (which, which + 1)))
            for which in (0, 2)
        )
        self._reach = student_quantile(len(judged) - 1)

    def _left_out(self, one: Bools) -> tuple[float, float, float, float]:
        """Return how far a plan is from what the others say, and what they are unsure of."""
        parts, missed = _Parts.of(self.runs.of(~one)), self.runs.of(one)
        time_s, time_error, rank_j, energy_error = parts.costs(
            self._pipeline, missed.clocks_mhz, self.links[0]
        )
        ranks = self.runs.data * self.runs.tensor
        return (
            float(time_s[0] / missed.iteration_s[0] - 1.0),
            float(time_error[0]),
            float(rank_j[0] * ranks / missed.total_j[0] - 1.0),
            float(energy_error[0]),
        )

    def predict(self, clocks_mhz: Ints) -> Prediction:
        """Return what plans would take.

        Args:
            clocks_mhz: Asked for, forward and backward of each stage and microbatch. Shape
                (D, S, K, M).

        Raises:
            DataError: Plans are for another number of stages or microbatches.
        """
        shape = self.runs.clocks_mhz.shape[1:]
        if clocks_mhz.shape[1:] != shape:
            raise DataError(
                f"clocks of shape {clocks_mhz.shape[1:]} for a pipeline of {shape}",
                hint=f"give {shape[0]} stages, forward and backward, of {shape[2]} microbatches",
            )
        time_s, time_error, rank_j, energy_error = self._parts.costs(
            self._pipeline, clocks_mhz, self.links[0]
        )
        slack_s = self._slack_s(clocks_mhz, time_s)
        energy_j = rank_j * self.runs.data * self.runs.tensor
        half_s = self._reach * time_s * np.hypot(time_error, self.time_spread)
        half_j = self._reach * energy_j * np.hypot(energy_error, self.energy_spread)
        waiting_w = self._parts.power.power_w[:, -1].sum() * self.runs.data * self.runs.tensor
        return Prediction(
            time_s=time_s,
            time_low_s=time_s - half_s,
            time_high_s=time_s + np.hypot(half_s, slack_s),
            slack_s=slack_s,
            energy_j=energy_j,
            energy_low_j=energy_j - half_j,
            energy_high_j=energy_j + np.hypot(half_j, slack_s * waiting_w),
        )

    def _slack_s(self, clocks_mhz: Ints, time_s: Floats) -> Floats:
        """Return what a slow boundary that plans do not contradict may cost. Shape (D,)."""
        passes_s = self._parts.passes_s(clocks_mhz)
        later = [
            self._pipeline.network.iteration_s(
                self._parts.durations_s(self._pipeline, passes_s, links)
            )
            + links.reduce_s
            - time_s
            for links in self.links
        ]
        slack = np.zeros(len(time_s))
        for d, each in enumerate(np.array(later).T):
            order = np.argsort(each)
            at = np.searchsorted(np.cumsum(self.likely[order]), _SLACK)
            slack[d] = max(0.0, each[order][min(at, len(order) - 1)])
        return slack

    @property
    def job(self) -> Job:
        """The job, with frontiers at every clock between those that were asked for.

        Its slow boundary is as slow as plans do not contradict: slack that may not be there is not
        planned away.
        """
        parts = self._parts
        links = max(
            (
                each
                for each, likely in zip(self.links, self.likely, strict=True)
                if each.slow == self.links[0].slow and likely >= _PRUDENT * self.likely[0]
            ),
            key=lambda each: each.slower_s,
        )
        profiles: dict[str, Profile] = {}
        for s, k in np.ndindex(self.runs.stages, len(PASSES)):
            name = f"stage {s} {PASSES[k]}"
            profiles[name] = self._profile(s, k, 0.0)
            for m in np.flatnonzero(parts.times.factor[s, k]):
                own = f"{name} of microbatch {m}"
                profiles[own] = self._profile(s, k, float(parts.times.factor[s, k, m]))
        return laid_out(
            self.runs,
            links,
            waited_loads(parts.loads_s, links.waited_for) * self._pipeline.loads,
            profiles,
            parts.power.power_w[:, -1],
        )

    def _profile(self, stage: int, kind: int, factor: float) -> Profile:
        asked = self.runs.clocks_mhz
        mhz = np.union1d(np.arange(asked.min(), asked.max(), _BIN_MHZ), asked.max())
        group = np.full(len(mhz), stage * len(PASSES) + kind)
        log_s, covariance = self._parts.times.at(group, mhz)
        time_s = np.exp(log_s + factor)
        time_error_s = time_s * np.sqrt(np.diag(covariance))
        if (stage, kind) == (0, 0):
            time_s = time_s - self._parts.loads_s[0]
        power_w, error_w = self._parts.power.passes_w(stage, mhz)
        rows = zip(
            mhz.tolist(),
            time_s.tolist(),
            (power_w * time_s).tolist(),
            time_error_s.tolist(),
            np.hypot(error_w * time_s, power_w * time_error_s).tolist(),
            strict=True,
        )
        return Profile(
            rows=tuple(
                ProfileRow(
                    core_mhz=core_mhz,
                    time_s=seconds,
                    energy_j=joules,
                    time_error_s=error_s,
                    energy_error_j=error_j,
                )
                for core_mhz, seconds, joules, error_s, error_j in rows
            ),
            auto=len(mhz) - 1,
        )


def job_of_executed(runs: ExecutedRuns) -> FittedJob:
    """Learn a job from plans that were executed.

    Args:
        runs: Of one workload: three plans or more.

    Raises:
        DataError: There are fewer plans.
    """
    count = len(runs.plans)
    if count < LEAST_PLANS:
        plans = "1 plan" if count == 1 else f"{count} plans"
        raise DataError(
            f"{runs.workload} was executed under {plans} only",
            hint=f"what clocks do shows from {LEAST_PLANS} plans on: execute it under others",
        )
    return FittedJob(runs)


def _spread(missed: Floats, unsure: Floats) -> float:
    """Return the scatter that, beside what each was unsure of, makes misses as large as they are.

    So that the mean of ``missed² / (spread² + unsure²)`` is 1.
    """
    low, high = _LEAST_SPREAD, float(np.abs(missed).max()) + _LEAST_SPREAD
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        wider = np.mean(missed**2 / (middle**2 + unsure**2)) > 1.0
        low, high = (middle, high) if wider else (low, middle)
    return high
