"""What is said where a hot companion does not fit; memory that is made up."""

import weakref
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from underclock.errors import NoRoomError
from underclock.hw.cuda.round_graphs import first_that_fits


class FakeOutOfMemoryError(Exception):
    pass


class Operand:
    pass


class FakeTorch:
    """A GPU with so many MiB free."""

    OutOfMemoryError = FakeOutOfMemoryError

    def __init__(self, free_mib: int) -> None:
        self.free = free_mib * 2**20
        self.emptied = 0
        self.first: weakref.ref[Operand] | None = None
        self.cuda = SimpleNamespace(
            empty_cache=self._empty, mem_get_info=lambda: (self.free, 80 * 2**30)
        )

    def _empty(self) -> None:
        assert self.first is None or self.first() is None  # nothing is left of what did not fit
        self.emptied += 1

    def product(self, side: int) -> Callable[[], object]:
        operand = Operand()
        self.first = weakref.ref(operand)
        if 6 * side**2 > self.free:
            raise FakeOutOfMemoryError(side)
        return lambda: (operand, side)[1]


@pytest.mark.parametrize(("free_mib", "side"), [(1000, 8192), (384, 8192), (383, 4096)])
def test_the_largest_product_that_fits_is_taken(free_mib: int, side: int) -> None:
    torch = FakeTorch(free_mib)
    taken, work = first_that_fits(torch, (8192, 4096), torch.product)

    assert taken == work() == side
    assert torch.emptied == (side == 4096)


def test_where_none_fits_the_sizes_are_told() -> None:
    torch = FakeTorch(50)
    with pytest.raises(
        NoRoomError, match=r"takes 96 MiB beside the step, and 50 of 81920 MiB are free"
    ) as caught:
        first_that_fits(torch, (8192, 4096), torch.product)
    assert "lower the batch" in caught.value.hint
