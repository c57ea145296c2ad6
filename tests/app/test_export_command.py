"""`underclock export`: a plan as a timeline and a table, and what has which form."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from invented import LATENCY_PLAN
from made_up_samples import made_grid, made_sample, made_set
from small_jobs import profile, small_job
from underclock import Clocks, Evidence, Kernel, Plan
from underclock.app import main
from underclock.store import read_samples, save
from underclock.workloads import workload

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
FREE: Plan = replace(HELD, schedule=None, arms=HELD.arms[:-1], latency_curve=(), proposals=())


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def exported(plan: Plan, form: str) -> str:
    save(plan, "plan.json", force=True)
    main(["export", "plan.json", "--to", form, "-o", "out", "--force"])
    return Path("out").read_text()


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
    events = json.loads(exported(HELD, "chrome"))["traceEvents"]

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


def test_what_is_not_known_of_every_launch_has_no_counter() -> None:
    vague = replace(
        HELD, schedule=SCHEDULE, kernels={**KERNELS, "b": LATENCY_PLAN.kernels["kernel2"]}
    )
    events = json.loads(exported(vague, "chrome"))["traceEvents"]

    assert counters(events, 1) == {}
    assert counters(events, 0).keys() == {"power (W)", "energy (J)"}
    assert all("energy_j" not in e["args"] for e in events if e["ph"] == "X" and e["pid"] == 1)


def test_a_plan_with_free_switching_is_a_timeline_of_its_choices() -> None:
    events = json.loads(exported(FREE, "chrome"))["traceEvents"]

    runs = [each for each in events if each["ph"] == "X" and each["pid"] == 1]
    assert sum(each["dur"] for each in runs) == pytest.approx(1e6 * 2 * 0.25 * 1.001)
    assert runs[0]["args"]["clocks"] == str(Clocks(core_mhz=1680))


@pytest.mark.parametrize("plan", [HELD, FREE])
def test_a_plan_is_a_long_table_that_nobody_takes_for_samples(
    plan: Plan, fails: Callable[[str], tuple[int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = list(csv.DictReader(exported(plan, "csv").splitlines()))
    capsys.readouterr()

    assert {each["evidence"] for each in rows} == {"planned on simulated samples"}
    keys = [(each["arm"], each["kernel"], each["core_mhz"], each["mem_mhz"]) for each in rows]
    assert len(keys) == len(set(keys))
    for arm in {each["arm"] for each in rows}:
        ours = [each for each in rows if each["arm"] == arm]
        assert sum(int(each["count"]) for each in ours) == 10
        assert all(float(each["energy_j"]) > 0 for each in ours)
    Path("out").rename("plan.csv")
    code, said = fails("plan plan.csv")
    assert code == 4
    assert "nobody measured it" in said


def test_samples_in_company_are_counted_and_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = made_sample("", None, None)
    auto = made_sample("a", None, None)
    save(made_set([auto, *made_grid("a")], in_situ=[whole]), "s.db")

    main(["export", "s.db", "--to", "t4", "-o", "out.json", "--json"])

    said = capsys.readouterr()
    assert "1 windows of the whole step" in said.err
    assert json.loads(said.out) == {"exported": "out.json", "format": "t4"}
    main(["breakdown", "out.json", "--json"])
    assert json.loads(capsys.readouterr().out)["evidence"] == "replayed"
    main(["measure", "--gpu", "replay:out.json", "--max-samples", "3", "-o", "few.db"])
    assert len(read_samples("few.db").samples) == 3


def test_a_stage_s_samples_are_zeus_profile(capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(
        f"G,{kernel},{core},,{1500 / (core or 1500)},{60 + (core or 1500) / 30}\n"
        for kernel in ("x/forward", "x/backward")
        for core in (0, 900, 1200, 1500)
    ).replace(",0,,", ",,,")
    Path("s.csv").write_text("gpu,kernel,core_mhz,mem_mhz,time_s,energy_j\n" + rows)

    main(["export", "s.csv", "--to", "zeus", "-o", "profile.csv"])

    assert "2 rows are left out" in capsys.readouterr().err
    main(
        [
            "job",
            "1f1b",
            "--stages",
            "1",
            "--microbatches",
            "2",
            "--profile",
            "profile.csv",
            "-o",
            "job.json",
        ]
    )
    main(["export", "job.json", "--to", "zeus", "-o", "again.csv"])
    assert Path("again.csv").read_text() == Path("profile.csv").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("plan.json --to t4", 2, "plan.json is a plan, which has no form t4"),
        ("step.json --to csv", 2, "step.json is a step, which has no form csv"),
        ("table.json --to chrome", 4, "has no order of launches"),
        ("lacking.json --to csv", 4, "cannot read lacking.json"),
        ("job.json --to zeus", 4, "what stage 0 forward draws is not known"),
    ],
)
def test_what_has_no_such_form_is_refused(
    arguments: str, code: int, message: str, fails: Callable[[str], tuple[int, str]]
) -> None:
    save(HELD, "plan.json")
    save(replace(LATENCY_PLAN, evidence=Evidence.REPLAYED), "table.json")
    save(workload("gpt3-xl"), "step.json")
    job = small_job(stages=1, microbatches=1)
    unknown = {
        name: replace(each, rows=tuple(replace(row, energy_j=None) for row in each.rows))
        for name, each in job.profiles.items()
    }
    save(replace(job, profiles={**unknown, "other": profile(1.0)}), "job.json")

    ended, said = fails(f"export {arguments} -o out")

    assert ended == code
    assert message in said
