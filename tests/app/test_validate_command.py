"""``underclock validate``: the verdict it ends with, and the code."""

import json
import math
import re
from pathlib import Path

import pytest

from invented import PLAN
from judged_tables import judged
from underclock.app import main
from underclock.app.validating import validate
from underclock.errors import UsageError
from underclock.records import Plan, Validation
from underclock.store import read_document

_HEADER = "gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w"
_ROWS = (("", 1.0, 100.0), ("900", 0.99, 60.0), ("1200", 0.98, 90.0))


def _table(saved_j: float = 0.0, noise: float = 1e-4) -> None:
    lines = [_HEADER]
    for row in range(4):
        wobble = 1.0 + noise * (-1.5, 0.5, 1.5, -0.5)[row]
        for core, time_s, energy_j in _ROWS:
            spent_j = (energy_j - (saved_j if core == "900" else 0.0)) * wobble
            lines.append(f"G,a,{core},,{time_s / wobble},{spent_j},{spent_j / time_s}")
    Path("sweep.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture(autouse=True)
def _plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _table()
    main(["plan", "sweep.csv", "-o", "plan.json"])
    capsys.readouterr()


@pytest.fixture(autouse=True)
def _on_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rows of the table be runs of the step."""

    def on_table(plan: Path, *, repeats: int, **_more: object) -> Validation:
        if repeats < 1 or plan.name != "plan.json":
            return validate(plan, gpu="nvml:0", repeats=repeats)
        made = read_document(plan, Plan)
        return judged(made, Path("sweep.csv"), repeats=repeats, tolerance=0.001)

    monkeypatch.setattr("underclock.app.validating.validate", on_table)


def _validate(*more: str) -> None:
    main(["validate", "plan.json", "--gpu", "sim:rtx3080ti", "--repeats", "4", *more])


def test_a_kept_promise_ends_well_and_says_so_last(capsys: pytest.CaptureFixture[str]) -> None:
    _validate("-o", "v.json")
    last = capsys.readouterr().out.splitlines()[-1]

    assert last.startswith("verdict: kept: energy -40.00 % (")
    assert re.search(r"against -40\.00 % ± 0\.0\d % promised", last)
    assert json.loads(Path("v.json").read_text())["verdict"] == "kept"


def test_a_broken_promise_ends_with_a_code_of_its_own_and_still_writes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _table(saved_j=-5.0)
    with pytest.raises(SystemExit) as ended:
        _validate("-o", "v.json")
    said = capsys.readouterr()

    assert ended.value.code == 7
    assert said.out.splitlines()[-1].startswith("verdict: not kept: energy -35.0")
    assert said.err == ""
    assert json.loads(Path("v.json").read_text())["verdict"] == "not kept"


def test_what_is_not_decided_has_a_code_and_says_what_would_decide_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _table(saved_j=2.0, noise=0.02)
    with pytest.raises(SystemExit) as ended:
        _validate()

    assert ended.value.code == 8
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("verdict: inconclusive: about ")
    assert "would decide" in last


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--tolerance", "1%"], "validate(..., tolerance=0.001)"),
        (["--repeats", "0"], "cannot repeat 0 times"),
    ],
)
def test_options_without_meaning_are_refused(
    more: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        _validate("-o", "v.json", *more)

    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
    assert not Path("v.json").exists()


@pytest.mark.parametrize("tolerance", [-0.01, math.nan, math.inf])
def test_a_tolerance_without_meaning_is_refused(tolerance: float) -> None:
    with pytest.raises(UsageError, match="has no meaning"):
        validate(PLAN, gpu="sim:rtx3080ti", tolerance=tolerance)


def test_a_plan_that_sets_nothing_is_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    Path("sweep.csv").write_text(f"{_HEADER}\nG,a,,,1.0,100,\nG,a,900,,1.1,90,\n")
    main(["plan", "sweep.csv", "-o", "auto.json"])
    assert "No saving was found" in capsys.readouterr().out

    # Not even the GPU is looked for.
    arguments = ["validate", "auto.json", "--gpu", "nvml:0"]
    main([*arguments, "-o", "v.json"])
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.startswith("nothing was run: the plan sets no clocks")
    assert "the plan is auto" in said.out
    assert "repeats would decide" not in said.out

    main([*arguments, "--json"])
    body = json.loads(capsys.readouterr().out)
    assert body == json.loads(Path("v.json").read_text())
    assert (body["verdict"], body["repeats"], body["energy_change"]["mean"]) == ("kept", 0, 0.0)

    main(["report", "auto.json", "v.json", "-o", "page.html"])
    assert Path("page.html").is_file()
