"""What the first rank says, through PyTorch's store."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from underclock.errors import NotSupportedError
from underclock.hw.lockstep import StoreLine, meet

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


@dataclass
class Meeting:
    """A job of some ranks; as time passes, others come."""

    ranks: int
    comes: bool = True
    here: dict[str, int] = field(default_factory=dict)
    time_s: float = 0.0

    @property
    def torch(self) -> Any:
        return SimpleNamespace(
            distributed=SimpleNamespace(
                is_available=lambda: True,
                is_initialized=lambda: self.ranks > 0,
                get_world_size=lambda: self.ranks,
                distributed_c10d=SimpleNamespace(_get_default_store=lambda: self),
            )
        )

    def add(self, key: str, number: int) -> int:
        self.here[key] = self.here.get(key, 0) + number
        return self.here[key]

    def now_s(self) -> float:
        return self.time_s

    def sleep_s(self, duration_s: float) -> None:
        self.time_s += duration_s
        for key in self.here if self.comes else ():
            self.here[key] += 1


def test_a_process_alone_meets_nobody() -> None:
    alone = Meeting(ranks=0)
    assert meet(alone.torch, alone)
    assert not alone.here


def test_ranks_wait_for_the_last_of_them() -> None:
    four = Meeting(ranks=4)
    assert meet(four.torch, four)
    assert four.time_s == pytest.approx(3e-3)
    assert meet(four.torch, four)
    assert len(four.here) == 2


def test_who_never_comes_is_not_waited_for_for_ever() -> None:
    two = Meeting(ranks=2, comes=False)
    assert not meet(two.torch, two, longest_s=0.5)
    assert two.time_s == pytest.approx(0.5, abs=2e-3)
