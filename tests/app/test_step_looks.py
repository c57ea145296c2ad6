"""Scripts' steps looked at in this process, on its CPU: which of them is found, what is said."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from underclock.app.step_looks import Looks, StepLook  # noqa: E402
from underclock.hw.base import SystemClock  # noqa: E402
from underclock.hw.cuda.boundaries import StepBoundaries  # noqa: E402
from underclock.hw.lockstep import RankAgreement  # noqa: E402
from underclock.records import Pass, Step  # noqa: E402

Script = Callable[[int], None]
_WIDTH = 16


def looked_at(begun: Callable[[], Script], steps: int = 30) -> list[Step]:
    """Begin a script and run its steps until they were looked at; return what was found."""
    found: list[Step] = []
    clock = SystemClock()
    look = StepLook(
        name="script",
        latest=20,
        ranks=RankAgreement(torch, clock, longest_s=10.0),
        clock=clock,
        phase=lambda _: None,
        found=lambda step, _trace, _running: found.append(step),
        captured=lambda _: None,
    )
    looks: list[Looks] = []

    def ended() -> None:
        looks.extend([] if looks else [look.on_cpu()])
        next(looks[0])

    boundaries = StepBoundaries(torch, ended)
    try:
        script = begun()
        with suppress(StopIteration):
            for step in range(steps):
                script(step)
    finally:
        boundaries.close()
        looks[0].close()
    return found


class Training:
    """A script's model, and a step of it."""

    def __init__(self, optimizer: str = "AdamW", **options: object) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(_WIDTH, 32), torch.nn.Linear(32, _WIDTH))
        parameters = self.model.parameters()
        self.optimizer = getattr(torch.optim, optimizer)(parameters, **options)

    def backward(self, rows: int = 8) -> Any:
        loss = self.model(torch.randn(rows, _WIDTH)).square().mean()
        loss.backward()
        return loss

    def step(self, rows: int = 8) -> None:
        self.backward(rows)
        self.optimizer.step()
        self.optimizer.zero_grad()


def products(step: Step, pass_: Pass = Pass.BACKWARD) -> int:
    return sum(k.count for k in step.kernels if k.pass_ is pass_ and "mm" in k.name)


def told(found: list[Step]) -> str:
    return " ".join(found[-1].warnings)


def test_each_length_is_a_step_of_its_own() -> None:
    def begun() -> Script:
        training = Training()
        return lambda step: training.step(rows=8 + step)

    found = looked_at(begun)
    assert len(found) == 2
    assert len(found[0].order) == len(found[1].order)
    assert "lengths vary among this script's steps: aten::" in told(found)
    assert "fp32[10x16]" in told(found)
    assert "fp32[9x16]" in told(found)
    assert "each length is a step of its own" in told(found)


def test_an_evaluation_between_steps_is_in_no_step_that_is_kept() -> None:
    def begun() -> Script:
        training = Training()

        def script(step: int) -> None:
            training.step()
            if step % 5 == 0:
                for _ in range(9):
                    training.model(torch.randn(8, _WIDTH)).sum().item()

        return script

    found = looked_at(begun)
    assert [sum(k.count for k in s.kernels if "addmm" in k.name) for s in found] == [20, 2, 2]
    assert "steps of this script differ" in " ".join(found[1].warnings)
    assert "steps of this script differ" not in told(found)


def test_steps_that_never_repeat_are_said_to_differ() -> None:
    def begun() -> Script:
        training = Training()

        def script(step: int) -> None:
            for _ in range(step):
                training.backward()
            training.step()

        return script

    found = looked_at(begun)
    assert [products(step) // 3 for step in found] == [2, 3, 4]
    assert "steps of this script differ" in told(found)
    assert "underclock.step() says where steps end" in told(found)


def test_of_few_steps_those_that_there_are_are_looked_at() -> None:
    def begun() -> Script:
        training = Training()
        return lambda _: training.step()

    assert [products(step) for step in looked_at(begun, steps=2)] == [3]


def test_a_closure_runs_as_often_as_its_optimizer_likes() -> None:
    def begun() -> Script:
        training = Training("LBFGS", max_iter=3, lr=0.01, tolerance_change=0.0)

        def closure() -> Any:
            training.optimizer.zero_grad()
            return training.backward()

        return lambda _: training.optimizer.step(closure)

    assert products(looked_at(begun)[-1]) == 3 * 3


def test_a_scaler_that_skips_steps() -> None:
    def begun() -> Script:
        training, scaler = Training(), torch.amp.GradScaler("cpu")

        def script(step: int) -> None:
            loss = training.model(torch.randn(8, _WIDTH)).square().mean()
            scaler.scale(loss * (float("inf") if step == 1 else 1.0)).backward()
            scaler.step(training.optimizer)
            scaler.update()
            training.optimizer.zero_grad()

        return script

    found = looked_at(begun)
    skipped, taken = (sum(k.pass_ is Pass.OPTIMIZER for k in step.kernels) for step in found[:2])
    assert skipped < taken
    assert products(found[-1]) == 3


def test_parameters_that_a_script_updates_itself() -> None:
    def begun() -> Script:
        weight = torch.ones(_WIDTH, _WIDTH, requires_grad=True)

        def script(_: int) -> None:
            (weight @ torch.randn(_WIDTH, 8)).square().mean().backward()
            with torch.no_grad():
                weight.sub_(weight.grad, alpha=0.1)
                weight.grad = None

        return script

    found = looked_at(begun)
    assert len(found) == 2
    assert products(found[-1]) == 1
