"""Training steps as people write them, on the first real GPU of this machine.

Deselected unless asked for: `make gpu`.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from underclock.errors import MeasurementError
from underclock.records import Pass

torch = pytest.importorskip("torch")
pytest.importorskip("cuda.bindings.driver")
if not torch.cuda.is_available():
    pytest.skip("PyTorch sees no GPU", allow_module_level=True)

from underclock.app.launching import trace_command  # noqa: E402
from underclock.tracing.captured import measured_step, trace_step  # noqa: E402
from underclock.tracing.source import TrainingCommand, load_step  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

HERE = Path(__file__).parent
ZOO = HERE.parents[1] / "studies" / "zoo"
WHOLE = (
    "stock",
    "scaled",
    "loaded",
    "compiled",
    "dropping",
    "reading",
    "convolving",
    "low_rank",
    "recurring",
    "accumulating",
)


@pytest.mark.parametrize("name", WHOLE)
def test_an_ordinary_step_is_captured_whole(name: str) -> None:
    step = trace_step(load_step(f"{ZOO}/ordinary.py:{name}")).step
    assert not step.obstacle
    assert all("the GPU waits for the host" in warning for warning in step.warnings)
    assert {Pass.FORWARD, Pass.BACKWARD, Pass.OPTIMIZER} <= {k.pass_ for k in step.kernels}


def test_what_a_mixture_of_experts_launches_between_parts_is_said() -> None:
    step = trace_step(load_step(f"{ZOO}/ordinary.py:mixing")).step
    assert not step.obstacle
    told = "; ".join(step.warnings)
    for words in ("aten::nonzero", "the GPU waits for the host", "the data decides the sizes"):
        assert words in told


@pytest.mark.parametrize(
    "name",
    ["capturing", "waiting", "timing", "decomposing", "without_gradient", "without_optimizer"],
)
def test_an_odd_step_is_captured(name: str) -> None:
    assert not trace_step(load_step(f"{HERE}/odd.py:{name}")).step.obstacle


@pytest.mark.parametrize(
    ("name", "words"),
    [("argued", "missing 1 required positional"), ("failing", "ValueError: the learning rate")],
)
def test_a_step_that_fails_is_a_sentence(name: str, words: str) -> None:
    with pytest.raises(MeasurementError, match=words):
        trace_step(load_step(f"{HERE}/odd.py:{name}"))


def _fastest_s(step: Callable[[], object], times: int = 40) -> float:
    taken = []
    for _ in range(times):
        torch.cuda.synchronize()
        begun_s = time.perf_counter()
        step()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - begun_s)
    return min(taken)


def test_a_step_is_as_fast_after_it_was_timed_inside() -> None:
    step = load_step(f"{ZOO}/ordinary.py:recurring")  # the host bounds it: 5389 launches
    before_s = _fastest_s(step)
    with measured_step(step, name="recurring") as launcher:
        traced = launcher.traced.step
        with launcher.loop([traced.kernels[index] for index in traced.order]) as loop:
            loop.durations(0.5)
    assert _fastest_s(step) < 1.1 * before_s  # it was 1.43 while the profiler stayed attached


def test_pytorch_s_generator_works_after_a_capture_that_failed() -> None:
    step = trace_step(load_step(f"{HERE}/odd.py:refusing")).step
    assert "odd.py" in step.obstacle
    assert torch.randn(8, device="cuda").std() > 0


def test_a_script_is_traced_as_it_runs() -> None:
    command = TrainingCommand.of([str(ZOO / "train.py"), "--steps", "20"], latest=4)
    (rank,) = trace_command(command)
    assert rank.step.name == "train"
    assert not rank.step.obstacle
    assert {Pass.FORWARD, Pass.BACKWARD, Pass.OPTIMIZER} <= {k.pass_ for k in rank.step.kernels}
