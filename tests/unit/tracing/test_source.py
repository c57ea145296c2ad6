"""Which files a step or a plan may have run on a real GPU."""

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from underclock.app import main
from underclock.errors import UsageError
from underclock.records import StepSource
from underclock.tracing.source import StepFile, TrainingCommand, source_of, source_of_command

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


def test_a_source_is_relative_to_the_file_that_names_it(script: Path, tmp_path: Path) -> None:
    digest = hashlib.sha256(_CODE.encode()).hexdigest()

    assert source_of(f"{script}:step", tmp_path / "mine") == StepSource(
        file="code/train.py", function="step", sha256=digest
    )
    assert source_of(f"{script}:step", tmp_path / "other").file == "../mine/code/train.py"


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
    ("words", "name"),
    [
        ("{python} {script} --epochs 3", "train"),
        ("{script}", "train"),
        ("{python} -m torch.distributed.run --nproc-per-node 2 {script}", "train"),
        ("{python} -m package.pretrain --epochs 3", "pretrain"),
        ("env OMP_NUM_THREADS=1 {python} {script}", "train"),
        ("true", "true"),
    ],
)
def test_a_command_that_trains_is_named_by_what_it_runs(
    words: str, name: str, script: Path
) -> None:
    given = words.format(python=sys.executable, script=script).split()
    assert TrainingCommand.of(given).name == name


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
