"""A job of many GPUs: what its stages cost, by a profile or by samples, and its plan."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import underclock
from underclock.app.planning import KNOWN, costs_of, latencies_file, named_latencies, switching_of
from underclock.core.job import planning
from underclock.core.job.schedules import Layout, pipeline
from underclock.core.job.stage_profiles import stage_profiles, with_profiles
from underclock.core.planning.best_choice import Goal
from underclock.core.planning.clock_changes import Rules
from underclock.core.step.whole_step import is_only_whole
from underclock.errors import DataError, UsageError
from underclock.gpus.models import reported_latency
from underclock.records import Evidence, GpuInfo, SampleSet
from underclock.records.common import GREATEST_W
from underclock.records.job import InstructionKind, Job, JobPlan, Profile, Waiting
from underclock.records.latencies import LatencyTable
from underclock.store import SampleSource, as_record, read_samples
from underclock.store.tables import read_profiles
from underclock.units import Domain

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
        hint = "give --samples once, for stages that are all alike, or once for each, in order"
        raise UsageError(f"samples of {len(samples)} stages for {stages}", hint=hint)
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


def check_watts(blocked_w: float | None) -> None:
    """Refuse what waiting cannot draw."""
    if blocked_w is not None and not 0.0 <= blocked_w <= GREATEST_W:
        raise UsageError(f"waiting draws {blocked_w} W", hint="give watts: --blocked-power 75")


def pipeline_job(
    schedule: str,
    profile: str | Path | None = None,
    *,
    samples: Sequence[SampleSource] = (),
    latency: str | None = None,
    blocked_w: float | None = None,
    gpu_name: str | None = None,
    **shape: Any,  # noqa: ANN401 - of a `Layout`, by its names
) -> Job:
    """Lay out a job from a schedule's name and what its stages cost.

    Args:
        schedule: ``1f1b``, ``gpipe``, ``interleaved`` or ``zero-bubble``.
        profile: The table: ``stage,instruction,frequency,time,energy`` (MHz, s, J).
        samples: Or samples of a stage's step, as `plan` takes them: one microbatch forward and
            backward, and the optimizer; of one stage that all are like, or of each in order.
        latency: With samples: what changing clocks inside an instruction takes, as `plan` takes it;
            ``None`` for one clock for each instruction.
        blocked_w: What a rank draws while it waits; ``None`` for a share of its stage's greatest.
        gpu_name: What it runs on; ``None`` for what was measured.
        shape: ``stages`` and ``microbatches``; ``chunks``, ``data``, ``tensor``, ``transfer_s``,
            ``load_s``, ``reduce_s``: see `underclock.core.job.schedules.Layout`.

    Raises:
        DataError: Profile or samples cannot be read, or are no stage's.
        UsageError: There is no such job.
    """
    check_watts(blocked_w)
    laid_out = Layout(**shape)
    stages, chunks = laid_out.stages, laid_out.chunks
    costs = stage_costs(profile, samples, latency, stages=stages, chunks=chunks)
    gpus = costs.gpus if gpu_name is None else {0: GpuInfo(name=gpu_name)}
    job = pipeline(
        schedule,
        laid_out,
        costs.profiles,
        waiting=dict.fromkeys(range(stages), (Waiting(power_w=0.0),)),
        gpu=gpus[0],
        workload=costs.workload,
        evidence=costs.evidence,
    )
    ranks = (replace(rank, gpu=gpus.get(rank.stage) if rank.stage else None) for rank in job.ranks)
    job = replace(job, ranks=tuple(ranks), warnings=(*costs.warnings, *job.warnings))
    return with_waiting(job, blocked_w)


def plan_job(
    job: Job | str | Path,
    *,
    latency: str = "known",
    **asked: Any,  # noqa: ANN401
) -> JobPlan:
    """Choose clocks for every instruction of every rank, and compare with simpler ways.

    Args:
        job: A job, or the file that holds it.
        latency: What changing clocks takes: ``known``, ``free``, ``measured``, ``6ms``, or a file
            of latencies.
        asked: ``max_slowdown``, ``min_dwell_s``, ``board_spread``: see
            `underclock.core.job.planning.JobGoal`.

    Raises:
        DataError: The file is no job, its ranks wait in a circle, or energies are not known.
        UsageError: A number means nothing.
    """
    source = None if isinstance(job, Job) else Path(job)
    of = as_record(job, Job)
    measured = latencies_file(source)
    if latency == KNOWN and measured is not None and measured.is_file():
        latency = "measured"
    latency_s = 0.0
    notes: tuple[str, ...] = ("changing clocks was taken as free: a bound",)
    if latency == KNOWN:
        names = {of.gpu_of(at).name for at in range(len(of.ranks))}
        known = [reported_latency(name) for name in names]
        unknown = (
            "what changing clocks takes is not known of these GPUs and was taken as free, a "
            "bound: say it with --latency 6ms, or name the GPU (--gpu-name)"
        )
        notes = (unknown,) if None in known else ()
        if not notes:
            latency_s = max(most_s for _, most_s, _ in filter(None, known))
    elif found := named_latencies(latency, source):
        latency_s = max(s.total_s for s in found[0].slowest() if s.domain is Domain.CORE)
        notes = found[0].check_gpu(of.gpu)
    made = planning.plan_job(of, planning.JobGoal(**asked, latency_s=latency_s))
    return replace(made, version=underclock.__version__, warnings=(*made.warnings, *notes))
