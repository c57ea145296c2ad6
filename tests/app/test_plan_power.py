"""`plan --objective time`, `--power-limit` and `--accounting`: what is planned, what refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from underclock import Campaign, measure, trace
from underclock.app import main
from underclock.hw.measurer import BRISK
from underclock.records import Accounting, Plan
from underclock.store import read_document

Fails = Callable[[str], tuple[int, str]]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("power") / "samples.db"
    measure(
        trace("gpt3-125m", layers=1),
        gpu="sim:rtx3080ti",
        to=path,
        campaign=Campaign(core_mhz=(1050, 1470, 1890, None), mem_mhz=(None,)),
        measuring=BRISK,
    )
    return path


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def planned(capsys: pytest.CaptureFixture[str], samples: Path, options: str) -> dict[str, Any]:
    main(["plan", str(samples), *options.split(), "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.slow
def test_the_fastest_step_within_a_limit(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(f"plan {samples} --objective time --power-limit 250 -o plan.json".split())
    said = " ".join(capsys.readouterr().out.split())
    made = read_document(Path("plan.json"), Plan)

    assert (made.objective, made.power_limit_w, made.max_slowdown) == ("time", 250.0, None)
    assert made.promise.time_change <= 0.0
    assert made.power_curve
    assert "the step as it runs under its power cap" in said


@pytest.mark.slow
def test_by_default_the_limit_is_the_gpus_own(
    samples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = planned(capsys, samples, "--objective time")

    assert made["power_limit_w"] is None
    assert made["power_curve"][-1]["limit_w"] == 350.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "accounting"),
    [
        ("", Accounting.STEP),
        ("--accounting step", Accounting.STEP),
        ("--accounting isolated", Accounting.ISOLATED),
        ("--raw", Accounting.ISOLATED),
    ],
)
def test_a_plan_says_what_its_numbers_are_sums_of(
    samples: Path, capsys: pytest.CaptureFixture[str], options: str, accounting: Accounting
) -> None:
    made = planned(capsys, samples, f"--max-slowdown 1% {options}")

    assert made["accounting"] == accounting
    assert made["closure"] is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--objective time --max-slowdown 1%", "--max-slowdown has no meaning for time"),
        ("--objective fastest", "'fastest' is not one of"),
        ("--accounting whole", "'whole' is not one of"),
        ("--power-limit 0", "a power limit of 0 W has no meaning"),
        ("--power-limit -250", "a power limit of -250 W has no meaning"),
        ("--power-limit nan", "a power limit of nan W has no meaning"),
        ("--power-limit inf", "a power limit of inf W has no meaning"),
        ("--power-limit much", "'much' is not a valid float"),
        ("--power-limit 99", "RTX 3080 Ti takes no power limit of 99 W"),
        ("--objective time --power-limit 400", "it takes 100 to 385 W"),
        ("--objective time --accounting isolated", "these costs are of kernels alone"),
        ("--power-limit 250 --raw", "these costs are of kernels alone"),
        ("--objective time --latency 6ms", "time has no time budget for switching to keep"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(
    samples: Path, fails: Fails, options: str, sentence: str
) -> None:
    code, error = fails(f"plan {samples} {options}")

    assert code == 2
    assert sentence in " ".join(error.split())


def test_a_table_of_kernels_has_no_fastest_step(fails: Fails) -> None:
    table = Path(__file__).parents[1] / "data/tables/two_kernels.csv"
    code, error = fails(f"plan {table} --objective time")

    assert code == 2
    assert "a power limit holds the step as it runs" in " ".join(error.split())
