"""Where a script's steps end, on PyTorch's own optimizers: nothing here needs a GPU."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import underclock  # noqa: E402
from underclock.hw.cuda.boundaries import BoundarySource, StepBoundaries  # noqa: E402


class Ends:
    """Counts the ends of steps."""

    def __init__(self) -> None:
        self.count = 0
        self.boundaries = StepBoundaries(torch, self.end)

    def end(self) -> None:
        self.count += 1


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.boundaries.close()


def weight() -> Any:
    return torch.ones(3, requires_grad=True)


def test_a_step_ends_where_the_first_optimizer_has_stepped(ends: Ends) -> None:
    one, two = weight(), weight()
    first, second = torch.optim.SGD([one]), torch.optim.Adam([two])
    for step in range(5):
        for _ in range(3):  # gradients are accumulated
            (one * two).sum().backward()
        first.step()
        second.step()
        assert ends.count == step + 1
    assert ends.boundaries.source is BoundarySource.OPTIMIZER


def test_a_closure_runs_within_a_step(ends: Ends) -> None:
    one = weight()
    optimizer = torch.optim.LBFGS([one], max_iter=4)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (one - 2.0).square().sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    assert ends.count == 3


def test_a_scaler_that_skips_its_optimizer_ends_a_step(ends: Ends) -> None:
    one = weight()
    optimizer = torch.optim.SGD([one])
    scaler = torch.amp.GradScaler("cpu")
    for step, factor in enumerate((float("inf"), 1.0, float("nan"), 1.0)):
        optimizer.zero_grad()
        scaler.scale((one * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert ends.count == step + 1


def test_without_an_optimizer_steps_end_where_backward_passes_begin(ends: Ends) -> None:
    one = weight()
    for _ in range(70):
        one.square().sum().backward()
        with torch.no_grad():
            one -= 0.1 * one.grad
    assert ends.count == 62  # an optimizer might have been made after some passes
    assert ends.boundaries.source is BoundarySource.BACKWARD


def test_an_optimizer_that_comes_later_ends_the_steps(ends: Ends) -> None:
    critic, generator = torch.optim.SGD([weight()]), torch.optim.SGD([weight()])
    ended = []
    for step in range(15):
        critic.step()
        if step % 5 == 4:
            generator.step()
        ended.append(ends.count)
    assert ended == [1, 2, 3, 4, 6, 6, 6, 6, 6, 7, 7, 7, 7, 7, 8]


def test_a_script_may_say_where_its_steps_end(ends: Ends) -> None:
    one = weight()
    optimizer = torch.optim.SGD([one])
    for _ in range(3):
        underclock.step()
        one.sum().backward()
        optimizer.step()
        optimizer.step()
    assert ends.count == 3
    assert ends.boundaries.source is BoundarySource.CALL


def test_pytorch_is_as_before() -> None:
    hooks = import_module("torch.optim.optimizer")._global_optimizer_post_hooks  # noqa: SLF001
    before = dict(hooks), torch.autograd.backward, torch.amp.GradScaler.step
    underclock.step()  # which ends nothing where no step is looked at
    made = Ends()
    assert dict(hooks) != before[0]
    made.boundaries.close()
    assert (dict(hooks), torch.autograd.backward, torch.amp.GradScaler.step) == before
