"""What of a profile may be planned with, and the hull of it."""

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.errors import DataError
from underclock.records.job import Job, Profile


def checked_energy(job: Job) -> None:
    """Reject a job of which energy is not known.

    Raises:
        DataError: A profile that is used has rows with time only, or none is used.
    """
    every = (each.profile for rank in job.ranks for each in rank.instructions)
    used = {name for name in every if name is not None}
    if not used:
        raise DataError(
            "no instruction of this job has a profile, so no clocks can be chosen",
            hint="say what instructions cost at several clocks: --profile profile.csv",
        )
    for name in sorted(used):
        if not job.profiles[name].has_energy:
            raise DataError(
                f"profile {name!r} says what takes how long, and not what it takes of energy",
                hint="give a profile with energy per clock (stage,instruction,frequency,time,"
                "energy), or samples of one stage",
            )


def usable(profile: Profile) -> Bools:
    """Return which rows of a profile may be planned with. Shape (R,).

    A row is left out where a lower core clock is as fast and takes no more: its clock was asked for
    and not reached, or it goes backwards. Rows that change clocks inside have no one clock, and
    stay. So does auto.
    """
    rows = profile.rows
    core_mhz = np.array([row.core_mhz or np.inf for row in rows])
    time_s = np.array([row.time_s for row in rows])
    energy_j = np.array([row.energy_j for row in rows])
    inside = np.array([bool(row.inside) for row in rows])
    beaten = (time_s[None] <= time_s[:, None]) & (energy_j[None] <= energy_j[:, None])
    beaten &= (core_mhz[None] < core_mhz[:, None]) & ~inside[None]
    kept: Bools = ~beaten.any(axis=1) | inside
    kept[profile.auto] = True
    return kept


def rows_left_out(job: Job) -> tuple[str, ...]:
    """Return a sentence for profiles of which as many rows are left out."""
    names: dict[tuple[int, int], list[str]] = {}
    for name, profile in job.profiles.items():
        out = int((~usable(profile)).sum())
        if out:
            names.setdefault((out, len(profile.rows)), []).append(name)
    return tuple(
        f"{out} of {count} rows left out of {', '.join(of)}: a lower clock is as fast there, and "
        "takes no more"
        for (out, count), of in names.items()
    )


def hull(time_s: Floats, cost_j: Floats) -> Ints:
    """Return the corners of the lower convex hull as it falls, fastest first.

    Args:
        time_s: inf where there is no such row. Shape (R,).
        cost_j: Shape (R,).
    """
    corners: list[int] = []
    for at in np.lexsort((cost_j, time_s)).tolist():
        if not np.isfinite(time_s[at]):
            break
        if corners and not cost_j[at] < cost_j[corners[-1]] - _SAME * abs(cost_j[corners[-1]]):
            continue
        if corners and time_s[at] <= time_s[corners[-1]] * (1.0 + _SAME):
            continue
        while len(corners) > 1 and _above(time_s, cost_j, (*corners[-2:], at)):
            corners.pop()
        corners.append(at)
    return np.array(corners, dtype=np.int64)


_SAME = 1e-9


def _above(time_s: Floats, cost_j: Floats, three: tuple[int, int, int]) -> bool:
    """Whether the middle of three corners is on or above the line through the others."""
    a, b, c = three
    return bool(
        (cost_j[b] - cost_j[a]) * (time_s[c] - time_s[b])
        >= (cost_j[c] - cost_j[b]) * (time_s[b] - time_s[a])
    )
