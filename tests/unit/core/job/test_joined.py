"""What stages cost, put into a job of which traces told times only."""

import pytest
from msgspec.structs import replace

from small_jobs import small_job
from underclock.core.job.stage_profiles import with_profiles
from underclock.errors import DataError
from underclock.records import Segment
from underclock.records.job import Job, Profile, ProfileRow


def timed(time_s: float) -> Profile:
    return Profile(rows=(ProfileRow(time_s=time_s, energy_j=None),), auto=0)


def costed(time_s: float) -> Profile:
    """Return a profile with a slower clock, and with clocks that change inside."""
    inside = tuple(Segment(launches=1, core_mhz=core, mem_mhz=None) for core in (900, 1200))
    slow = ProfileRow(
        core_mhz=900,
        time_s=1.5 * time_s,
        energy_j=20.0,
        time_error_s=0.1,
        energy_error_j=2.0,
    )
    return Profile(
        rows=(slow, ProfileRow(time_s=time_s, energy_j=30.0), replace(slow, inside=inside)), auto=1
    )


def traced(**more: Profile) -> Job:
    names = {"forward": timed(1.0), "backward": timed(2.0), **more}
    given = {f"stage {at} {name}": each for at in range(2) for name, each in names.items()}
    return small_job(microbatches=2, given=given)


def stages(forward_s: float = 1.0) -> dict[str, Profile]:
    return {
        f"stage {at} {name}": costed(time_s)
        for at in range(2)
        for name, time_s in (("forward", forward_s), ("backward", 2.0))
    }


def test_at_auto_an_instruction_takes_what_was_traced() -> None:
    job = with_profiles(traced(), stages(forward_s=0.8))
    assert job.has_energy
    slow, auto, inside = job.profiles["stage 1 forward"].rows
    assert (slow.time_s, auto.time_s, inside.time_s) == pytest.approx((1.5, 1.0, 1.5))
    assert slow.energy_j == inside.energy_j == pytest.approx(25.0)
    assert (slow.time_error_s, slow.energy_error_j) == pytest.approx((0.125, 2.5))
    assert inside.inside
    assert job.profiles["stage 0 backward"] == costed(2.0)
    assert [words.split(" takes")[0] for words in job.warnings] == [
        "stage 0 forward",
        "stage 1 forward",
    ]


def test_what_no_profile_is_of_takes_its_time() -> None:
    job = with_profiles(traced(optimizer=timed(0.3)), stages())
    assert {each.time_s for rank in job.ranks for each in rank.instructions} == {None, 0.3}
    assert set(job.profiles) == set(stages())
    assert "no profile is of stage 0 optimizer, stage 1 optimizer" in job.warnings[-1]


def test_a_microbatch_of_no_profile_is_refused() -> None:
    profiles = {name: each for name, each in stages().items() if name != "stage 1 backward"}
    with pytest.raises(DataError, match="no profile of 'stage 1 backward', which was traced"):
        with_profiles(traced(), profiles)
