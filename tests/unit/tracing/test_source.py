"""Where a step or a plan comes from, and which files may have run on a real GPU."""

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from underclock.app import main
from underclock.errors import NotSupportedError, UsageError
from underclock.records import StepSource
from underclock.records.work import NodeKind, TracedActivity
from underclock.tracing.captured import check_one_device, obstacle_of
from underclock.tracing.held import trace
from underclock.tracing.source import (
    StepFile,
    TrainingCommand,
    load_step,
    source_of,
    source_of_command,
)

_CODE = (
    "from pathlib import Path\nPath(__file__).with_name('ran').touch()\ndef step():\n    return 7\n"
)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "mine" / "code").mkdir(parents=True)
    path = tmp_path / "mine" / "code" / "train.py"
    path.write_text(_CODE)
    return path


def _ran(script: Path) -> bool:
    return script.with_name("ran").exists()


def test_a_script_is_found_with_its_steps_and_arguments(script: Path, tmp_path: Path) -> None:
    told: list[str] = []
    folder = tmp_path / "mine"
    asked = TrainingCommand.of([str(script), "--lr", "3e-4"], latest=7)
    assert asked.words == (sys.executable, str(script), "--lr", "3e-4")
    source = source_of_command(asked, folder)

    assert StepFile(folder=folder, tell=told.append).load(source) == asked
    assert told == [f"running {script} to its step 7"]
    assert str(source) == "code/train.py --step 7 --lr 3e-4"
    assert not _ran(script)
    script.write_text(_CODE + "# changed\n")
    with pytest.raises(UsageError, match="the file changed since the step was traced"):
        StepFile(folder=folder).load(source)
    assert StepFile(folder=folder, named=str(script)).load(source) == asked


@pytest.mark.parametrize(
    ("words", "latest", "sentence"),
    [
        ((), 20, "there is no command to run"),
        (("no-such-command", "train.py"), 20, "there is no command 'no-such-command'"),
        (("true",), 0, "cannot look at step 0"),
    ],
)
def test_commands_that_cannot_be_looked_at_are_refused(
    words: tuple[str, ...], latest: int, sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        TrainingCommand.of(words, latest=latest)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("gone.py", "cannot read 'gone.py': no such file"),
        ("{script} --size batch=8", "a command's sizes are its own"),
        ("{script} --step 0", "cannot look at step 0"),
        ("gpt3-xl -- --lr 1", "'gpt3-xl' is no command and takes no arguments"),
        ("rank0.trace.json.gz", "read by underclock job traced"),
        ("{script}:step -- --lr 1", "is no command and takes no arguments"),
    ],
)
def test_what_a_workload_or_a_command_does_not_take_is_refused(
    arguments: str, words: str, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["trace", *arguments.format(script=script).split()])
    assert ended.value.code == UsageError.exit_code
    assert words in capsys.readouterr().err
    assert not _ran(script)


def _changed(script: Path, folder: Path) -> StepSource:
    source = source_of(f"{script}:step", folder)
    script.write_text(_CODE + "# changed\n")
    return source


def _gone(script: Path, folder: Path) -> StepSource:
    source = source_of(f"{script}:step", folder)
    script.rename(script.with_name("other.py"))
    return source


def _above(script: Path, folder: Path) -> StepSource:
    return source_of(f"{script}:step", folder / "elsewhere")


def _linked(script: Path, folder: Path) -> StepSource:
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "link.py").symlink_to(script)
    return msgspec.structs.replace(source_of(f"{script}:step", folder), file="link.py")


def _absolute(script: Path, folder: Path) -> StepSource:
    return msgspec.structs.replace(source_of(f"{script}:step", folder), file=str(script))


@pytest.mark.parametrize(
    ("made", "inside", "words"),
    [
        (_changed, ".", "the file changed since the step was traced"),
        (_gone, ".", "no such file"),
        (_above, "elsewhere", "lies outside"),
        (_linked, "elsewhere", "lies outside"),
        (_absolute, "elsewhere", "lies outside"),
    ],
)
def test_anything_else_is_run_only_where_the_user_names_it(
    made: Callable[[Path, Path], StepSource], inside: str, words: str, script: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    source = made(script, folder)
    with pytest.raises(UsageError, match=words) as refused:
        StepFile(folder=folder / inside).load(source)

    assert "--source" in refused.value.hint
    assert not _ran(script)
    found = next(path for path in script.parent.iterdir() if path.suffix == ".py")
    step = StepFile(folder=folder / inside, named=f"{found}:step").load(source)
    assert callable(step)
    assert step() == 7


def test_a_step_that_was_never_traced_has_nothing_to_run() -> None:
    with pytest.raises(UsageError, match="a step that was traced on one") as refused:
        StepFile().load(None)
    assert "underclock trace" in refused.value.hint


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("import helper\ndef step():\n    return helper.ANSWER\nbatch = 3\n")
    (tmp_path / "helper.py").write_text("ANSWER = 42\n")
    return path


def test_a_function_is_found_with_what_lies_beside_its_file(beside: Path) -> None:
    assert load_step(f"{beside}:step")() == 42


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nowhere/train.py:step", "no such file"),
        ("train.py:", "no such file"),
        ("{script}:stop", "no function 'stop'"),
        ("{script}:batch", "no function 'batch'"),
        ("{folder}/notes.txt:step", "not a Python file"),
    ],
)
def test_what_cannot_be_imported_is_a_sentence(
    source: str, words: str, beside: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("step")
    with pytest.raises(UsageError, match=words) as caught:
        load_step(source.format(script=beside, folder=tmp_path))
    assert caught.value.hint


def test_a_size_that_a_step_does_not_take_is_refused(beside: Path) -> None:
    with pytest.raises(UsageError, match="so it cannot be run at one"):
        trace(f"{beside}:step", batch=8)


@pytest.mark.parametrize(
    ("operators", "cause"),
    [
        ((), "CUDA graph (why)"),
        (("aten::item",), "aten::item makes the host wait"),
        (("aten::item", "aten::nonzero"), "aten::nonzero returns a shape that depends on data"),
    ],
)
def test_an_obstacle_names_the_operator(operators: tuple[str, ...], cause: str) -> None:
    sentence = obstacle_of("why", operators)
    assert cause in sentence
    assert sentence.endswith("measured and planned whole")


def test_a_step_on_several_gpus_is_refused() -> None:
    def on(device: int) -> TracedActivity:
        return TracedActivity(kind=NodeKind.KERNEL, start_s=0, duration_s=1, device=device)

    check_one_device([on(1), on(1)], 1)
    check_one_device([], 0)
    with pytest.raises(NotSupportedError, match="GPUs 0, 1 from one process") as refused:
        check_one_device([on(1), on(0)], 0)
    assert "torchrun" in refused.value.hint
