"""The commands as a user types them: what they print, and the code they end with."""

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import pytest

import underclock
from judged_tables import judged
from underclock.app import main
from underclock.app.demo import run_demo
from underclock.app.main import cli
from underclock.campaign.grid import Campaign
from underclock.errors import StuckError, UsageError
from underclock.hw.measurer import BRISK
from underclock.hw.nvml_calls import READ_ONLY
from underclock.records import Evidence, GpuInfo, Kernel, Kind, Plan, SampleSet, Step
from underclock.store import SampleFile, read_document, save
from underclock.testing import simulated_driver

Fails = Callable[[str], tuple[int, str]]
_TABLE = (Path(__file__).parents[1] / "data/tables/two_kernels.csv").read_text()


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweep.csv").write_text(_TABLE)


def _json(
    arguments: str, capsys: pytest.CaptureFixture[str], *, code: int = 0
) -> dict[str, object]:
    with pytest.raises(SystemExit, match=str(code)) if code else contextlib.nullcontext():
        main([*arguments.split(), "--json"])
    body: dict[str, object] = json.loads(capsys.readouterr().out)
    return body


def test_the_whole_way_from_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["measure", "--gpu", "replay:sweep.csv", "-o", "samples.db"])
    main(["plan", "samples.db", "-o", "plan.json"])
    made = read_document(Path("plan.json"), Plan)
    save(judged(made, Path("sweep.csv"), repeats=2), "validation.json")
    main(["report", "plan.json", "validation.json", "-o", "report.html"])
    said = capsys.readouterr()

    assert said.out.splitlines()[1].startswith("Saves at most 19.5 % of energy")
    assert "Replayed from a table of" in said.out
    assert "each kernel, together" not in said.out
    assert "<html" in Path("report.html").read_text()


def test_the_session_in_the_documentation_is_what_a_terminal_shows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    docs = Path(__file__).parents[2] / "docs"
    Path("docs").symlink_to(docs)
    shown = (docs / "reading.md").read_text().partition("## A session")[2].split("```")[1]
    for part in shown.removeprefix("text\n$ underclock ").split("\n$ underclock "):
        command, _, answer = part.partition("\n")
        main(command.split())
        said = capsys.readouterr()
        lines = [line.rstrip() for line in (said.err + said.out).splitlines()]
        assert lines == answer.rstrip().splitlines()


def test_every_command_speaks_json(capsys: pytest.CaptureFixture[str]) -> None:
    step = _json("trace gpt3-125m --size batch=2 -o step.json", capsys)
    assert step["parameters"] == json.loads(Path("step.json").read_text())["parameters"]

    measured = _json("measure --gpu replay:sweep.csv -o samples.db", capsys)
    assert (measured["samples"], measured["evidence"]) == (5, "replayed")

    made = _json("plan samples.db -o plan.json", capsys)
    assert made["chosen"] == "kernel_global"
    assert made == json.loads(Path("plan.json").read_text())

    refused = _json("validate plan.json --gpu replay:sweep.csv", capsys, code=2)
    assert "cannot run kernels" in str(refused["error"])

    assert _json("report plan.json -o report.html", capsys) == {"report": "report.html"}
    assert _json("doctor --gpu sim:rtx3080ti", capsys)["version"]


@pytest.mark.slow
def test_the_demo_leaves_its_files_and_a_table(
    capsys: pytest.CaptureFixture[str], fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two long kernels at a few clocks take no minute.
    copy = Kernel(name="copy", kind=Kind.MEMORY, flops=0.0, bytes_moved=9e10)
    product = Kernel(name="product", kind=Kind.GEMM, flops=1e13, bytes_moved=1e9)
    step = Step(name="few", kernels=(copy, product), order=(0, 1))
    few = Campaign(core_mhz=(1050, 1470, None), mem_mhz=(None,))
    quick = partial(underclock.measure, campaign=few, measuring=BRISK)
    monkeypatch.setattr(underclock, "trace", lambda _: step)
    monkeypatch.setattr(underclock, "measure", quick)
    monkeypatch.setattr(underclock, "plan", partial(underclock.plan, raw=True))
    monkeypatch.setattr(
        underclock, "validate", partial(underclock.validate, repeats=2, measuring=BRISK)
    )
    main(["demo"])
    said = capsys.readouterr().out

    assert "Simulated RTX 3080 Ti" in said
    assert "clocks chosen" not in said
    assert len(said.splitlines()) <= 15
    assert {path.name for path in Path("underclock-demo").iterdir()} == {
        "step.json",
        "samples.db",
        "plan.json",
        "validation.json",
        "report.html",
    }
    monkeypatch.setattr(underclock, "measure", None)  # the same answer again takes nothing
    main(["demo", "--details"])
    again = capsys.readouterr().out
    assert again.startswith(said.partition("Page:")[0])
    for way in ("auto", "best fixed clock", "each pass", "kernel, alone", "kernel, together"):
        assert way in again
    Path("underclock-demo/plan.json").unlink()
    code, error = fails("demo")
    assert code == 2
    assert "--force" in error


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ("measure --gpu replay:sweep.csv -o s.db --grid steer", 3, "cannot be steered here"),
        ("trace gpt3-xxl", 2, "did you mean 'gpt3-xl'"),
        ("trace gpt3-xl --size heads=7", 2, "not a multiple of 7 heads"),
        ("trace gpt3-xl --size colour=7", 2, "no parameter named 'colour'"),
        ("trace gpt3-xl --size batch=many", 2, "cannot read 'batch=many'"),
        ("trace train.py:step --size batch=8", 2, "cannot read 'train.py': no such file"),
        ("trace gpt3-xl --size batch=9999999999999", 2, "cannot read 'batch=9999999999999'"),
        ("trace gpt3-xl --grid batch=1,8", 2, "2 steps go into a folder"),
        ("trace gpt3-xl --grid batch=1, -o family", 2, "cannot read 'batch=1,' as a size"),
        ("trace gpt3-xl --grid batch -o family", 2, "cannot read 'batch' in a grid"),
        ("trace gpt3-xl --grid batch=1,2 --size batch=3 -o family", 2, "batch is given twice"),
        ("trace gpt3-xl --grid batch=1 batch=2 -o family", 2, "batch is given twice"),
        ("trace gpt3-xl --grid colour=1,2 -o family", 2, "no parameter named 'colour'"),
        ("trace train.py --grid batch=1,2 -o family", 2, "is a script, whose sizes are its own"),
        ("trace train.py:step -o step.json", 2, "cannot read 'train.py': no such file"),
        ("trace train.py", 2, "cannot read 'train.py': no such file"),
        ("trace gpt3-xl -o sweep.csv", 2, "will not overwrite sweep.csv"),
        ("trace gpt3-xl -o nowhere/step.json", 2, "there is no folder nowhere"),
        ("trace gpt3-xl -o /proc/step.json", 2, "cannot write /proc/step.json"),
        ("measure --gpu sim:rtx3080 -o s.db", 2, "did you mean 'rtx3080ti'"),
        ("measure --gpu cpu -o s.db", 2, "unknown GPU 'cpu'"),
        ("measure --gpu sim:rtx3080ti -o s.db", 2, "needs a step"),
        ("measure --gpu nvml:x -o s.db", 2, "cannot read 'x' as a GPU's number"),
        ("measure nowhere.json --gpu sim:rtx3080ti -o s.db", 4, "cannot read nowhere.json"),
        ("measure sweep.csv --gpu sim:rtx3080ti -o s.db", 4, "not a readable step file"),
        ("measure --gpu replay:sweep.csv -o s.db --core-mhz 901", 2, "no core clock of 901 MHz"),
        ("measure --gpu replay:sweep.csv -o s.db --core-mhz 9:1:1", 2, "as a range"),
        ("measure --gpu replay:sweep.csv -o s.db --core-mhz fast", 2, "cannot read 'fast'"),
        ("measure --gpu replay:sweep.csv -o s.db --window 0s", 2, "positive length"),
        ("measure --gpu replay:sweep.csv -o s.db --window soon", 2, "as a duration"),
        ("measure --gpu replay:sweep.csv -o sweep.csv", 4, "not a samples file"),
        ("plan nowhere.csv", 4, "cannot read nowhere.csv"),
        ("plan sweep.csv --max-slowdown lots", 2, "as a fraction"),
        ("plan sweep.csv --max-slowdown -200%", 2, "more than the whole"),
        ("plan sweep.csv --max-slowdown 100%", 2, "above -1 and below 1"),
        ("plan sweep.csv --max-slowdown 1", 2, "did you mean 1%?"),
        ("plan sweep.csv --latency 6", 2, "did you mean 6ms"),
        ("measure --gpu sim:rtx3080ti -o s.db --precision 3", 2, "did you mean 3%?"),
        ("measure --gpu sim:rtx3080ti -o s.db --max-slowdown 100%", 2, "above -1 and below 1"),
        ("measure --gpu sim:rtx3080ti -o s.db --time-limit 20", 2, "it has no unit"),
        ("measure --gpu replay:sweep.csv -o -", 2, "the samples cannot go to stdout"),
        ("demo -o -", 2, "several files cannot go to stdout"),
        ("plan sweep.csv --max-slowdown -50%", 6, "raise --max-slowdown"),
        ("plan sweep.csv --max-slowdown 1% --objective edp", 2, "no meaning for edp"),
        ("plan sweep.csv --baseline 1000,5001", 4, "no row has the baseline"),
        ("plan sweep.csv --baseline 1000", 2, "write CORE,MEMORY"),
        ("plan sweep.csv --objective cheap", 2, "'cheap' is not one of"),
        ("plan sweep.csv -o sweep.csv", 2, "will not overwrite"),
        ("validate sweep.csv --gpu replay:sweep.csv", 4, "not a readable plan file"),
        ("report sweep.csv -o r.html", 4, "not a readable plan file"),
        ("report nowhere.json -o r.html", 4, "cannot read nowhere.json"),
        ("doctor --gpu sim:a100x", 2, "no simulated GPU"),
        ("doctor --gpu replay:sweep.csv", 2, "cannot show what its clocks do"),
        ("doctor --gpu nvml:first", 2, "cannot read 'first' as a GPU's number"),
        ("paper --gpu sim:rtx3080", 2, "did you mean 'rtx3080ti'"),
        ("paper --gpu sim:rtx3080ti#papers", 2, "boards with a name are sim:rtx3080ti#paper"),
        ("paper --gpu replay:sweep.csv", 2, "'replay:sweep.csv' is not simulated"),
        ("paper --gpu nvml:0", 2, "'nvml:0' is not simulated"),
        ("paper --grid fine", 2, "invalid value"),
        ("latency", 2, "missing option '--gpu'"),
        ("latency --gpu sim:a100x", 2, "no simulated GPU"),
        ("latency --gpu replay:sweep.csv", 2, "cannot show what its clocks do"),
        ("latency --gpu sim:a100 --targets 901", 2, "does not list a core clock of 901 MHz"),
        ("latency --gpu sim:a100 --targets fast", 2, "cannot read 'fast' as a clock"),
        ("latency --gpu sim:a100 -o nowhere/l.json", 2, "there is no folder nowhere"),
        ("run --max-slowdown -3 -- true", 2, "did you mean -3%?"),
        ("demo -o sweep.csv", 2, "cannot make sweep.csv"),
        ("frobnicate", 2, "there is no command 'frobnicate'"),
        ("paln sweep.csv", 2, "did you mean 'plan'?"),
        ("plan sweep.csv --max-slowdwn 1%", 2, "--max-slowdown"),
        ("plan", 2, "missing argument 'SAMPLES...'"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_a_code(
    arguments: str, code: int, sentence: str, fails: Fails
) -> None:
    found, said = fails(arguments)

    assert sentence in said
    assert found == code


def test_errors_are_objects_where_json_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, code, error, hint in (
        ("plan nowhere.csv", 4, "cannot read nowhere.csv", ""),
        ("paln", 2, "there is no command 'paln'", "did you mean 'plan'?"),
        ("plan sweep.csv --max-slowdwn 1%", 2, "no such option", ""),
    ):
        body = _json(arguments, capsys, code=code)
        assert set(body) == {"error", "hint", "exit_code"}
        assert body["exit_code"] == code
        assert str(body["error"]).startswith(error)
        assert str(body["hint"]).startswith(hint)


def test_a_dash_sends_a_document_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", "sweep.csv", "-o", "-"])
    made = json.loads(capsys.readouterr().out)
    assert made["chosen"] == "kernel_global"

    Path("plan.json").write_text(json.dumps(made))
    main(["report", "plan.json", "-o", "-"])
    assert "<html" in capsys.readouterr().out
    main(["trace", "gpt3-125m", "--size", "layers=1", "-o", "-"])
    assert json.loads(capsys.readouterr().out)["name"] == "gpt3-125m"
    assert not Path("-").exists()


def test_everything_printed_is_escaped_in_one_place() -> None:
    folder = Path(underclock.app.__file__).parent
    echoing = {path.name for path in folder.glob("*.py") if "click.echo(" in path.read_text()}

    assert echoing == {"output.py"}


def test_a_real_gpu_refuses_a_step_that_was_never_traced(
    capsys: pytest.CaptureFixture[str],
    fails: Fails,
) -> None:
    main(["trace", "gpt3-125m", "--size", "layers=1", "-o", "step.json"])
    capsys.readouterr()
    with simulated_driver("rtx3080ti"):
        for step in ("step.json", ""):
            code, said = fails(f"measure {step} --gpu nvml:0 -o s.db")

            assert "a real GPU needs a step that was traced on one" in said
            assert "underclock trace path/to/train.py:step" in said
            assert code == 2


@pytest.mark.slow
def test_a_step_that_cannot_be_isolated_is_measured_and_planned_whole(
    capsys: pytest.CaptureFixture[str],
    fails: Fails,
) -> None:
    main(["trace", "gpt3-125m", "--size", "layers=1", "-o", "step.json"])
    body = json.loads(Path("step.json").read_text()) | {"obstacle": "aten::item waits"}
    Path("step.json").write_text(json.dumps(body))
    options = "--core-mhz auto,1980,1605,1395 --mem-mhz auto --window 0.1s,0.5s"
    main(["measure", "step.json", "--gpu", "sim:h200#smooth", "-o", "s.db", *options.split()])
    assert "runs of the whole step at 4 clock pairs in s.db" in capsys.readouterr().out

    main(["plan", "s.db", "--max-slowdown", "5%", "-o", "plan.json"])
    shown = capsys.readouterr()
    assert shown.out.startswith("No saving is promised: energy changes by")
    assert "per kernel" not in shown.out
    assert "those do not say which pass draws what" in shown.err

    code, said = fails("plan s.db --granularity pass")
    assert "clocks that change within it cannot be planned" in said
    assert code == 2


def test_an_interrupt_ends_with_the_shells_code(
    monkeypatch: pytest.MonkeyPatch, fails: Fails
) -> None:
    def interrupt(_gpu: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("underclock.app.doctor.examine", interrupt)
    code, said = fails("doctor")

    assert code == 130
    assert "interrupted" in said
    assert "goes on" not in said

    monkeypatch.setattr("underclock.app.measuring.measure", lambda *_, **__: interrupt(None))
    code, said = fails("measure --gpu replay:sweep.csv -o s.db")
    assert code == 130
    assert "the same command goes on where it stopped" in said


def test_doctor_shows_the_simulated_gpu_and_how_far_to_trust_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["doctor"])
    assert "sim:rtx3080ti: RTX 3080 Ti (simulated)" in (said := capsys.readouterr().out)
    assert "uncalibrated" in said

    monkeypatch.setenv(READ_ONLY, "1")
    main(["doctor"])
    assert f"refused: {READ_ONLY} is set" in capsys.readouterr().out


_STUCK = """
import atexit, sys, time, types
import click
from underclock.app.main import main
from underclock.errors import StuckError

@click.command()
@click.option("--json", is_flag=True)
def stuck(json):
    error = StuckError("what was launched did not end", hint="compute it otherwise")
    error.add_note("launched were: a product")
    raise error

sys.modules["underclock.app.doctor"] = types.SimpleNamespace(command=stuck)
atexit.register(time.sleep, 600)  # as a driver waits for what it was given
main(["doctor", *sys.argv[1:]])
"""


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_where_the_gpu_does_not_come_back_the_command_does(options: tuple[str, ...]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _STUCK, *options],
        capture_output=True,
        check=False,
        timeout=60,
        text=True,
    )

    assert ended.returncode == StuckError.exit_code
    said = ended.stdout if options else ended.stderr
    for words in ("did not end", "launched were: a product", "compute it otherwise"):
        assert words in said


@pytest.mark.parametrize("name", cli.list_commands(click.Context(cli)))
def test_every_command_helps_with_an_example_and_ten_options_at_most(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main([name, "--help"])

    said = capsys.readouterr().out
    assert f"Example: underclock {name}" in " ".join(said.split())
    first = said.partition("\nOptions:")[2].partition("\nMore options:")[0]
    assert len(re.findall(r"^  -", first, re.MULTILINE)) <= 10


@pytest.mark.parametrize(
    ("arguments", "sentence", "hint"),
    [
        ("measure s.db --gpu sim:rtx3080ti -o n.db", "it is a samples file", "underclock plan"),
        ("trace gpt3-xl --size bach=8", "no parameter named 'bach'", "did you mean 'batch'?"),
        ("trace gpt3-xl --batch 8", "no such option '--batch'", "--size batch=8"),
        ("trace gpt3-xl --frob 8", "no such option '--frob'", "underclock trace --help"),
        ("measure step.json -o n.db", "missing option '--gpu'", "sim:NAME (rtx3080ti, a4000,"),
    ],
)
def test_a_slip_is_told_what_was_probably_meant(
    arguments: str, sentence: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    header = SampleSet(
        evidence=Evidence.MEASURED,
        gpu=GpuInfo(name="G"),
        step=Step(name="w", kernels=(Kernel(name="a"),)),
    )
    SampleFile.create(Path("s.db"), header).__exit__(None, None, None)
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    said = capsys.readouterr().err
    assert ended.value.code in {2, 4}
    assert sentence in said.splitlines()[0]
    assert hint in said.splitlines()[1]


@pytest.mark.parametrize("name", ["samples.db", "plan.json", "step.json"])
def test_what_no_demo_wrote_is_left_alone(name: str) -> None:
    Path("demo").mkdir()
    Path("demo", name).write_text("mine")
    with pytest.raises(UsageError):
        run_demo(Path("demo"))
    assert [(path.name, path.read_text()) for path in Path("demo").iterdir()] == [(name, "mine")]
