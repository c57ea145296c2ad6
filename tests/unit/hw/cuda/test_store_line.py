"""What the first rank says, through PyTorch's store."""

from collections.abc import Iterator
from typing import Any

import pytest

from underclock.errors import NotSupportedError
from underclock.hw.cuda.store_line import StoreLine

torch: Any = pytest.importorskip("torch")


@pytest.fixture
def job() -> Iterator[None]:
    """Make this process a job of one rank."""
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


class Late:
    """A clock; while time passes, something is said."""

    def __init__(self, line: StoreLine) -> None:
        self.line = line

    def now_s(self) -> float:
        raise AssertionError("nobody asks for the time")

    def sleep_s(self, _duration_s: float) -> None:
        self.line.say(b"late")


@pytest.mark.usefixtures("job")
def test_every_rank_hears_everything_in_order() -> None:
    first = StoreLine(1)
    ears = [StoreLine(1, clock=Late(first)) for _ in range(2)]
    first.say(b"one")
    first.say(b"\x00two")
    for ear in ears:
        assert [ear.hear(), ear.hear()] == [b"one", b"\x00two"]
    assert ears[0].hear() == b"late"  # it waits until something is said
    assert ears[1].hear() == b"late"


@pytest.mark.usefixtures("job")
def test_lines_are_counted_so_that_no_two_are_mixed_up() -> None:
    one, other = StoreLine(), StoreLine()
    one.say(b"one")
    other.say(b"other")
    assert one._prefix != other._prefix  # noqa: SLF001 - what sets them apart


def test_ranks_that_did_not_meet_are_told_how() -> None:
    with pytest.raises(NotSupportedError, match="its ranks did not meet") as refused:
        StoreLine(1).say(b"one")
    assert "as in training" in refused.value.hint
