"""Batches taken by a step that is tried over and over come again, and none is lost."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from underclock.hw.cuda.state import same_batches


class Loader:
    """An iterator that counts."""

    def __init__(self, last: int = 1000) -> None:
        self.numbers = iter(range(last))

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return next(self.numbers)


def fake_torch(kind: type) -> Any:
    dataloader = SimpleNamespace(_BaseDataLoaderIter=kind)
    return SimpleNamespace(utils=SimpleNamespace(data=SimpleNamespace(dataloader=dataloader)))


@pytest.fixture
def kind() -> type[Loader]:
    return type("Loader", (Loader,), {"__next__": Loader.__next__})


def test_every_try_takes_the_same_and_the_next_one_takes_it_again(kind: type[Loader]) -> None:
    loader, own = kind(), kind.__next__
    assert next(loader) == 0
    with same_batches(fake_torch(kind)) as batches:
        for _ in range(3):
            batches.rewind()
            assert [next(loader), next(loader)] == [1, 2]
        batches.rewind()
        assert next(loader) == 1
    assert [next(loader) for _ in range(4)] == [1, 2, 3, 4]
    assert kind.__next__ is own


def test_loaders_are_told_apart(kind: type[Loader]) -> None:
    one, other = kind(), kind()
    next(other)
    with same_batches(fake_torch(kind)):
        assert (next(one), next(other)) == (0, 1)
    assert (next(other), next(one), next(one), next(other)) == (1, 0, 1, 2)


def test_a_loader_that_ends_ends(kind: type[Loader]) -> None:
    loader = kind(1)
    with same_batches(fake_torch(kind)) as batches:
        assert list(loader) == [0]
        batches.rewind()
        assert list(loader) == [0]
    assert list(loader) == [0]
    assert list(loader) == []


def test_nothing_taken_leaves_nothing_behind(kind: type[Loader]) -> None:
    own = kind.__next__
    with pytest.raises(KeyboardInterrupt), same_batches(fake_torch(kind)):
        raise KeyboardInterrupt
    assert kind.__next__ is own


def test_pytorch_s_own_loaders_are_stood_before() -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.arange(8))
    batches = iter(torch.utils.data.DataLoader(data, batch_size=2))
    with same_batches(torch) as again:
        first = next(batches)[0].tolist()
        again.rewind()
        assert next(batches)[0].tolist() == first == [0, 1]
    assert [batch[0].tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5], [6, 7]]
