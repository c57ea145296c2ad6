"""`underclock refine`: a plan of another unit, measured again on this one."""

import json
from pathlib import Path

import pytest

from underclock import Goal, plan
from underclock.app import main
from underclock.records import Plan
from underclock.store import SampleFile, read_document, write_document

_HEADER = "gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w"
_CLOCKS = (600, 900, 1200, 1500, 1800, 0)


def _table(path: Path, hunger: float) -> Path:
    """Write a sweep of one unit; units differ in what their cores draw."""
    rows = [_HEADER]
    for kernel, core_s, fixed_s in (("product", 1e-3, 1e-4), ("copy", 1e-4, 1e-3)):
        for mhz in _CLOCKS:
            ghz = (mhz or 1850) / 1000
            time_s = core_s / ghz + fixed_s
            energy_j = time_s * (80 + hunger * ghz**3)
            rows.append(f"G,{kernel},{mhz or ''},,{time_s},{energy_j},")
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture
def given_plan(tmp_path: Path) -> Path:
    """Return a plan made on one unit; another is here."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    table = _table(elsewhere / "unit0.csv", hunger=30.0)
    write_document(elsewhere / "plan.json", plan(table, Goal(max_slowdown=0.02)))
    for unit, hunger in (("one", 33.0), ("two", 36.0)):
        _table(elsewhere / f"{unit}.csv", hunger)
    return elsewhere / "plan.json"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)


def run(*arguments: object) -> int:
    try:
        main(["refine", *map(str, arguments)])
    except SystemExit as exc:
        return int(exc.code or 0)
    return 0


def test_a_refined_plan_beside_its_samples_and_what_changed(
    given_plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, one = Path("mine.json"), "replay:../elsewhere/one.csv"
    assert run(given_plan, "--gpu", one, "-o", out) == 0
    said = capsys.readouterr()

    old, new = read_document(given_plan, Plan), read_document(out, Plan)
    samples = SampleFile.read(Path("mine.samples.db"))
    assert new.max_slowdown == old.max_slowdown == 0.02
    taken = len(samples.samples) + len(samples.in_situ)
    assert f"refined with {taken} samples: energy -" in said.out
    assert "the plan given promised -" in said.out
    assert "best fixed clock" in said.out

    assert run(given_plan, "--gpu", one, "-o", out) == 2
    assert "will not overwrite mine.json" in capsys.readouterr().err

    # Nothing is measured twice, and the samples may lie elsewhere.
    Path("mine.samples.db").rename("there.db")
    more = ("-o", out, "--samples", "there.db", "--force", "--json")
    assert run(given_plan, "--gpu", one, *more) == 0
    assert json.loads(capsys.readouterr().out)["arms"] == json.loads(out.read_text())["arms"]
    assert SampleFile.read(Path("there.db")) == samples
    assert not Path("mine.samples.db").exists()

    # Samples of one unit are not taken for another's.
    assert run(given_plan, "--gpu", "replay:../elsewhere/two.csv", *more[:-1]) == 2
    assert "there.db holds samples of another" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("plan_file", "more", "code", "sentence"),
    [
        ("unit0.csv", "--gpu sim:rtx3080ti#3 -o mine.json", 4, "is not a readable plan file"),
        ("nowhere.json", "--gpu sim:rtx3080ti#3 -o mine.json", 4, "nowhere.json"),
        ("plan.json", "--gpu sim:a100 -o mine.json", 4, "the plan is for"),
        ("plan.json", "--gpu sim:rtx3080ti#three -o mine.json", 2, "three"),
        ("plan.json", "--gpu replay:nowhere.csv -o mine.json", 4, "cannot read nowhere.csv"),
        ("plan.json", "--gpu sim:rtx3080ti#3 -o -", 2, "the samples need a file"),
        ("plan.json", "--gpu sim:rtx3080ti#3", 2, "missing option '-o'"),
        ("plan.json", "-o mine.json", 2, "missing option '--gpu'"),
    ],
)
def test_what_cannot_be_refined(
    given_plan: Path,
    plan_file: str,
    more: str,
    code: int,
    sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(given_plan.with_name(plan_file), *more.split()) == code
    assert sentence in capsys.readouterr().err
    assert list(Path().iterdir()) == []


def test_the_goal_of_a_plan_plans_the_same_again(given_plan: Path) -> None:
    given = read_document(given_plan, Plan)
    assert plan(given_plan.with_name("unit0.csv"), Goal.of(given)) == given
