"""What a run's log comes to in the ledger."""

import dataclasses
import fcntl
from pathlib import Path

import msgspec
import pytest

from small_training import plan
from underclock.hw.clock import SystemClock
from underclock.ledger import LedgerGpu, LedgerRun, SavedAgainst, read_runs, totals
from underclock.records import AUTO, Arm, Cost, Evidence, Plan, Status, Strategy
from underclock.records.runs import ArmLine, Line, RunLine, StepLine
from underclock.runtime.controller.booking import Booking, RunTally
from underclock.runtime.controller.gauges import Gauge, TelemetryBuffer
from underclock.runtime.machine.steps import State

_GPUS = (("GPU-0", "H200"), ("GPU-1", "H200"))


def _promising(
    interval: tuple[float, float] | None = (-0.12, -0.08), evidence: Evidence = Evidence.MEASURED
) -> Plan:
    cost = Cost(time_s=0.101, energy_j=27.0, time_change=0.01, energy_change=-0.1)
    arm = msgspec.structs.replace(
        Arm.of(Strategy.ACHIEVABLE, cost, Status.OPTIMAL), energy_interval=interval
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
            "plan is of one of 101 ms and 27 J: --arms auto,plan measures it"
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
        ([_run(arms="auto,plan"), _steps("plan", 3, 1.0)], None, "no round of its arms"),
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


@pytest.mark.parametrize("made", [_promising(), None])
def test_a_run_that_sets_nothing_is_booked_whole_and_saves_nothing(made: Plan | None) -> None:
    shown = [_shown(5000.0), TelemetryBuffer()]
    tally = RunTally(made, _GPUS, 0, {}, lambda gpu: shown[gpu])
    assert tally.run(60.0) is None
    for line in (_run(dry=True), _steps("plan", 3, 1.0), _steps("reduced", 3, 9.0)):
        tally.add(line)
    run = tally.run(60.0)
    assert run is not None
    first, second = run.gpus
    (total,) = totals([run])

    assert (first.energy_j, first.auto_j, first.auto_interval_j) == (5000.0, 5000.0, (5000.0,) * 2)
    assert (first.steps, first.untold_j) == (6, 0.0)
    assert (second.energy_j, second.untold) == (
        None,
        "cannot tell, because what steps drew is not known",
    )
    assert (total.against, total.energy_j, total.saved_interval_j) == (
        SavedAgainst.OBSERVED,
        5000.0,
        (0.0, 0.0),
    )
    assert (run.job, len(run.plan)) == ("small", 16 if made else 0)


def _shown(energy_j: float, *limits_w: float) -> TelemetryBuffer:
    """Return what a driver shows of a GPU that drew as much in 100 s."""
    shown = TelemetryBuffer()
    gauges = [
        Gauge(at_s=1.0 * at, clocks=AUTO, reasons=None, power_w=None, energy_j=energy_j * at / 100)
        for at in range(101)
    ]
    gauges += [dataclasses.replace(gauges[-1], at_s=101.0, limit_w=limit_w) for limit_w in limits_w]
    shown.add(gauges)
    return shown


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
        began_s = clock.now_s()
        for _ in range(1000):
            booking.write(_steps("plan", 1, 27.0))
        took_s = clock.now_s() - began_s
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
