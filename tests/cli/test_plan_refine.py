"""`plan --refine`: a plan of another unit, measured again on this one."""

import json
from pathlib import Path

import pytest

from underclock import Campaign, Goal, measure, plan, trace
from underclock.cli import main
from underclock.hw.measurer import BRISK
from underclock.records import Granularity, Plan
from underclock.store import SampleFile, read_document, write_document


@pytest.fixture(scope="module")
def given_plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unit0")
    campaign = Campaign(core_mhz=(900, 1800, None), mem_mhz=(5001, 9251, None))
    step = trace("gpt3-125m", layers=1, batch=4)
    samples = measure(
        step, gpu="sim:rtx3080ti", to=folder / "samples.db", campaign=campaign, measuring=BRISK
    )
    write_document(folder / "plan.json", plan(samples, Goal(max_slowdown=0.02)))
    return folder / "plan.json"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: object) -> int:
    try:
        main(["plan", *map(str, arguments)])
    except SystemExit as exc:
        return int(exc.code or 0)
    return 0


def test_a_refined_plan_beside_its_samples_and_what_changed(
    given_plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path("refined.json")
    assert run(given_plan, "--refine", "sim:rtx3080ti#3", "-o", out) == 0
    said = capsys.readouterr()

    old, new = read_document(given_plan, Plan), read_document(out, Plan)
    samples = SampleFile.read(Path("refined.samples.db"))
    assert new.max_slowdown == old.max_slowdown == 0.02
    assert new.gpu.name == old.gpu.name
    assert new.gpu.is_another_board(old.gpu)
    taken = len(samples.samples) + len(samples.in_situ)
    assert f"refined with {taken} samples: energy -" in said.out
    assert "the plan given promised -" in said.out
    assert "best fixed clock" in said.out
    assert "sim:rtx3080ti#3" in said.err

    assert run(given_plan, "--refine", "sim:rtx3080ti#3", "-o", out) == 2
    assert "will not overwrite refined.json" in capsys.readouterr().err
    assert run(given_plan, "--refine", "sim:rtx3080ti#3", "-o", out, "--force", "--json") == 0
    assert json.loads(capsys.readouterr().out)["arms"] == json.loads(out.read_text())["arms"]
    assert SampleFile.read(Path("refined.samples.db")) == samples


def test_options_outdo_the_plan_given(given_plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = (given_plan, "--refine", "sim:rtx3080ti#3", "--json")
    assert run(*common, "--max-slowdown", "5%", "--granularity", "pass", "--min-dwell", "1ms") == 2
    assert "limits on switching need a latency" in capsys.readouterr().err
    assert not Path("refined.samples.db").exists()
    args = (
        "--max-slowdown",
        "5%",
        "--granularity",
        "pass",
        "--latency",
        "6ms",
        "--max-switches",
        2,
    )
    assert run(*common, *args) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["max_slowdown"] == 0.05
    assert found["granularity"] == Granularity.PASS
    assert found["schedule"]["latency"] == "6ms, assumed"
    assert Path("refined.samples.db").is_file()

    assert run(*common, "--objective", "edp") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["objective"] == "edp"
    assert found["max_slowdown"] is None

    assert run(*common, "--objective", "edp", "--max-slowdown", "1%") == 2
    assert "no meaning for edp" in capsys.readouterr().err


def test_samples_of_one_unit_are_not_taken_for_anothers(
    given_plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(given_plan, "--refine", "sim:rtx3080ti#3") == 0
    assert run(given_plan, "--refine", "sim:rtx3080ti#4") == 2
    assert "refined.samples.db holds samples of another GPU" in capsys.readouterr().err


def test_what_cannot_be_refined(given_plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = given_plan.with_name("samples.db")
    assert run(samples, "--refine", "sim:rtx3080ti#3") == 4
    assert "is not a readable plan file" in capsys.readouterr().err
    assert run("nowhere.json", "--refine", "sim:rtx3080ti#3") == 4
    assert "cannot read nowhere.json" in capsys.readouterr().err
    assert run(given_plan, "--refine", "sim:a100") == 4
    assert "the plan is for" in capsys.readouterr().err
    assert run(given_plan, "--refine", "sim:rtx3080ti#three") == 2
    assert "'three'" in capsys.readouterr().err
    assert run(given_plan, "--refine", "replay:nowhere.csv") == 4
    assert list(Path().iterdir()) == []
