"""What whole steps say of one clock, while kernels are measured and after, on samples of H200s."""

from pathlib import Path

import msgspec
import pytest

from fake_gpu import FakeClock
from underclock import SampleSet, plan
from underclock.app.tuning import Answers, keep_running
from underclock.core.planning.best_choice import Goal
from underclock.hw.base import parse_gpu
from underclock.hw.simulated.driver import simulated_driver
from underclock.records import ALONE
from underclock.report.answer import larger_budgets, next_sentence
from underclock.store import SampleFile, read_samples

_FOLDER = Path(__file__).parents[2] / "docs" / "evidence" / "h200"
_GOAL = Goal(max_slowdown=0.01)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def steered() -> SampleSet:
    """Return samples of a real board, of the step whole and of its kernels."""
    body = (_FOLDER / "steered-small-9.json").read_bytes()
    return msgspec.json.decode(body, type=SampleSet)


def test_answers_come_while_samples_are_taken(
    steered: SampleSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, clock, shown = tmp_path / "samples.db", FakeClock(), list[str]()
    answers = Answers(path, _GOAL, clock)
    answers.show = shown.append
    answers.refresh()  # there is no file
    header = msgspec.structs.replace(steered, windows=())
    steps = [window for window in steered.windows if not window.kernel]
    with SampleFile.create(path, header) as file:
        for window in steps:
            clock.sleep_s(3.0)
            answers.refresh()
            file.append(window)
        clock.sleep_s(30.0)
        answers.refresh()

    said = capsys.readouterr().err
    assert said.count("first answer, after") == 1
    assert "energy" in shown[0]
    assert 1 < len(shown) < len(steps)
    made = plan(path, _GOAL)
    assert f"At {made.launch_clocks[0]}" in shown[-1]
    assert ("more of GPU time would measure it to ±" in shown[-1]) == bool(answers.more(made))


def test_clocks_of_which_nothing_is_sure_are_no_answer_yet(tmp_path: Path) -> None:
    path, shown = tmp_path / "samples.db", list[str]()
    layer = msgspec.json.decode((_FOLDER / "steered-layer-8.json").read_bytes(), type=SampleSet)
    with SampleFile.create(path, msgspec.structs.replace(layer, windows=())) as file:
        for window in [window for window in layer.windows if not window.kernel][:14]:
            file.append(window)
    answers = Answers(path, Goal(max_slowdown=0.0), FakeClock())
    answers.show = shown.append
    answers.refresh()
    assert shown == ["no other clocks save for sure so far"]


def test_a_step_that_cannot_be_captured_is_planned_as_it_ran(
    steered: SampleSet, tmp_path: Path
) -> None:
    whole = steered.in_situ[0]
    step = msgspec.structs.replace(steered.step, name="ranks", obstacle="2 ranks train together")
    with simulated_driver("h200"):
        keep_running(step, whole, parse_gpu("nvml:0"), tmp_path / "samples.db")

    samples = read_samples(tmp_path / "samples.db")
    assert samples.windows == (whole,)
    assert samples.windows[0].mix == ALONE
    made = plan(samples, _GOAL)
    assert made.sets_nothing
    assert made.headline.cost is not None
    assert made.headline.cost.energy_j == pytest.approx(whole.energy_j)
    assert any("one pair of clocks" in words for words in made.warnings)
    assert made.answer[0] == "No other clocks were measured: clocks stay as they are."
    assert next_sentence(made, "p.json", "torchrun t.py").endswith(
        "underclock run -- torchrun t.py"
    )
    assert not larger_budgets(made)  # what was never measured saves nothing
