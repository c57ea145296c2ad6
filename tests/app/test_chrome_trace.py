"""`underclock report -o FILE.trace.json`: a plan as a timeline that Perfetto opens."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from invented import LATENCY_PLAN
from underclock import Kernel, Plan
from underclock.app import main
from underclock.store import save

KERNELS = {
    "a": replace(LATENCY_PLAN.kernels["kernel1"], auto_core_mhz=1800),
    "b": replace(LATENCY_PLAN.kernels["kernel2"], auto_core_mhz=1700),
}
SCHEDULE = LATENCY_PLAN.schedule
assert SCHEDULE is not None
HELD: Plan = replace(
    LATENCY_PLAN,
    kernels=KERNELS,
    runs=(Kernel(name="a", count=6), Kernel(name="b", count=4)),
    order=(0, 1, 0, 1, 0, 1, 0, 1, 0, 0),
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
    assert [each["name"] for each in runs] == [HELD.runs[at].name for at in HELD.order]
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
