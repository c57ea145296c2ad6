"""What a step changes is put back, and what it takes from loaders comes again."""

import gc
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from underclock.errors import StuckError
from underclock.hw.cuda.state import preserved, same_batches

torch: Any  # imported when the first test here runs: it takes seconds, whoever collects tests
COUNTER = 0


class Trainer:
    """A model with everything that a step can change."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.2)
        )
        self.model.seen = 0
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.5)
        self.x = torch.randn(32, 8)

    def step(self) -> None:
        global COUNTER  # noqa: PLW0603 - what users do
        COUNTER += 1
        self.model.seen += 1
        self.optimizer.zero_grad()
        self.model(self.x).square().mean().backward()
        self.optimizer.step()
        self.schedule.step()
        self.x.mul_(1.01)
        random.random()  # noqa: S311 - not a secret
        np.random.rand()  # noqa: NPY002 - what users do

    def state(self) -> list[Any]:
        moments = [
            (name, value)
            for parameter in self.model.parameters()
            for name, value in sorted(self.optimizer.state.get(parameter, {}).items())
        ]
        gradients = [p.grad for p in self.model.parameters()]
        generators = (
            random.getstate(),
            np.random.get_state(legacy=False)["state"]["key"].tolist(),  # noqa: NPY002
            torch.get_rng_state().tolist(),
        )
        return [
            *(value.tolist() for value in self.model.state_dict().values()),
            *((name, float(value.sum())) for name, value in moments),
            *(None if gradient is None else gradient.tolist() for gradient in gradients),
            [group["lr"] for group in self.optimizer.param_groups],
            self.schedule.last_epoch,
            self.x.tolist(),
            self.model.seen,
            COUNTER,
            generators,
        ]


@pytest.fixture(autouse=True, scope="module")
def _torch_is_loaded() -> None:
    """Load all of PyTorch, and keep that from the collector too."""
    global torch  # noqa: PLW0603 - as an import statement would
    torch = pytest.importorskip("torch")
    Trainer().step()  # loads the rest of PyTorch
    gc.collect()
    gc.freeze()


@pytest.fixture(params=[0, 3], ids=["untrained", "trained"])
def trainer(request: pytest.FixtureRequest) -> Trainer:
    made = Trainer()
    for _ in range(request.param):
        made.step()
    return made


def stepping(trainer: Trainer) -> Callable[[], None]:
    calls = 0

    def step() -> None:
        nonlocal calls
        calls += 1
        trainer.step()

    step.calls = lambda: calls  # type: ignore[attr-defined]
    return step


@pytest.mark.slow
def test_whatever_a_step_changes_is_put_back(trainer: Trainer) -> None:
    step = stepping(trainer)
    before = trainer.state()
    with preserved(step):
        for _ in range(4):
            step()
        assert trainer.state() != before
    assert trainer.state() == before
    assert step.calls() == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_it_is_put_back_when_the_block_is_interrupted(
    trainer: Trainer, error: type[BaseException]
) -> None:
    before = trainer.state()

    def interrupted() -> None:
        with preserved(trainer.step):
            trainer.step()
            raise error

    with pytest.raises(error):
        interrupted()
    assert trainer.state() == before


def test_a_stuck_gpu_is_not_waited_for(trainer: Trainer) -> None:
    before = trainer.state()

    def stuck() -> None:
        with preserved(trainer.step):
            trainer.step()
            raise StuckError("it does not come back")

    with pytest.raises(StuckError):
        stuck()
    assert trainer.state() != before


@pytest.fixture
def alone_in_a_group() -> Iterator[None]:
    distributed = pytest.importorskip("torch.distributed")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("alone_in_a_group")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_a_step_whose_parameters_are_sharded_is_put_back() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
    mesh = init_device_mesh("cpu", (1,))
    for module in (*model, model):
        fully_shard(module, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    x = torch.randn(3, 4)

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    def held() -> list[Any]:
        moments = [state["exp_avg"] for state in optimizer.state.values()]
        return [each.to_local().tolist() for each in (*model.parameters(), *moments)]

    step()
    before = held()
    with preserved(step):
        step()
        assert held() != before
    assert held() == before


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
