"""``underclock watch`` as a user types it."""

import csv
import json
from pathlib import Path

import pytest

from underclock.app import main
from underclock.testing import simulated_driver


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def step(capsys: pytest.CaptureFixture[str]) -> str:
    main(["trace", "gpt3-125m", "--size", "layers=1", "-o", "step.json"])
    capsys.readouterr()
    return "step.json"


def test_a_table_for_people_and_a_file_of_every_reading(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["watch", "--gpu", "sim:rtx3080ti", "--for", "200ms", "-o", "clocks.csv"])
    said = capsys.readouterr()

    assert "RTX 3080 Ti, 200 readings: simulated" in said.out
    assert "throttle reasons seen: 0x1" in said.out
    assert "a step took" not in said.out
    assert max(len(line) for line in said.out.splitlines()) <= 80
    with Path("clocks.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 200
    assert {row["core_mhz"] for row in rows} == {"210"}


def test_a_step_runs_meanwhile_and_its_kernels_are_named(
    step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["watch", step, "--gpu", "sim:rtx3080ti", "--for", "500ms", "-o", "clocks.csv"])
    said = capsys.readouterr()

    assert "a step took" in said.out
    known = {kernel["name"] for kernel in json.loads(Path(step).read_text())["kernels"]}
    with Path("clocks.csv").open(newline="") as file:
        seen = {row["kernel"] for row in csv.DictReader(file)}
    assert seen
    assert seen <= known
    for name in seen:
        assert name in said.out


def test_machines_get_json_and_need_no_file(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["watch", step, "--gpu", "sim:rtx3080ti", "--for", "300ms", "--json"])
    found = json.loads(capsys.readouterr().out)

    assert found["evidence"] == "simulated"
    assert found["entries"] == pytest.approx(300, abs=1)
    assert found["core_mhz"][0] <= found["core_mhz"][1] <= found["core_mhz"][2]
    assert found["step_s"] > 0
    assert sum(kernel["entries"] for kernel in found["kernels"]) == found["entries"]
    assert [path.name for path in Path().iterdir()] == [step]


def test_force_replaces(capsys: pytest.CaptureFixture[str]) -> None:
    Path("clocks.csv").write_text("at_s,core_mhz\n")
    main(["watch", "--gpu", "sim:a100", "--for", "10ms", "-o", "clocks.csv", "--force"])

    assert "A100" in capsys.readouterr().out
    assert Path("clocks.csv").read_text().startswith("at_s,core_mhz")


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ("watch", 2, "missing option '--gpu'"),
        ("watch --gpu cpu", 2, "unknown GPU 'cpu'"),
        ("watch --gpu sim:a100x", 2, "no simulated GPU"),
        ("watch --gpu replay:sweep.csv", 2, "cannot show what its clocks do"),
        ("watch --gpu nvml:x", 2, "cannot read 'x' as a GPU's number"),
        ("watch --gpu nvml:1", 2, "there is no GPU 1"),
        ("watch --gpu sim:a100 --for 0s", 2, "cannot log for 0 s"),
        ("watch --gpu sim:a100 --for ever", 2, "as a duration"),
        ("watch --gpu sim:a100 -o there.json", 2, "will not overwrite there.json"),
        ("watch --gpu sim:a100 -o nowhere/l.csv", 2, "there is no folder nowhere"),
        ("watch there.json --gpu sim:a100", 4, "not a readable step file"),
        ("watch nowhere.json --gpu sim:a100", 4, "cannot read nowhere.json"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_a_code(
    arguments: str, code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("there.json").write_text("{}")
    with simulated_driver("rtx3080ti"), pytest.raises(SystemExit) as ended:
        main(arguments.split())
    said = capsys.readouterr()

    assert ended.value.code == code
    assert sentence in said.err
    assert said.out == ""
    assert [path.name for path in Path().iterdir()] == ["there.json"]


def test_a_real_gpu_refuses_a_step_that_was_never_traced(
    step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with simulated_driver("rtx3080ti"), pytest.raises(SystemExit) as ended:
        main(["watch", step, "--gpu", "nvml:0", "--for", "100ms"])

    assert ended.value.code == 2
    assert "a step that was traced on one" in capsys.readouterr().err
