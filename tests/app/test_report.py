"""What report accepts, and a plan as a timeline that Perfetto opens."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from invented import LATENCY_PLAN
from judged_tables import judged
from underclock.app import main
from underclock.app.planning import plan
from underclock.app.report import render_report, write_report
from underclock.errors import DataError
from underclock.records import Kernel, Plan, Step, Validation
from underclock.records.latencies import LatencyTable
from underclock.store import save, write_document

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
        (("nothing.json",), "cannot read", "underclock tune"),
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


KERNELS = {
    "a": replace(LATENCY_PLAN.kernels["kernel1"], auto_core_mhz=1800),
    "b": replace(LATENCY_PLAN.kernels["kernel2"], auto_core_mhz=1700),
}
SCHEDULE = LATENCY_PLAN.schedule
assert SCHEDULE is not None
HELD: Plan = replace(
    LATENCY_PLAN,
    kernels=KERNELS,
    step=Step(
        name="gpt3-xl",
        kernels=(Kernel(name="a", count=6), Kernel(name="b", count=4)),
        order=(0, 1, 0, 1, 0, 1, 0, 1, 0, 0),
    ),
    schedule=replace(SCHEDULE, launch_j=(2.0,) * 10),
)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def events_of(plan: Plan) -> list[dict[str, Any]]:
    save(plan, "plan.json", force=True)
    main(["report", "plan.json", "-o", "step.trace.json", "--force"])
    events: list[dict[str, Any]] = json.loads(Path("step.trace.json").read_text())["traceEvents"]
    return events


def counters(events: list[dict[str, Any]], process: int) -> dict[str, list[tuple[float, float]]]:
    """Return the steps of each counter of a process: at which µs, which value."""
    found: dict[str, list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "C" and event["pid"] == process:
            found.setdefault(event["name"], []).append(
                (round(event["ts"], 6), *event["args"].values())
            )
    return found


def test_a_planned_step_is_a_timeline_with_clocks_power_and_joules() -> None:
    events = events_of(HELD)

    names = {each["pid"]: each["args"]["name"] for each in events if each["ph"] == "M"}
    assert names == {0: "auto (simulated)", 1: "plan: achievable (simulated)"}
    runs = [each for each in events if each["ph"] == "X" and each["pid"] == 1]
    assert [each["name"] for each in runs] == [HELD.step.kernels[at].name for at in HELD.step.order]
    planned = counters(events, 1)
    # Auto of the last three launches is told by what it comes to; memory is auto, and not known.
    assert planned["core clock (MHz)"] == [(0, 1680), (70e3, 1700), (80e3, 1800)]
    assert planned["power (W)"] == [(0, 200.0)]
    assert planned["energy (J)"][-1] == (100e3, 20.0)
    assert "memory clock (MHz)" not in planned
    auto = counters(events, 0)
    assert auto["core clock (MHz)"][:2] == [(0, 1800), (round(1e6 * 0.25 / 6, 6), 1700)]
    assert auto["energy (J)"][-1][1] == pytest.approx(160.0)


def test_a_plan_without_an_order_of_launches_has_no_timeline(
    fails: Callable[[str], tuple[int, str]],
) -> None:
    save(LATENCY_PLAN, "plan.json")
    code, said = fails("report plan.json -o x.trace.json")
    assert code == 4
    assert "has no order of launches" in said

    save(HELD, "held.json")
    code, said = fails("report held.json held.json -o x.trace.json")
    assert code == 4
    assert "of a plan alone" in said
