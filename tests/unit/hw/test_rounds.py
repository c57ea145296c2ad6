"""What a round of a mix is made of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.hw.base import Round, Turn
from underclock.records import Mix

_MIXES = st.builds(
    Mix,
    launches=st.integers(1, 5),
    hot=st.integers(0, 3),
    idle_s=st.sampled_from([0.0, 1e-3]),
)


def test_coload_runs_after_the_launches_that_the_mix_names() -> None:
    spread = Round.of(3, Mix(launches=2, hot=4, idle_s=0.1, after=(2, 5)))
    assert spread.turns() == (
        *(Turn(0, 1), Turn(1, 1), Turn(3, 2), Turn(4, 1)),
        *(Turn(2, 1), Turn(0, 1), Turn(1, 1), Turn(3, 2), Turn(5, 1)),
        Turn(2, 1),
    )
    took = spread.durations({0: 1.0, 1: 1.0, 2: 1.0, 3: 2.0, 4: 0.06, 5: 0.05})
    assert took.idle_s == pytest.approx(0.11)
    assert took.pieces_s == (0.06, 0.05)
    in_a_row = Round.of(1, Mix(launches=5, idle_s=0.1, after=(2, 5)))
    assert in_a_row.turns() == (Turn(0, 2), Turn(2, 1), Turn(0, 3), Turn(3, 1))


def test_coload_cannot_run_after_more_launches_than_there_are() -> None:
    with pytest.raises(ValueError, match="after launch 7 of a round of 6"):
        Round.of(3, Mix(launches=2, idle_s=0.1, after=(2, 7)))


@given(st.integers(0, 4), _MIXES)
def test_every_launch_of_a_round_has_a_place(kernels: int, mix: Mix) -> None:
    if not (kernels or mix.hot or mix.idle_s):
        return
    whole = Round.of(kernels, mix)
    launches = whole.launches()

    assert sum(launches.values()) == kernels * mix.launches + mix.hot + bool(mix.idle_s)
    durations = whole.durations(dict.fromkeys(launches, 2.0))
    assert durations.kernel_s == (2.0,) * kernels
    assert (durations.hot_s is None, durations.idle_s is None) == (not mix.hot, not mix.idle_s)


@pytest.mark.parametrize("mix", [None, Mix(), Mix(launches=4)])
def test_nothing_at_all_is_refused(mix: Mix | None) -> None:
    with pytest.raises(ValueError, match="no kernel to launch, and no co-load"):
        Round.of(0, mix)
