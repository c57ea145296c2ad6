"""A training script run to a step, on PyTorch's own optimisers: nothing here needs a GPU."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from underclock.errors import DataError, MeasurementError, UsageError

optimizer: Any = pytest.importorskip("torch.optim.optimizer")

from underclock.hw.cuda.script import Steps, held  # noqa: E402

TRAIN = """
import sys
import torch
from pathlib import Path
weight = torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
mark = Path(__file__).with_name("steps")
try:
    for step in range(int(sys.argv[1])):
        optimizer.zero_grad()
        (weight * 2).sum().backward()
        optimizer.step()
        scheduler.step()
        print("took step", step)
        mark.write_text(str(step + 1))
except ValueError as exc:
    mark.write_text(f"caught {exc}")
finally:
    Path(__file__).with_name("ended").touch()
"""


@pytest.fixture
def train(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def after(steps: int, seen: list[str]) -> Callable[[Callable[[str], None]], Steps]:
    """Hand something over once so many steps were taken."""

    def look(hand_over: Callable[[str], None]) -> Iterator[None]:
        for step in range(steps):
            seen.append(f"before {step}")
            yield
        hand_over("held")
        seen.append("released")

    return look  # type: ignore[return-value]


def test_a_script_is_held_at_its_step_and_ended_after(
    train: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []
    arguments, folders = list(sys.argv), list(sys.path)
    with held(train, ["1000000"], after(3, seen)) as thing:
        assert thing == "held"
        assert seen == ["before 0", "before 1", "before 2"]
        assert train.with_name("steps").read_text() == "2"  # the third is in its end
        assert not train.with_name("ended").exists()
        sys.stdout.write("ours\n")
    assert seen[-1] == "released"
    assert train.with_name("ended").exists()
    assert (sys.argv, sys.path) == (arguments, folders)
    said = capsys.readouterr()
    assert said.out == "ours\n"
    assert "took step 1" in said.err


def test_pytorch_is_as_before(train: Path) -> None:
    hooks = optimizer._global_optimizer_post_hooks  # noqa: SLF001
    before = dict(hooks)
    with held(train, ["9"], after(2, [])):
        assert dict(hooks) != before
    assert dict(hooks) == before


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (TRAIN, UsageError, "train.py ended after 2 steps, before those to be looked at"),
        ("x = 1\n", UsageError, "without a step of an optimiser"),
        ("raise SystemExit\n", UsageError, "without a step of an optimiser"),
        ("raise SystemExit(2)\n", MeasurementError, "failed in step 0: SystemExit"),
        (
            TRAIN.replace("print(", "1 / (1 - step); print("),
            MeasurementError,
            r"failed in step 2: ZeroDivisionError: division by zero, at train.py:15",
        ),
    ],
)
def test_a_script_that_does_not_come_so_far_is_a_sentence(
    train: Path, code: str, error: type[Exception], words: str
) -> None:
    train.write_text(code)
    with pytest.raises(error, match=words), held(train, ["2"], after(5, [])):
        pytest.fail("nothing can be held")


def test_what_looks_on_may_end_it_with_a_sentence(train: Path) -> None:
    def look(_hand_over: Callable[[str], None]) -> Iterator[None]:
        yield
        raise DataError("no kernels")

    wanted: Any = look
    with pytest.raises(DataError, match="no kernels"), held(train, ["5"], wanted):
        pytest.fail("nothing can be held")
    assert train.with_name("ended").exists()


def test_what_looks_on_may_know_better_why_a_script_failed(train: Path) -> None:
    train.write_text(TRAIN.replace("print(", "1 / 0; print("))

    def look(_hand_over: Callable[[str], None]) -> Iterator[None]:
        yield
        try:
            yield
        except ZeroDivisionError as exc:
            raise DataError("it cannot be captured") from exc

    wanted: Any = look
    with pytest.raises(DataError, match="cannot be captured"), held(train, ["5"], wanted):
        pytest.fail("nothing can be held")


def test_an_interrupt_ends_the_script(train: Path) -> None:
    with pytest.raises(KeyboardInterrupt), held(train, ["1000000"], after(2, [])):
        raise KeyboardInterrupt
    assert train.with_name("ended").exists()
