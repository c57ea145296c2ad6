"""What stages cost, put into a job of which traces told times only."""

from collections.abc import Mapping

from msgspec.structs import replace

from underclock.errors import DataError
from underclock.records.job import COMPUTES, Instruction, Job, Profile, whole_of
from underclock.units import format_percent

_NEAR = 0.05  # of a time: what stages and traces may differ by unsaid


def with_profiles(job: Job, profiles: Mapping[str, Profile]) -> Job:
    """Give instructions what they cost at every clock, by the names of their profiles.

    At auto an instruction takes what was traced: all of its rows are longer or shorter by as much,
    and take more or less energy. What no profile is of takes its time whatever the clocks.

    Args:
        job: With times only.
        profiles: ``stage 0 forward`` and so on.

    Raises:
        DataError: What belongs to a microbatch has no profile.
    """
    every = {each for rank in job.ranks for each in rank.instructions}
    named = {each.profile for each in every if each.kind in COMPUTES and each.profile}
    missing = {whole_of(name) for name in named} - {*profiles}
    if missing:
        raise DataError(
            f"there is no profile of {min(missing)!r}, which was traced",
            hint=f"profiles are of {', '.join(sorted(profiles))}: give samples or rows of it too",
        )
    used = {}
    for name, traced in job.profiles.items():
        if (whole := profiles.get(whole_of(name))) is not None:
            ratio = _auto_s(traced) / _auto_s(whole)
            used[name] = replace(whole, rows=tuple(row.scaled(ratio) for row in whole.rows))

    def costed(each: Instruction) -> Instruction:
        if each.profile is None or each.profile in used:
            return each
        return replace(each, profile=None, time_s=_auto_s(job.profiles[each.profile]))

    ranks = tuple(
        replace(rank, instructions=tuple(map(costed, rank.instructions))) for rank in job.ranks
    )
    off = {
        name: _auto_s(job.profiles[name]) / _auto_s(profiles[name]) - 1.0
        for name in used
        if name in profiles
    }
    words = tuple(
        f"{name} takes {format_percent(off[name])} against its samples, which are taken to be as "
        "much off at every clock"
        for name in sorted(off)
        if abs(off[name]) > _NEAR
    )
    fixed = sorted(job.profiles.keys() - used.keys())
    if fixed:
        words += (
            f"no profile is of {', '.join(fixed)}: as long at all clocks, at what waiting draws",
        )
    return replace(job, ranks=ranks, profiles=used, warnings=(*job.warnings, *words))


def _auto_s(profile: Profile) -> float:
    return profile.rows[profile.auto].time_s
