"""What the stages of a job cost: by a profile, or by samples of their steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from underclock.app.planning import costs_of
from underclock.app.switching import switching_of
from underclock.core.job.stage_profiles import stage_profiles, with_profiles
from underclock.core.planning.best_choice import Goal
from underclock.core.planning.clock_changes import Rules
from underclock.core.step.whole_step import is_only_whole
from underclock.errors import DataError, UsageError
from underclock.records import Evidence, GpuInfo, SampleSet
from underclock.records.job import InstructionKind, Job, Profile, Waiting
from underclock.records.latencies import LatencyTable
from underclock.store import SampleSource, read_samples
from underclock.store.tables import read_profiles

_WAITING_SHARE = 0.2
"""Of the greatest power of a stage's profile: what waiting draws where it is not given. Measured:
148 W of 690 on an H200, 83 to 143 of 400 on A100s, 52 to 89 of 300 on A40s (FACTS 3a; Perseus)."""


@dataclass(frozen=True, kw_only=True)
class StageCosts:
    """What the stages of a job cost."""

    # stage 0 forward, stage 0 backward and so on; equal stages share theirs
    profiles: dict[str, Profile]
    # what stages were measured on; those that are left out, on what the first was
    gpus: dict[int, GpuInfo]
    evidence: Evidence  # how
    workload: str  # what is trained
    warnings: tuple[str, ...] = ()  # what a reader must know


def stage_costs(
    profile: str | Path | None,
    samples: Sequence[SampleSource],
    latency: str | None,
    *,
    stages: int,
    chunks: int = 1,
) -> StageCosts:
    """Return what stages cost, by a CSV profile or by samples of a microbatch in each stage."""
    if (profile is None) == (not samples) or (profile is not None and latency is not None):
        raise UsageError(
            "what stages cost is in a profile, or in samples and what changing clocks takes",
            hint="give --profile, or --samples with or without --latency",
        )
    if profile is not None:
        path = Path(profile)
        return StageCosts(
            profiles=read_profiles(path),
            gpus={0: GpuInfo(name=f"the GPU of {path.name}")},
            evidence=Evidence.REPLAYED,
            workload=path.stem,
        )
    if len(samples) not in {1, stages, stages * chunks}:
        raise UsageError(
            f"samples of {len(samples)} stages for {stages}",
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
        known *= stages
    return StageCosts(
        profiles={
            f"stage {at} {kind}": profile
            for at, stage in enumerate(known)
            for kind, profile in stage[0].items()
        },
        gpus={at: each.gpu for at, each in enumerate(sets) if not at or each.gpu != sets[0].gpu},
        evidence=kinds[0],
        workload=sets[0].workload,
        warnings=tuple(dict.fromkeys(words for _, notes in known for words in notes)),
    )


def with_costs(
    job: Job,
    profile: Path | None,
    samples: Sequence[SampleSource],
    latency: str | None,
    *,
    blocked_w: float | None = None,
) -> Job:
    """Put costs of stages into a job made of traces, which have times only."""
    stages = 1 + max(rank.stage for rank in job.ranks)
    costs = stage_costs(profile, samples, latency, stages=stages)
    joined = with_profiles(job, costs.profiles)
    said = (*joined.warnings, *costs.warnings)
    return with_waiting(replace(joined, evidence=costs.evidence, warnings=said), blocked_w)


def with_waiting(job: Job, blocked_w: float | None) -> Job:
    """Say what ranks draw while they wait; ``None`` for a share of each stage's greatest power."""
    waits_w, notes = {rank.stage: blocked_w or 0.0 for rank in job.ranks}, job.warnings
    if blocked_w is None:
        for stage in waits_w:
            powers_w = [
                (row.energy_j or 0.0) / row.time_s
                for name, profile in job.profiles.items()
                if name.startswith(f"stage {stage} ")
                for row in profile.rows
            ]
            waits_w[stage] = _WAITING_SHARE * max(powers_w, default=0.0)
        watts = sorted(map(round, waits_w.values()))
        words = f"{watts[0]} W" if watts[0] == watts[-1] else f"{watts[0]} to {watts[-1]} W"
        assumed = (
            f"what waiting draws was not given: {words} is assumed, a fifth of each stage's "
            "greatest power; measured, give it with --blocked-power"
        )
        notes = (*notes, assumed)
    ranks = (replace(rank, waiting=(Waiting(power_w=waits_w[rank.stage]),)) for rank in job.ranks)
    return replace(job, ranks=tuple(ranks), warnings=notes)


def _profiles_of(
    sample_set: SampleSet, given: SampleSource, latency: str | None
) -> tuple[dict[InstructionKind, Profile], tuple[str, ...]]:
    """Return what one stage costs, and warnings; what is wrong with it names where it came from."""
    name = given if isinstance(given, str | Path) else "the samples"
    if is_only_whole(sample_set):
        raise DataError(
            f"{name}: the step ran whole only, so the powers of its forward and backward pass are "
            "unknown",
            hint="measure the kernels of the step too",
        )
    try:
        table, risk = costs_of(sample_set, None, raw=None, isolated=False)
        rules = None
        if latency is not None:
            rules = Rules(latencies=LatencyTable.free())
            switching = switching_of(latency, sample_set, Goal(), given)
            if switching is not None and switching.is_known:
                switching.latencies.check_gpu(sample_set.gpu)
                rules = switching.rules()
        return stage_profiles(table, sample_set.order, risk, rules)
    except DataError as exc:
        raise DataError(f"{name}: {exc}", hint=exc.hint) from exc
