"""A run's log: in a few numbers, in the ledger, and for Prometheus."""

import builtins
import fcntl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from free_time import free_s
from small_training import plan
from underclock.errors import NotSupportedError
from underclock.hw.base import SystemClock
from underclock.ledger import LedgerGpu, LedgerRun, SavedAgainst, hashed, read_runs
from underclock.records import Arm, Cost, Evidence, Plan, Status, Strategy
from underclock.records.runs import ArmLine, AskLine, EventLine, Line, RunLine, StepLine
from underclock.runtime.controller.booking import Booking, RunTally
from underclock.runtime.controller.log import (
    Log,
    LogReader,
    Metrics,
    held_before,
    live_line,
    live_scalars,
)
from underclock.runtime.machine.timetable import State


def _shown_step(number: int, energy_j: float | None) -> StepLine:
    return StepLine(
        gpu=0,
        step=number,
        began_s=0.0,
        time_s=0.2,
        state="clocks follow the plan",
        arm="plan",
        planned=4,
        asked=4,
        hits=3,
        energy_j=energy_j,
        core_mhz=1500.0,
        overruled=("hot",),
    )


def test_a_line_says_how_the_last_steps_went() -> None:
    assert live_line(()) == ""
    assert live_line([_shown_step(6, 20.0), _shown_step(7, None)]) == (
        "step 7, 200 ms, 20 J, 1500 MHz, 75% within 1 ms, plan: clocks follow the plan"
    )


def test_a_log_is_read_line_by_line_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    reader = LogReader(path)
    assert reader.new() == ()

    log = Log(path)
    log.write(_shown_step(6, 20.0))
    log.flush()
    with path.open("ab") as file:
        file.write(b'no line\n{"line":"st')  # a full disk's, and one that is written now
    assert reader.new() == (_shown_step(6, 20.0),)
    assert reader.new() == ()
    with path.open("ab") as file:
        file.write(b'ep"}\n')
    log.write(_shown_step(7, None))
    log.close()
    assert reader.new() == (_shown_step(7, None),)


def test_a_run_begins_with_what_the_last_of_the_same_log_learned(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    assert held_before(path, ("A40",), "train") == ()
    run = msgspec.structs.replace(_run(arms="learned"), gpus=("A40",), workload="train")
    arm = msgspec.structs.replace(_compared("learned", -0.03), held_mhz=(1200, 1740))
    path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in (run, arm)))
    assert held_before(path, ("A40",), "train") == (1200, 1740)
    assert held_before(path, ("A100",), "train") == ()
    assert held_before(path, ("A40",), "finetune") == ()


def test_scalars_are_of_one_gpu_and_only_what_is_known() -> None:
    lines = [_shown_step(6, 20.0), _shown_step(7, None), _steps("plan", 1, None, gpu=1)]

    assert live_scalars([]) == {}
    assert live_scalars(lines) == {
        "underclock/step_seconds": 0.2,
        "underclock/step_joules": 20.0,
        "underclock/core_megahertz": 1500.0,
        "underclock/follows_plan": 1.0,
    }
    assert live_scalars(lines, gpu=1) == {
        "underclock/step_seconds": 0.1,
        "underclock/follows_plan": 1.0,
    }


_GPUS = (("GPU-0", "H200"), ("GPU-1", "H200"))


def _promising(
    interval: tuple[float, float] | None = (-0.12, -0.08), evidence: Evidence = Evidence.MEASURED
) -> Plan:
    cost = Cost(time_s=0.101, energy_j=27.0, time_change=0.01, energy_change=-0.1)
    arm = msgspec.structs.replace(
        Arm(Strategy.ACHIEVABLE, cost, Status.OPTIMAL), energy_interval=interval
    )
    made = plan()
    return msgspec.structs.replace(made, arms=(made.arms[0], arm), evidence=evidence)


def _run(*, arms: str = "", dry: bool = False) -> RunLine:
    return RunLine(
        evidence=Evidence.MEASURED,
        gpus=("H200", "H200"),
        workload="small",
        marks=6,
        dry=dry,
        began_s=0.0,
        energy_change=-0.1,
        time_change=0.01,
        arms=arms,
    )


def _steps(
    arm: str, count: int, energy_j: float | None, *, gpu: int = 0, state: str = State.FOLLOWING
) -> StepLine:
    return StepLine(
        gpu=gpu,
        step=0,
        steps=count,
        began_s=0.0,
        time_s=0.1,
        state=state,
        arm=arm,
        planned=2,
        asked=2,
        hits=None,
        energy_j=energy_j,
    )


def _compared(arm: str, change: float | None, *, verdict: str = "", gpu: int = 0) -> ArmLine:
    return ArmLine(
        gpu=gpu,
        arm=arm,
        rounds=4,
        steps=100,
        time_change=0.01,
        time_interval=(0.0, 0.02),
        energy_change=change,
        energy_interval=None if change is None else (change - 0.05, change + 0.05),
        verdict=verdict,
    )


def _run_of(lines: list[Line], made: Plan | None = None) -> LedgerRun | None:
    tally = RunTally(made or _promising(), _GPUS, 0, {})
    for line in lines:
        tally.add(line)
    return tally.run(60.0)


def _booked(lines: list[Line], made: Plan | None = None) -> tuple[LedgerGpu, ...]:
    run = _run_of(lines, made)
    assert run is not None
    return run.gpus


def test_blocks_at_auto_tell_what_steps_under_the_plan_would_have_drawn() -> None:
    lines: list[Line] = [
        _run(arms="auto,plan"),
        _steps("auto", 10, 30.0),
        _steps("plan", 10, 24.0),
        _steps("plan", 5, None),
        _compared("plan", -0.2),
        _steps("auto", 10, 30.0, gpu=1),
        _steps("plan", 10, 33.0, gpu=1),
        _compared("plan", 0.1, gpu=1, verdict="not kept"),
    ]
    first, second = _booked(lines)

    assert first.energy_j == 540.0
    assert first.steps == 25
    assert first.auto_j == pytest.approx(300.0 + 240.0 / 0.8)
    assert first.auto_interval_j == pytest.approx((300.0 + 240.0 / 0.85, 300.0 + 240.0 / 0.75))
    assert first.untold == ""
    assert second.auto_j == pytest.approx(600.0)  # it drew more, and that counts
    assert (first.rank, second.rank) == (0, 1)
    assert first.gpu != second.gpu
    run = _run_of(lines)
    assert run is not None
    assert run.against is SavedAgainst.BLOCKS


def test_a_promise_is_of_steps_that_followed_the_plan_throughout() -> None:
    lines: list[Line] = [
        _run(),
        _steps("learning", 10, 30.0, state=State.HELD),
        _steps("plan", 10, 27.0),
        _steps("plan", 10, 27.0, state=State.LOST),
        _steps("reduced", 10, 27.0),
    ]
    run = _run_of(lines)
    assert run is not None
    (entry, _) = run.gpus

    assert entry.energy_j == 570.0
    assert (entry.steps, entry.untold_j) == (40, 540.0)
    assert entry.auto_j == pytest.approx(300.0 + 270.0 / 0.9)
    assert entry.auto_interval_j == pytest.approx((300.0 + 270.0 / 0.92, 300.0 + 270.0 / 0.88))
    assert run.against is SavedAgainst.PROMISE


@pytest.mark.parametrize(
    ("time_s", "energy_j", "told"),
    [
        (0.101, 27.0, True),
        (0.11, 25.0, True),
        (0.12, 27.0, False),
        (0.101, 30.0, False),
        (0.697, 87.5, False),  # 5.54 % of it were booked for a plan of 590 µs and 174 mJ
    ],
)
def test_a_promise_is_not_told_of_steps_that_are_not_the_plans(
    time_s: float, energy_j: float, *, told: bool
) -> None:
    steps = msgspec.structs.replace(_steps("plan", 10, energy_j), time_s=time_s)
    (entry, _) = _booked([_run(), steps])

    assert (entry.auto_j is not None) == told
    assert entry.energy_j == pytest.approx(10 * energy_j)
    if not told:
        assert entry.untold == (
            f"cannot tell, because steps took {1e3 * time_s:.3g} ms and {energy_j:.3g} J, and the "
            "plan is of one of 101 ms and 27 J: --compare auto,plan measures it"
        )


@pytest.mark.parametrize(
    ("lines", "made", "why"),
    [
        ([_run()], None, "no step was seen"),
        ([_run(), _steps("plan", 3, None)], None, "what steps drew is not known"),
        ([_run(), _steps("plan", 3, 1.0)], _promising(None), "promise has no interval"),
        ([_run(), _steps("reduced", 3, 1.0)], None, "clocks were neither auto nor as planned"),
        (
            [_run(), _steps("plan", 3, 1.0)],
            msgspec.structs.replace(
                _promising(), gpu=msgspec.structs.replace(plan().gpu, uuid="GPU-7")
            ),
            "made on another board",
        ),
        ([_run(arms="auto,plan"), _steps("plan", 3, 1.0)], None, "no round at auto and under"),
        (
            [_run(arms="auto,plan"), _steps("plan", 3, 1.0), _compared("plan", None)],
            None,
            "what steps drew is not known",
        ),
        (
            [
                _run(arms="auto,plan"),
                _steps("plan", 3, 1.0),
                _compared("plan", -0.5, verdict="cannot tell, because 2 rounds are too few"),
            ],
            None,
            "2 rounds are too few",
        ),
    ],
)
def test_where_nobody_can_tell_it_says_why(lines: list[Line], made: Plan | None, why: str) -> None:
    for entry in _booked(lines, made):
        assert entry.auto_j is None
        assert entry.untold.startswith("cannot tell, because ")
    assert why in _booked(lines, made)[0].untold


def test_it_is_written_as_it_goes_on_and_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    booking = Booking(path, RunTally(_promising(), _GPUS, 0, {}), every_s=0.005)
    booking.write(_run())
    booking.write(_steps("plan", 10, 27.0))
    while not read_runs(path)[0]:
        pass
    booking.write(_steps("plan", 10, 27.0))
    booking.close()

    ((run,), _) = read_runs(path)
    assert [entry.energy_j for entry in run.gpus] == [540.0, None]


def test_a_ledger_that_others_keep_busy_keeps_no_step_waiting(tmp_path: Path) -> None:
    path, clock = tmp_path / "ledger.jsonl", SystemClock()
    path.touch()
    booking = Booking(path, RunTally(_promising(), _GPUS, 0, {}), every_s=0.005)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        booking.write(_run())
        clock.sleep_s(0.1)  # by now it waits for the other
        began_s = free_s()
        for _ in range(1000):
            booking.write(_steps("plan", 1, 27.0))
        took_s = free_s() - began_s
    booking.close()

    assert took_s < 1.0  # of the 10 that it would wait for the file
    assert read_runs(path)[0][0].gpus[0].steps == 1000


def test_what_cannot_be_written_is_told_once_and_ends_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    tally = RunTally(_promising(), _GPUS, 0, {})
    booking = Booking(tmp_path / "file" / "ledger.jsonl", tally, every_s=0.005)
    booking.write(_run())
    booking.close()
    booking.close()

    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("underclock: this run is not in the ledger: cannot use the ledger")


_ID = f'gpu="0",hw_id="{hashed("GPU-1")}",hw_type="gpu"'


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    made = Metrics(["GPU-1"], 0, lambda _gpu: 25.0)
    made.write(_shown_step(6, 20.0))
    made.write(_shown_step(7, None))
    made.write(AskLine(gpu=0, at_s=0.0, domain="core", to_mhz=1110, call_s=0.005))
    made.write(EventLine(gpu=0, at_s=0.0, text="noted"))
    yield made
    made.close()


def _scraped(metrics: Metrics) -> str:
    url = f"http://127.0.0.1:{metrics.server.server_port}/metrics"
    with urllib.request.urlopen(url) as answer:
        text: str = answer.read().decode()
    return text


def test_steps_and_asks_are_counted_and_what_is_missing_is_not(metrics: Metrics) -> None:
    lines = _scraped(metrics).splitlines()
    shown = [line for line in lines if line[0] != "#" and "_created" not in line]

    assert shown == [
        f'underclock_steps_total{{{_ID},state="clocks follow the plan"}} 2.0',
        f'underclock_asks_total{{domain="core",{_ID}}} 1.0',
        f"hw_energy_joules_total{{{_ID}}} 25.0",
        f"underclock_step_energy_joules_total{{{_ID}}} 20.0",
        f"underclock_planned_changes_total{{{_ID}}} 8.0",
        f"underclock_hits_total{{{_ID}}} 6.0",
        f"underclock_overruled_locks_total{{{_ID}}} 2.0",
        f"underclock_step_seconds{{{_ID}}} 0.2",
        f"underclock_core_hertz{{{_ID}}} 1.5e+09",
    ]


def test_a_port_that_is_taken_or_none_is_refused(metrics: Metrics) -> None:
    for port in (metrics.server.server_port, 70_000):
        with pytest.raises(NotSupportedError, match=f"cannot serve metrics on port {port}: "):
            Metrics([], port, lambda _gpu: None)


def test_without_prometheus_client_the_line_that_installs_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "prometheus_client":
            raise ModuleNotFoundError(name)
        return known(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(NotSupportedError, match="needs prometheus_client") as raised:
        Metrics([], 0, lambda _gpu: None)
    assert raised.value.hint == "pip install 'underclock[metrics]'"
