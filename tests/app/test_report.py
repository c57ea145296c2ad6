"""What `report` accepts: a plan, a validation of it, in either order; and what it says else."""

from pathlib import Path

import pytest

from judged_tables import judged
from underclock.app.planning import plan
from underclock.app.report import render_report, write_report
from underclock.errors import DataError
from underclock.records import Kernel, Plan, Step, Validation
from underclock.records.latencies import LatencyTable
from underclock.store import write_document

# Two kernels that can lend each other time: b gives 0.1 s, a takes it.
_TABLE = (Path(__file__).parents[1] / "data/tables/two_kernels.csv").read_text()
_STEP = Step(name="step", kernels=(Kernel(name="a"),), order=(0,))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "sweep.csv"
    path.write_text(_TABLE)
    return path


@pytest.fixture(scope="module")
def made(table: Path) -> Plan:
    return plan(table)


@pytest.fixture(scope="module")
def validated(made: Plan, table: Path) -> Validation:
    return judged(made, table, repeats=1)


@pytest.fixture(scope="module")
def folder(made: Plan, validated: Validation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a file of every kind."""
    found = tmp_path_factory.mktemp("files")
    write_document(found / "plan.json", made)
    write_document(found / "v.json", validated)
    write_document(found / "step.json", _STEP)
    write_document(found / "latency.json", LatencyTable.constant(0.006))
    (found / "samples.db").write_bytes(b"SQLite format 3\0")
    (found / "text.json").write_text("no JSON")
    (found / "list.json").write_text("[]")
    return found


@pytest.mark.untraced
def test_plan_and_validation_may_stand_in_either_order(
    made: Plan, validated: Validation, folder: Path, tmp_path: Path
) -> None:
    page = render_report(made, validated)

    assert "<!DOCTYPE html>" in page
    assert "Of 1 pairs" in page
    assert render_report(folder / "v.json", folder / "plan.json") == page
    assert render_report(validated, folder / "plan.json") == page
    to = write_report(folder / "plan.json", to=tmp_path / "r.html", validation=validated)
    assert to.read_text() == page


@pytest.mark.parametrize(
    ("names", "found", "hint"),
    [
        (("v.json",), "given was a validation", "report plan.json validation.json"),
        (("plan.json", "plan.json"), "given was a plan and a plan", "report plan.json"),
        (("v.json", "v.json"), "given was a validation and a validation", "report plan.json"),
        (("step.json",), "step.json is a step file", "underclock plan"),
        (("latency.json", "v.json"), "is a latencies file", "the plan that was made"),
        (("samples.db",), "samples.db holds samples", "samples.db -o plan.json"),
        (("nothing.json",), "cannot read", "underclock --help"),
        (("text.json",), "not a readable plan file", "underclock plan"),
        (("list.json",), "not a readable plan file", "underclock plan"),
    ],
)
def test_a_file_of_another_kind_is_named_with_what_to_give_instead(
    names: tuple[str, ...], found: str, hint: str, folder: Path, tmp_path: Path
) -> None:
    given = [folder / name for name in names]

    with pytest.raises(DataError) as caught:
        write_report(given[0], to=tmp_path / "r.html", validation=given[1] if given[1:] else None)

    assert found in str(caught.value)
    assert hint in caught.value.hint
    assert not (tmp_path / "r.html").exists()
