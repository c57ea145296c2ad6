"""Faults by signals: processes of a run that end or stop, alone and together; see `faults.py`."""

import contextlib
import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path

from faults_outcome import STOOD_STILL, Outcome, Row, outcome
from faults_rig import CLOCK, Rig, Trial

TERM, INT, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGKILL
STOP, CONT = signal.SIGSTOP, signal.SIGCONT


def _killed(*who: str, by: signal.Signals) -> Callable[[Rig], Outcome]:
    """Return a row in which processes of a run get a signal while a clock is locked."""

    def play(rig: Rig) -> Outcome:
        trial = Trial(rig).held()
        victims = [getattr(trial, name) for name in who]
        trial.set_now().kill(by, *victims, ends="conductor" in who)
        return outcome(trial, killed="trainer" in who)

    return play


def _stopped_trainer(rig: Rig) -> Outcome:
    trial = Trial(rig).held()
    trainer = trial.trainer
    trial.kill(STOP, trainer, ends=False)
    CLOCK.sleep_s(2.0)
    return outcome(trial.kill(CONT, trainer, ends=False))


def _launcher(by: signal.Signals, *, group: bool) -> Callable[[Rig], Outcome]:
    def play(rig: Rig) -> Outcome:
        trial = Trial(rig).held()
        trainer = trial.trainer
        trial.set_now()
        if group:
            os.killpg(trial.process.pid, by)
        else:
            os.kill(trial.process.pid, by)
        trial.until(lambda: not trainer.lives)
        return outcome(trial, killed=True)

    return play


def _killed_launcher(rig: Rig) -> Outcome:
    trial = Trial(rig).held()
    trainer, conductor = trial.trainer, trial.conductor
    trial.process.kill()
    trial.until(lambda: not trainer.lives)
    trial.until(lambda: not conductor.lives)
    return outcome(trial)


def _suspended(rig: Rig) -> Outcome:
    """Stop everything, those first whom others watch last, and let it go on."""
    trial = Trial(rig).held()
    everybody = [trial.watcher.pid, trial.conductor.pid, trial.process.pid, trial.trainer.pid]
    for pid in everybody:
        os.kill(pid, STOP)
    CLOCK.sleep_s(3.0)
    for pid in reversed(everybody):
        os.kill(pid, CONT)
    return outcome(trial)


_FREEZER = Path("/sys/fs/cgroup/freezer")


def _frozen(rig: Rig) -> Outcome:
    """Freeze everything at once, as a container is suspended."""
    trial = Trial(rig).held()
    group = _FREEZER / f"underclock-{trial.process.pid}"
    group.mkdir()
    pids = [trial.watcher.pid, trial.conductor.pid, trial.process.pid, trial.trainer.pid]
    for pid in pids:
        (group / "cgroup.procs").write_text(str(pid))
    (group / "freezer.state").write_text("FROZEN")
    CLOCK.sleep_s(5.0)
    (group / "freezer.state").write_text("THAWED")
    seen = outcome(trial)
    with contextlib.suppress(OSError):
        group.rmdir()
    return seen


def _rows_of(who: str, *numbers: signal.Signals, says: str) -> tuple[Row, ...]:
    return tuple(
        Row(
            name=who,
            did=number.name,
            says=says.format(name=number.name),
            play=_killed(who, by=number),
        )
        for number in numbers
    )


def _pairs(by: signal.Signals, says: str) -> tuple[Row, ...]:
    return tuple(
        Row(
            name=f"{one}, then {other}",
            did=by.name,
            says=says,
            play=_killed(one, other, by=by),
        )
        for one, other in itertools.permutations(("trainer", "conductor", "watcher"), 2)
    )


ROWS = (
    Row(
        name="trainer",
        did="an exception at step 12",
        says="RuntimeError: the user's own code failed",
        play=lambda rig: outcome(Trial(rig, how="breaks").held(2), killed=True),
    ),
    *_rows_of("trainer", TERM, INT, KILL, says="the command was ended by {name}"),
    Row(
        name="trainer",
        did="SIGSTOP, and SIGCONT after 2 s",
        says=STOOD_STILL,
        play=_stopped_trainer,
    ),
    *_rows_of("conductor", TERM, INT, says="clocks are held no more: asked to end by {name}"),
    *_rows_of("conductor", KILL, STOP, says="the conductor (ended|was stopped); .*"),
    *_rows_of("watcher", TERM, INT, says=""),
    *_rows_of("watcher", KILL, STOP, says="the watcher .* has ended, and is replaced by another"),
    *_pairs(KILL, "the command was ended by SIGKILL|clocks are held no more: .*"),
    Row(
        name="conductor and watcher",
        did="SIGSTOP, for good",
        says="clocks are held no more: .*",
        play=_killed("watcher", "conductor", by=STOP),
    ),
    Row(name="launcher", did="SIGTERM", says="interrupted", play=_launcher(TERM, group=False)),
    Row(
        name="launcher and trainer",
        did="SIGINT to both, as Ctrl-C",
        says="interrupted",
        play=_launcher(INT, group=True),
    ),
    Row(
        name="launcher",
        did="SIGKILL; training goes on",
        says="",  # who would have told is dead
        play=_killed_launcher,
    ),
    Row(name="suspended container", did="SIGSTOP to all for 3 s", says="", play=_suspended),
    Row(name="suspended container", did="cgroup frozen for 5 s", says="", play=_frozen),
)
