"""What the stages of a job cost: by a profile, or by samples of their steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from underclock.app.planning import costs_of
from underclock.app.switching import switching_of
from underclock.core.inference.joint import JointCosts
from underclock.core.job.frontiers import StageProfiles, stage_profiles
from underclock.core.job.schedules import Shape
from underclock.core.model.cost_estimate import CostEstimate
from underclock.core.planning.goal import Goal
from underclock.core.planning.sequence import Rules
from underclock.core.step.whole import is_only_whole
from underclock.errors import DataError, UsageError
from underclock.records import Evidence, GpuInfo, SampleSet
from underclock.records.job import Profile
from underclock.records.latencies import LatencyTable
from underclock.store import SampleSource, read_samples
from underclock.store.profiles import read_profiles


@dataclass(frozen=True, kw_only=True)
class StageCosts:
    """What the stages of a job cost.

    Attributes:
        profiles: ``stage 0 forward``, ``stage 0 backward`` and so on; equal stages share theirs.
        gpus: What stages were measured on; those that are left out, on what the first was.
        evidence: How.
        workload: What is trained.
        warnings: What a reader must know.
    """

    profiles: dict[str, Profile]
    gpus: dict[int, GpuInfo]
    evidence: Evidence
    workload: str
    warnings: tuple[str, ...] = ()


def costs_of_profile(path: Path) -> StageCosts:
    """Return what a CSV profile says of stages.

    Raises:
        DataError: The table cannot be read.
    """
    return StageCosts(
        profiles=read_profiles(path),
        gpus={0: GpuInfo(name=f"the GPU of {path.name}")},
        evidence=Evidence.REPLAYED,
        workload=path.stem,
    )


def costs_of_samples(
    samples: Sequence[SampleSource], shape: Shape, latency: str | None = None
) -> StageCosts:
    """Return what stages cost at every clock, from samples of one that all are like, or of each.

    Args:
        samples: Of a stage's step each, as `plan` takes them: one microbatch forward and backward,
            and the optimizer. Of chunks, where each has its own.
        shape: Of the job.
        latency: As `plan` takes it; with it clocks may change inside instructions. ``free`` is a
            bound.

    Raises:
        UsageError: They are of another number of stages, or the latency is none.
        DataError: Samples are no stage's, or some are measured and others are not.
    """
    if len(samples) not in {1, shape.stages, shape.stages * shape.chunks}:
        raise UsageError(
            f"samples of {len(samples)} stages for {shape.stages}",
            hint="give --samples once, for stages that are all alike, or once for each, in order",
        )
    sets = [read_samples(each) for each in samples]
    kinds = sorted({each.evidence for each in sets})
    if len(kinds) > 1:
        raise DataError(
            f"stages are {' and '.join(kinds)}, so what the job costs would be neither",
            hint="measure all stages in one way",
        )
    known = [_profiles_of(of, given, latency) for of, given in zip(sets, samples, strict=True)]
    if len(samples) == 1:
        known *= shape.stages
    return StageCosts(
        profiles={
            f"stage {at} {kind}": profile
            for at, stage in enumerate(known)
            for kind, profile in stage.profiles.items()
        },
        gpus={at: each.gpu for at, each in enumerate(sets) if not at or each.gpu != sets[0].gpu},
        evidence=kinds[0],
        workload=sets[0].workload,
        warnings=tuple(dict.fromkeys(words for stage in known for words in stage.warnings)),
    )


def _profiles_of(sample_set: SampleSet, given: SampleSource, latency: str | None) -> StageProfiles:
    """Return what one stage costs; what is wrong with it names where it came from."""
    try:
        _check_not_whole(sample_set)
        costs = costs_of(sample_set, None, raw=None, isolated=False)
        sure = costs.risk if isinstance(costs.risk, CostEstimate | JointCosts) else None
        rules = None if latency is None else _rules(latency, sample_set, given)
        return stage_profiles(costs.table, sample_set.order, sure, rules)
    except DataError as exc:
        name = given if isinstance(given, str | Path) else "the samples"
        raise DataError(f"{name}: {exc}", hint=exc.hint) from exc


def _rules(latency: str, sample_set: SampleSet, given: SampleSource) -> Rules:
    switching = switching_of(latency, sample_set, Goal(), given)
    if switching is None or not switching.is_known:
        return Rules(latencies=LatencyTable.free())
    switching.latencies.check_gpu(sample_set.gpu)
    return switching.rules()


def _check_not_whole(sample_set: SampleSet) -> None:
    if is_only_whole(sample_set):
        raise DataError(
            "the step ran whole only, so nobody knows what its forward and its backward draw",
            hint="measure the kernels of the step too",
        )
