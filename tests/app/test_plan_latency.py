"""`plan --latency`: what this GPU can achieve, and what is refused."""

import contextlib
import io
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from underclock import Campaign, LatencyTable, measure, trace
from underclock.app import main, planning
from underclock.hw.measurer import BRISK
from underclock.records import (
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    SampleSet,
    Step,
    Window,
)
from underclock.store import SampleFile, read_samples, write_document

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("latency") / "samples.db"
    campaign = Campaign(core_mhz=(1050, 1470, None), mem_mhz=(None,))
    measure(
        trace("gpt3-125m", layers=1),
        gpu="sim:rtx3080ti",
        to=path,
        campaign=campaign,
        measuring=BRISK,
    )
    return path


@pytest.fixture(scope="module", autouse=True)
def _raw() -> Iterator[None]:
    """Take samples for the truth: fits would take the time of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "plan", partial(planning.plan, raw=True))
        yield


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as exc:
        return int(exc.code or 0)
    return 0


def planned(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    assert run("plan", *arguments, "--max-slowdown", "1%", "--json") == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture(scope="module")
def at_6ms(samples: Path) -> tuple[Path, str]:
    """Plan once for clocks that take 6 ms; return the plan's file, and what was said."""
    file, said = samples.with_name("plan.json"), io.StringIO()
    given = ("--latency", "6ms", "--max-switches", "4", "--max-slowdown", "1%")
    with contextlib.redirect_stdout(said):
        assert run("plan", samples, *given, "-o", file) == 0
    return file, said.getvalue()


def test_a_latency_adds_an_arm_a_schedule_and_a_curve(at_6ms: tuple[Path, str]) -> None:
    plan: dict[str, object] = json.loads(at_6ms[0].read_text())
    arms = {arm["name"]: arm["cost"] for arm in plan["arms"]}  # type: ignore[attr-defined]
    assert arms["achievable"]["energy_change"] <= arms["best_fixed"]["energy_change"] + 1e-9
    schedule = plan["schedule"]
    assert schedule["latency"] == "6ms, assumed"  # type: ignore[index]
    launches = sum(s["launches"] for s in schedule["segments"])  # type: ignore[index]
    assert launches == len(plan["step"]["order"])  # type: ignore[index]
    assert [p["latency_s"] for p in plan["latency_curve"]] == [1e-3, 6e-3, 0.15]  # type: ignore[attr-defined]
    own = next(p for p in plan["latency_curve"] if p["latency_s"] == 6e-3)  # type: ignore[attr-defined]
    assert own["energy_change"] == arms["achievable"]["energy_change"]  # one latency, one number
    frontier = [cost["energy_change"] for cost in plan["achievable_frontier"]]  # type: ignore[attr-defined]
    assert len(frontier) > 1
    assert arms["achievable"]["energy_change"] in frontier
    assert frontier == sorted(frontier, reverse=True)


def test_without_a_latency_what_is_reported_of_such_gpus_is_planned_for(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--max-slowdown", "1%", "-o", tmp_path / "plan.json")
    assert run("plan", samples, *given) == 0
    said = " ".join(capsys.readouterr().out.split())
    plan: dict[str, object] = json.loads((tmp_path / "plan.json").read_text())
    assert plan["latency_range_s"] == [6e-3, 0.15]
    ends = {point["latency_s"]: point["energy_change"] for point in plan["latency_curve"]}  # type: ignore[attr-defined]
    arms = {arm["name"]: arm["cost"] for arm in plan["arms"]}  # type: ignore[attr-defined]
    assert ends[0.15] == arms["achievable"]["energy_change"]
    assert ends[6e-3] < ends[0.15]
    assert said.startswith("No saving was found: clocks stay as they are. Takes no more time")
    assert f"if clocks take 150 ms to change; saves {-100 * ends[6e-3]:.1f} % if 6 ms." in said
    assert plan["schedule"]["latencies"]["switches"][0]["delay_s"] == 0.15  # type: ignore[index]


def test_python_plans_by_default_what_the_command_line_does(
    samples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("plan", samples, "--json") == 0
    made = planning.plan(samples)
    assert json.loads(capsys.readouterr().out) == json.loads(msgspec.json.encode(made))
    assert (made.max_slowdown, made.chosen) == (0.01, "achievable")


def test_measured_latencies_are_looked_for_beside_the_samples(
    samples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    beside = samples.with_suffix(".latency.json")
    assert run("plan", samples, "--latency", "measured") == 2
    assert f"underclock latency --gpu GPU -o {beside}" in capsys.readouterr().err
    assumed, gpu = LatencyTable.constant(5e-3), read_samples(samples).gpu
    table = msgspec.structs.replace(assumed, evidence=Evidence.SIMULATED, gpu=gpu)
    write_document(beside, table)
    plan = planned(capsys, samples, "--latency", "measured")
    assert plan["schedule"]["latency"] == "as simulated"  # type: ignore[index]
    named = planned(capsys, samples, "--latency", beside)
    assert named["schedule"]["latency"] == "of samples.latency.json, simulated"  # type: ignore[index]
    assert named["schedule"]["segments"] == plan["schedule"]["segments"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ("--latency soon", 2, "soon"),
        ("--latency -5ms", 2, "-5ms"),
        ("--latency free --max-switches 3", 2, "limits on switching need a latency"),
        ("--latency 1e4s", 2, "no GPU takes 1e4s to change its clocks"),
        ("--latency 5ms --max-switches -3", 2, "max_switches must not be negative"),
        ("--latency 5ms --objective edp", 2, "no time budget"),
    ],
)
def test_what_means_nothing_is_a_sentence(
    arguments: str, code: int, sentence: str, samples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("plan", samples, *arguments.split()) == code
    assert sentence in capsys.readouterr().err


def test_latencies_of_another_gpu_are_refused(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assumed = LatencyTable.constant(5e-3)
    other = LatencyTable(evidence=None, gpu=GpuInfo(name="H100"), switches=assumed.switches)
    path = tmp_path / "other.json"
    write_document(path, other)
    assert run("plan", samples, "--latency", path) == 4
    assert "those of H100" in capsys.readouterr().err


def test_a_budget_that_no_schedule_meets_is_refused_with_the_bound_and_the_fastest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "samples.db"
    header = SampleSet(
        evidence=Evidence.MEASURED,
        gpu=GpuInfo(name="G"),
        step=Step(name="w", kernels=(Kernel(name="slow"), Kernel(name="fast")), order=(0, 1)),
    )
    with SampleFile.create(table, header) as file:
        for kernel, core_mhz, time_s in (
            ("slow", None, 1.0),
            ("slow", 1500, 0.9),
            ("slow", 1200, 1.2),
            ("fast", None, 1.0),
            ("fast", 1500, 1.2),
            ("fast", 1200, 0.9),
        ):
            clocks = Clocks(core_mhz=core_mhz)
            file.append(Window(kernel=kernel, asked=clocks, time_s=time_s, energy_j=100.0))
    plan = tmp_path / "plan.json"
    given = ("--latency", "10s", "--max-slowdown", "-5%", "-o", plan)

    assert run("plan", table, *given) == 6
    said = " ".join(capsys.readouterr().err.split())
    assert "no schedule changes time by -5.00 % or less where clocks take 10s, assumed" in said
    assert "if clocks changed at once, a bound, +0.00 % energy at -10.00 % time" in said
    assert "the fastest changes it by +0.00 %: raise --max-slowdown" in said
    assert not plan.exists()
