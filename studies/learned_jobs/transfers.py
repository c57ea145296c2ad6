"""What transfers between stages of an executed pipeline take, and what is not known of them.

Transfers block both sides. Iteration times of plans show what lies on their longest paths: one time
for usual boundaries, and one boundary that is slower, between two nodes. Where both sides of a
boundary always have slack, its time shows nowhere: every slow boundary that the iteration times
allow is kept, with a weight, and what it would cost another plan belongs in that plan's interval.
"""

from dataclasses import dataclass, replace

import numpy as np
from msgspec.structs import replace as replace_struct
from scipy.optimize import lsq_linear

from learned_jobs.runs import PASSES, ExecutedRuns
from underclock.arrays import Floats
from underclock.core.job.network import Network, network_of
from underclock.core.job.schedules import Layout, pipeline
from underclock.records import Evidence
from underclock.records.job import Instruction, InstructionKind, Job, Profile, ProfileRow, Waiting

_MISFIT = 4e-4  # of an iteration's time, beside what is modelled
_ROBUST = 2.0  # misfits beyond which a plan counts less
_ROUNDS, _CONVERGED = 25, 1e-3
_PRIOR = np.array([0.002, 0.0, 0.5])  # usual_s, slower_s, waited_for, and how sure that is
_WIDE = np.array([0.004, 0.1, 0.5])
_SMALL = 1e-4  # of an iteration: what counts as no time
_SLOW = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # of a usual pass: slow boundaries that may be
_STARTS = (0.0, 0.1, 0.4, 0.8)
_UNLIKELY = 0.005


@dataclass(frozen=True, kw_only=True)
class Links:
    """Times beside the passes.

    Attributes:
        usual_s: Of a transfer over any boundary.
        slow: Boundary that takes longer; ``None`` for none.
        slower_s: By how much.
        waited_for: Share of loading, on other stages than the first, that nothing hides.
        reduce_s: Of the sum of gradients over pipelines.
        misfit: Sum of squares of what they leave of iteration times and of their priors.
    """

    usual_s: float = 0.002
    slow: int | None = None
    slower_s: float = 0.0
    waited_for: float = 0.5
    reduce_s: float = 0.0
    misfit: float = np.inf

    def transfer_s(self, stages: int) -> Floats:
        """Return what each boundary takes. Shape (S - 1,)."""
        taken = np.full(stages - 1, self.usual_s)
        if self.slow is not None:
            taken[self.slow] += self.slower_s
        return taken


def laid_out(
    runs: ExecutedRuns,
    links: Links,
    loads_s: Floats,
    profiles: dict[str, Profile],
    waiting_w: Floats,
    *,
    alone: bool = False,
) -> Job:
    """Return the job that was executed.

    Args:
        runs: Its shape.
        links: Times beside the passes.
        loads_s: Of data, a microbatch. Shape (S,).
        profiles: ``stage 0 forward`` and so on; ``stage 0 forward of microbatch 3`` where that
            microbatch has its own.
        waiting_w: What ranks of each stage draw while they wait. Shape (S,).
        alone: Whether only one of equal pipelines is wanted.
    """
    shape = Layout(
        stages=runs.stages,
        microbatches=runs.microbatches,
        data=1 if alone else runs.data,
        tensor=1 if alone else runs.tensor,
        transfer_s=tuple(np.maximum(links.transfer_s(runs.stages), 1e-9).tolist()),
        reduce_s=links.reduce_s,
    )
    waiting = {s: (Waiting(power_w=float(w)),) for s, w in enumerate(waiting_w)}
    job = pipeline(
        "1f1b",
        shape,
        profiles,
        waiting=waiting,
        gpu=runs.gpu,
        workload=runs.workload,
        evidence=Evidence.REPLAYED,
    )

    def with_data(stage: int, each: Instruction) -> tuple[Instruction, ...]:
        if each.profile is None:
            return (each,)
        own = f"{each.profile} of microbatch {each.microbatch}"
        each = replace_struct(each, profile=own) if own in profiles else each
        if each.kind is InstructionKind.FORWARD and loads_s[stage] > 0.0:
            load = Instruction(
                kind=InstructionKind.LOAD, microbatch=each.microbatch, time_s=float(loads_s[stage])
            )
            return load, each
        return (each,)

    ranks = (
        replace_struct(
            rank,
            instructions=tuple(
                one for each in rank.instructions for one in with_data(rank.stage, each)
            ),
        )
        for rank in job.ranks
    )
    return replace_struct(job, ranks=tuple(ranks), profiles=profiles)


@dataclass(frozen=True, kw_only=True)
class LongestPath:
    """What the longest path of an iteration passes.

    Attributes:
        taken_s: How long it is. Shape (D,).
        passed: Which passes are on it. Shape (D, S, K, M).
        moved: How many transfers over each boundary. Shape (D, S - 1).
        loaded: How many loads of each stage. Shape (D, S).
    """

    taken_s: Floats
    passed: Floats
    moved: Floats
    loaded: Floats


class PipelineTimes:
    """When things happen in one of a job's equal pipelines, for many plans at once.

    Attributes:
        loads: Whether each stage loads data. Shape (S,).
    """

    def __init__(self, runs: ExecutedRuns) -> None:
        """Lay the pipeline out."""
        usual_s = np.median(runs.iteration_s) / runs.microbatches
        self.loads = runs.loads_s.max(axis=0) > _SMALL * usual_s
        nothing = Profile(rows=(ProfileRow(time_s=1.0, energy_j=None),), auto=0)
        names = [f"stage {s} {kind}" for s in range(runs.stages) for kind in PASSES]
        job = laid_out(
            runs,
            Links(),
            self.loads.astype(float),
            dict.fromkeys(names, nothing),
            np.zeros(runs.stages),
            alone=True,
        )
        self.network: Network = network_of(job)
        every = [(s, each) for s, rank in enumerate(job.ranks) for each in rank.instructions]
        kinds = np.array([each.kind for _, each in every])
        self._stage = np.array([s for s, _ in every])
        self._batch = np.array(
            [-1 if each.microbatch is None else each.microbatch for _, each in every]
        )
        self._passes = [np.flatnonzero(kinds == kind) for kind in PASSES]
        self._loading = np.flatnonzero(kinds == InstructionKind.LOAD)
        moves = np.array([each.meeting is not None for _, each in every])
        boundary = np.full(len(self.network.waits), runs.stages)
        np.minimum.at(boundary, self.network.activity[moves], self._stage[moves])
        self._moves, self._boundary = np.flatnonzero(moves), boundary

    def durations_s(self, times_s: Floats, transfer_s: Floats, loads_s: Floats) -> Floats:
        """Return what instructions take. Shape (D, n).

        Args:
            times_s: Of passes. Shape (D, S, K, M).
            transfer_s: Of boundaries. Shape (D, S - 1) or (S - 1,).
            loads_s: Of data that is waited for, a microbatch. Shape (D, S).
        """
        taken = np.zeros((len(times_s), len(self._stage)))
        for k, at in enumerate(self._passes):
            taken[:, at] = times_s[:, self._stage[at], k, self._batch[at]]
        taken[:, self._loading] = loads_s[:, self._stage[self._loading]]
        taken[:, self._moves] = transfer_s[..., self._boundary[self.network.activity[self._moves]]]
        return taken

    def on_path(self, duration_s: Floats) -> "LongestPath":
        """Return what a longest path passes.

        Args:
            duration_s: Of instructions. Shape (D, n).
        """
        path = np.zeros((len(duration_s), len(self.network.waits)), dtype=bool)
        for draw, taken_s in zip(path, duration_s, strict=True):
            draw[self.network.longest_path(taken_s)] = True
        draws, stages = len(path), len(self.loads)
        passed = np.zeros((draws, stages, len(PASSES), self._batch[self._passes[0]].max() + 1))
        on = path[:, self.network.activity].astype(float)
        for k, at in enumerate(self._passes):
            passed[:, self._stage[at], k, self._batch[at]] = on[:, at]
        moved, loaded = np.zeros((draws, stages - 1)), np.zeros((draws, stages))
        for b in range(stages - 1):
            moved[:, b] = path[:, self._boundary == b].sum(axis=1)
        for each in self._loading:
            loaded[:, self._stage[each]] += on[:, each]
        total_s = (self.network.taken_s(duration_s) * path).sum(axis=1)
        return LongestPath(taken_s=total_s, passed=passed, moved=moved, loaded=loaded)


def waited_loads(loads_s: Floats, waited_for: float) -> Floats:
    """Return what of loading is waited for: all on the first stage. Shape (..., S)."""
    share = np.full(loads_s.shape[-1], waited_for)
    share[0] = 1.0
    waited: Floats = loads_s * share
    return waited


def fit_links(runs: ExecutedRuns, pipeline_times: PipelineTimes) -> tuple[list[Links], Floats]:
    """Learn times beside the passes from iteration times, each plan's passes as they were.

    Returns:
        What explains the iteration times, likeliest first, and how likely each is. The first has
        the likeliest slow boundary; others have one elsewhere, or slower, that plans do not
        contradict.
    """
    warm = runs.of(~runs.cold) if (~runs.cold).sum() > 1 else runs
    known = runs.between_nodes
    places = [None, *range(runs.stages - 1)] if known is None else [known]
    fits = [_fitted(warm, pipeline_times, slow) for slow in places]
    best = min(fits, key=lambda each: each.misfit)
    freedom = max(1.0, best.misfit / max(1, len(warm.plans) - 4))
    usual_s = float(np.median(runs.times_s))
    slower = [
        replace(each, slower_s=part * usual_s)
        for each in fits
        if each.slow is not None
        for part in _SLOW
    ]
    others = [
        replace(each, misfit=_misfit(warm, each, iterations_s(warm, pipeline_times, each)))
        for each in slower
    ]
    every = [best, *(each for each in fits if each is not best), *others]
    likely = np.exp(0.5 * (best.misfit - np.array([each.misfit for each in every])) / freedom)
    kept = likely > _UNLIKELY
    weight: Floats = likely[kept] / likely[kept].sum()
    return [each for each, keep in zip(every, kept, strict=True) if keep], weight


def iterations_s(runs: ExecutedRuns, pipeline_times: PipelineTimes, links: Links) -> Floats:
    """Return what iterations take with passes and loads as they were. Shape (P,)."""
    duration_s = pipeline_times.durations_s(
        runs.times_s, links.transfer_s(runs.stages), waited_loads(runs.loads_s, links.waited_for)
    )
    total: Floats = pipeline_times.network.iteration_s(duration_s) + links.reduce_s
    return total


def _misfit(runs: ExecutedRuns, links: Links, taken_s: Floats) -> float:
    off = np.abs(runs.iteration_s - taken_s) / (_MISFIT * runs.iteration_s.mean())
    lost = np.where(off < _ROBUST, off**2, 2.0 * _ROBUST * off - _ROBUST**2)  # Huber's
    known = np.array([links.usual_s, 0.0, links.waited_for])
    return float(lost.sum() + (((known - _PRIOR) / _WIDE) ** 2).sum())


def _fitted(runs: ExecutedRuns, pipeline_times: PipelineTimes, slow: int | None) -> Links:
    """Fit with a slow boundary at one place, from several times of it."""
    usual_s = np.median(runs.times_s)
    starts = [0.0] if slow is None else [part * usual_s for part in _STARTS]
    fits = [_descended(runs, pipeline_times, slow, start_s) for start_s in starts]
    return min(fits, key=lambda each: each.misfit)


def _descended(
    runs: ExecutedRuns, pipeline_times: PipelineTimes, slow: int | None, start_s: float
) -> Links:
    """Fit by steps along the longest paths."""
    scale_s = _MISFIT * runs.iteration_s.mean()
    wide = np.append(_WIDE, runs.iteration_s.mean() if runs.data > 1 else 1e-9)
    prior = np.append(_PRIOR, 0.0)
    most = (np.inf, np.inf, 1.0, np.inf)
    at, best = prior.copy(), Links(slow=slow)
    at[1] = start_s
    turn, stepped = 0, np.inf
    while turn < _ROUNDS and stepped > _CONVERGED:
        usual_s, slower_s, waited_for, reduce_s = at.tolist()
        links = Links(
            usual_s=usual_s,
            slow=slow,
            slower_s=slower_s,
            waited_for=waited_for,
            reduce_s=reduce_s,
        )
        loads_s = waited_loads(runs.loads_s, waited_for)
        path = pipeline_times.on_path(
            pipeline_times.durations_s(runs.times_s, links.transfer_s(runs.stages), loads_s)
        )
        taken_s = path.taken_s + reduce_s
        misfit = _misfit(runs, links, taken_s)
        best = min(best, replace(links, misfit=misfit), key=lambda each: each.misfit)
        slope = np.stack(
            [
                path.moved.sum(axis=1),
                np.zeros(len(taken_s)) if slow is None else path.moved[:, slow],
                (path.loaded * runs.loads_s)[:, 1:].sum(axis=1),
                np.ones(len(taken_s)),
            ],
            axis=1,
        )
        left_s = runs.iteration_s - taken_s
        weight = np.sqrt(1.0 / np.maximum(1.0, np.abs(left_s) / scale_s / _ROBUST)) / scale_s
        rows = np.vstack([slope * weight[:, None], np.diag(1.0 / wide)])
        goal = np.append((left_s + slope @ at) * weight, prior / wide)
        step = lsq_linear(rows, goal, bounds=(0.0, most), method="bvls").x - at
        stepped = float(np.abs(step / wide).max())
        at = at + (0.7 if turn < _ROUNDS // 3 else 0.3) * step
        turn += 1
    return best
