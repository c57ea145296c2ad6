"""Looks at the whole step that several GPUs share."""

import pytest

from underclock.core.design.wanted import shared_steps


@pytest.mark.parametrize(
    ("workers", "launches", "windows"),
    [(1, 20, (4, None)), (8, 20, (16, 5)), (2, 8, (7, 5)), (8, 5, (4, None))],
)
def test_rounds_are_shared_out_and_none_is_left_out(
    workers: int, launches: int, windows: tuple[int, int | None]
) -> None:
    assert shared_steps(workers, launches) == windows
    assert windows[0] * (windows[1] or launches) >= 4 * launches
