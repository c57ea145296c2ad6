"""The fault matrix: what befalls a whole `underclock run`, and what is left, lost and told.

    PYTHONPATH=tests python studies/faults.py [WORD …]

As root (it mounts a small disk and freezes a cgroup), with a C compiler. With words only rows that
have one of them in their names are played. What fails is shown whole on stderr; docs/evidence is
written where all were played.
"""

import contextlib
import dataclasses
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

import faults_training
from faults_rig import (
    CLOCK,
    STEPS,
    Outcome,
    Rig,
    Row,
    Trial,
    doctor_finds_nothing,
    losses_in,
    open_rig,
    outcome,
    plain_losses,
)
from pages import fill, markdown
from small_training import plan, with_memory
from underclock.records import GpuInfo, Plan
from underclock.runtime.undo.ownership import RUNTIME_DIR

_LONGEST = 150
TERM, INT, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGKILL
STOP, CONT = signal.SIGSTOP, signal.SIGCONT
_STOOD_STILL = r"no mark was seen[^\n]*"


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
        Row(who, number.name, says.format(name=number.name), _killed(who, by=number))
        for number in numbers
    )


def _pairs(by: signal.Signals, says: str) -> tuple[Row, ...]:
    return tuple(
        Row(f"{one}, then {other}", by.name, says, _killed(one, other, by=by))
        for one, other in itertools.permutations(("trainer", "conductor", "watcher"), 2)
    )


def _fault(
    name: str, value: float | None = None, *, heals_after_s: float | None = None, steps: int = STEPS
) -> Callable[[Rig], Outcome]:
    """Return a row in which something goes wrong with the GPU while a clock is locked."""

    def play(rig: Rig) -> Outcome:
        trial = Trial(rig, steps=steps).held().set_now()
        rig.control.fault(name, value, gpu=0)
        if heals_after_s is not None:
            CLOCK.sleep_s(heals_after_s)
            rig.control.heal(gpu=0)
        return outcome(trial)

    return play


def _healed_after_the_end(name: str) -> Callable[[Rig], Outcome]:
    """Return a row whose fault outlives training by two seconds."""

    def play(rig: Rig) -> Outcome:
        trial = Trial(rig).held().set_now()
        rig.control.fault(name, gpu=0)
        trainer = trial.trainer
        trial.until(lambda: not trainer.lives)
        CLOCK.sleep_s(2.0)
        rig.control.heal(gpu=0)
        trial.ended_s = CLOCK.now_s()
        trial.until(rig.is_clean, 15.0)
        return outcome(trial)

    return play


def _limit_changed(rig: Rig) -> Outcome:
    trial = Trial(rig).held()
    rig.control.fault("power_limit_changed", 320.0, gpu=0)
    trial.wait()
    left = rig.control.truth()["limit_w"] == 320.0  # noqa: PLR2004 - it is theirs
    rig.control.fault("power_limit_changed", float(str(rig.found[2])), gpu=0)
    seen = outcome(trial)
    return dataclasses.replace(seen, as_found=seen.as_found and left, took_s=None)


def _memory_refused_at_first(rig: Rig) -> Outcome:
    rig.control.fault("memory_refused", gpu=0)
    trial = Trial(rig, held=with_memory(plan()))
    trial.wait()
    rig.control.heal()
    return Outcome(as_found=rig.is_clean(), took_s=None, losses=None, said=trial.said())


def _memory_refused_meanwhile(rig: Rig) -> Outcome:
    trial = Trial(rig, held=with_memory(plan())).held().set_now()
    rig.control.fault("memory_refused", gpu=0)
    seen = outcome(trial)
    rig.control.heal()
    return seen


def _refused(held: Plan) -> Callable[[Rig], Outcome]:
    """Return a row whose plan must not be held here."""

    def play(rig: Rig) -> Outcome:
        trial = Trial(rig, held=held)
        code = trial.wait()
        started = trial.losses.exists() or code == 0
        return Outcome(
            as_found=rig.is_clean() and not started, took_s=None, losses=None, said=trial.said()
        )

    return play


def _of(**gpu: object) -> Plan:
    return plan(gpu=GpuInfo(**{"name": "RTX 3080 Ti", "power_limit_w": 350.0, **gpu}))  # type: ignore[arg-type]


def another_step() -> Plan:
    """Return a plan of a model with other modules."""
    made = plan()
    modules = tuple(f"other.{name}" if name else name for name in made.modules)
    return msgspec.structs.replace(made, modules=modules)


_HEAT = "because it is too hot|under its temperature"


def _training(how: str) -> Callable[[Rig], Outcome]:
    return lambda rig: outcome(Trial(rig, how=how).held())


def _twice(rig: Rig) -> Outcome:
    trial = Trial(rig, how="twice").held()
    seen = outcome(trial)
    other = losses_in(Path(f"{trial.losses}.other")) == plain_losses("plain", STEPS)
    return dataclasses.replace(seen, losses=bool(seen.losses) and other)


def _second_run(rig: Rig) -> Outcome:
    first = Trial(rig).held()
    second = Trial(rig)
    second.process.wait()
    seen = outcome(first)
    trained = second.losses.exists()
    return Outcome(
        as_found=seen.as_found,
        took_s=seen.took_s,
        losses=bool(seen.losses) and not trained,
        said=second.said(),
    )


_RANKS = """
import os, subprocess, sys
ranks = [subprocess.Popen([*sys.argv[1:4], f"{sys.argv[4]}.{rank}"],
         env=dict(os.environ, LOCAL_RANK=str(rank))) for rank in range(8)]
sys.exit(max(rank.wait() for rank in ranks))
"""


def _eight(_rig: Rig) -> Outcome:
    """Train on eight GPUs, whose setters wait for one another, and kill the conductor."""
    before = dict(os.environ)
    info = GpuInfo(name="H200", power_limit_w=700.0)
    with tempfile.TemporaryDirectory() as folder, open_rig(Path(folder), "h200", 8) as rig:
        files = Path(folder) / "ranks"
        trial = Trial(
            rig,
            held=plan(gpu=info, launch_s=8e-3),
            options=[f"--gpu=nvml:{index}" for index in range(8)],
            command=[
                sys.executable, "-c", _RANKS,
                sys.executable, faults_training.__file__, str(STEPS), str(files),
            ],
        )  # fmt: skip
        trial.held(asks=48).set_now().kill(KILL, trial.conductor)
        trial.wait()
        same = all(
            losses_in(Path(f"{files}.{rank}")) == plain_losses("plain", STEPS) for rank in range(8)
        )
        seen = Outcome(
            as_found=rig.is_clean() and doctor_finds_nothing(rig),
            took_s=trial.took_s(),
            losses=same,
            said=trial.said(),
        )
    os.environ.update(before)
    return seen


def _page_unlinked(*, early: bool) -> Callable[[Rig], Outcome]:
    def play(rig: Rig) -> Outcome:
        trial = Trial(rig)
        if early:  # the conductor has it open, and the trainer does not
            trial.until(lambda: trial.log.is_file() and trial.log.stat().st_size)
        else:
            trial.held()
        shm = Path(f"/dev/shm/underclock-{os.getuid()}")  # noqa: S108 - where runs keep pages
        for page in shm.glob(f"run-{trial.process.pid}-*.page"):
            page.unlink()
        return outcome(trial)

    return play


@contextmanager
def _small_disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    disk = folder / "disk"
    disk.mkdir()
    size = f"size={kilobytes}k,mode=0700"
    subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", size, "tmpfs", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["/bin/umount", str(disk)], check=True)


def _fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "fill").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1024))


def _full_log(rig: Rig) -> Outcome:
    with tempfile.TemporaryDirectory() as folder, _small_disk(Path(folder), 64) as disk:
        trial = Trial(rig, log=disk / "log").held()
        _fill(disk)
        return outcome(trial)


def _no_room_for_a_journal(rig: Rig) -> Outcome:
    with tempfile.TemporaryDirectory() as folder, _small_disk(Path(folder), 256) as disk:
        runs = disk / "runs"
        runs.mkdir(mode=0o700)
        _fill(disk)
        rig.environment[RUNTIME_DIR] = str(runs)
        trial = Trial(rig)
        trial.wait()
        clean = rig.is_clean() and not list(runs.glob("*.journal"))
    return Outcome(
        as_found=clean and not trial.losses.exists(), took_s=None, losses=None, said=trial.said()
    )


_JUMPS = r"""
#define _GNU_SOURCE
#include <time.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/syscall.h>
#include <unistd.h>
static long jump(void) { return (rand() % 2000000) - 1000000; }  /* up to eleven days */
int clock_gettime(clockid_t id, struct timespec *at) {
  int code = syscall(SYS_clock_gettime, id, at);
  if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) at->tv_sec += jump();
  return code;
}
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  int code = syscall(SYS_gettimeofday, at, zone);
  at->tv_sec += jump();
  return code;
}
time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}
"""


def _clock_jumps(rig: Rig) -> Outcome:
    """Run where the wall clock is another at every look: up to eleven days before or after."""
    source, library = rig.folder / "jumps.c", rig.folder / "jumps.so"
    source.write_text(_JUMPS)
    compiler = ["gcc", "-shared", "-fPIC", "-O1", "-w", "-o", str(library), str(source)]
    subprocess.run(compiler, check=True)
    rig.environment["LD_PRELOAD"] = str(library)
    return outcome(Trial(rig).held())


ROWS = (
    Row(
        "trainer",
        "an exception at step 12",
        "RuntimeError: the user's own code failed",
        lambda rig: outcome(Trial(rig, how="breaks").held(2), killed=True),
    ),
    *_rows_of("trainer", TERM, INT, KILL, says="the command was ended by {name}"),
    Row("trainer", "SIGSTOP, and SIGCONT after 2 s", _STOOD_STILL, _stopped_trainer),
    *_rows_of("conductor", TERM, INT, says="clocks are held no more: asked to end by {name}"),
    *_rows_of("conductor", KILL, STOP, says="the conductor (ended|was stopped); .*"),
    *_rows_of("watcher", TERM, INT, says=""),
    *_rows_of("watcher", KILL, STOP, says="the watcher .* has ended, and is replaced by another"),
    *_pairs(KILL, "the command was ended by SIGKILL|clocks are held no more: .*"),
    Row(
        "conductor and watcher",
        "SIGSTOP, for good",
        "clocks are held no more: .*",
        _killed("watcher", "conductor", by=STOP),
    ),
    Row("launcher", "SIGTERM", "interrupted", _launcher(TERM, group=False)),
    Row(
        "launcher and trainer",
        "SIGINT to both, as Ctrl-C",
        "interrupted",
        _launcher(INT, group=True),
    ),
    Row(
        "launcher",
        "SIGKILL; training goes on",
        "",  # who would have told is dead
        _killed_launcher,
    ),
    Row("suspended container", "SIGSTOP to all for 3 s", "", _suspended),
    Row("suspended container", "cgroup frozen for 5 s", "", _frozen),
    Row(
        "permission revoked",
        "until 2 s after training",
        "the driver refused .*?;",
        _healed_after_the_end("permission_revoked"),
    ),
    Row(
        "permission revoked",
        "for 1 s",
        "the core was given back to the driver",
        _fault("permission_revoked", heals_after_s=1.0),
    ),
    Row(
        "setter fails half-way",
        "memory refused from the start",
        "could not lock the memory.*",
        _memory_refused_at_first,
    ),
    Row(
        "setter fails half-way",
        "memory refused while running",
        "the driver refused memory.*?;",
        _memory_refused_meanwhile,
    ),
    Row(
        "setter hangs",
        "each 10 s",
        "the conductor has not answered.*",
        _fault("setter_hangs", 10.0, heals_after_s=12.0, steps=200),
    ),
    Row(
        "GPU lost",
        "until 2 s after training",
        "[^;:]*GPU is lost",
        _healed_after_the_end("gpu_lost"),
    ),
    Row(
        "energy counter",
        "begins again at zero",
        "the energy counter fell .*",
        _fault("counter_restarts"),
    ),
    Row(
        "energy counter",
        "stands still for 2 s",
        "the energy counter stands still.*",
        _fault("counter_stuck", heals_after_s=2.0),
    ),
    Row(
        "counter of marks",
        "stuck for 1.5 s",
        _STOOD_STILL,
        _fault("marks_stuck", heals_after_s=1.5),
    ),
    Row(
        "counter of marks", "backwards for 1.5 s", "", _fault("marks_backwards", heals_after_s=1.5)
    ),
    Row(
        "locks ineffective",
        "accepted, not followed, for 8 s",
        "core .* does not follow it.*",
        _fault("locks_ignored", heals_after_s=8.0, steps=110),
    ),
    Row(
        "thermal slowdown",
        "the driver's, for 2 s",
        _HEAT,
        _fault("soft_slowdown", heals_after_s=2.0),
    ),
    Row(
        "thermal slowdown",
        "the hardware's, for 2 s",
        _HEAT,
        _fault("hard_slowdown", heals_after_s=2.0),
    ),
    Row(
        "power limit changed by another",
        "350 to 320 W, which stays",
        "somebody changed the power limit.*",
        _limit_changed,
    ),
    Row("plan for another GPU", "RTX 4090", "the plan is for .*", _refused(_of(name="RTX 4090"))),
    Row(
        "plan for another board",
        "another UUID",
        "the plan was made on board .*?[:;]",
        _refused(_of(uuid="GPU-1")),
    ),
    Row("plan for another driver", "1.2", "made under driver .*", _refused(_of(driver="1.2"))),
    Row(
        "plan for another limit",
        "300 W",
        "a power limit of 300 W.*",
        _refused(_of(power_limit_w=300.0)),
    ),
    Row(
        "plan for another step",
        "of other modules",
        "the step is not the plan's.*",
        lambda rig: outcome(Trial(rig, held=another_step())),
    ),
    Row("steps that change length", "1 to 3 passes, pauses of the host", "", _training("lengths")),
    Row("data-loader stalls", "1 s every 8 steps", _STOOD_STILL, _training("stalls")),
    Row("workers", "forked, which train too", "", _training("fork")),
    Row("workers", "spawned, which train too", "", _training("spawn")),
    Row("two trainers, one GPU", "of one run", "another process marks .*", _twice),
    Row(
        "two trainers, one GPU", "of two runs", "GPU .* is set by another Underclock.*", _second_run
    ),
    Row(
        "eight GPUs, setters one after the other",
        "conductor killed",
        "the conductor ended; .*",
        _eight,
    ),
    Row("page unlinked", "while marks are written", "", _page_unlinked(early=False)),
    Row(
        "page unlinked",
        "before training",
        "somebody removed the page of marks",
        _page_unlinked(early=True),
    ),
    Row("disk full", "of the log", "lines of .* are lost.*", _full_log),
    Row(
        "disk full",
        "of journals, from the start",
        "cannot .*: No space left on device",
        _no_room_for_a_journal,
    ),
    Row(
        "clock jump of the host",
        "wall clock off by up to 11 days, anew at each look",
        "",
        _clock_jumps,
    ),
)


def main() -> None:
    """Play all rows, or those whose names have one of the words; fill the page."""
    words = sys.argv[1:]
    rows = [row for row in ROWS if not words or any(word in row.name for word in words)]
    lines: list[tuple[str, ...]] = [
        ("what", "what was done", "as found", "within", "losses", "told")
    ]
    played: list[tuple[Row, Outcome]] = []
    for row in rows:
        with tempfile.TemporaryDirectory() as folder, open_rig(Path(folder)) as rig:
            try:
                seen = row.play(rig)
            except (OSError, RuntimeError) as exc:
                seen = Outcome(as_found=False, took_s=None, losses=False, said=f"FAILED: {exc!r}")
        good = seen.as_found and seen.losses is not False and row.was_told(seen)
        lines.append(_cells(row, seen))
        print("ok" if good else "BAD", *lines[-1], sep="  ", file=sys.stderr, flush=True)
        if not good:
            print(seen.said, file=sys.stderr, flush=True)
        played.append((row, seen))
    trained = [seen for _, seen in played if seen.losses is not None]
    summary = (
        f"As found: **{sum(seen.as_found for _, seen in played)} of {len(played)}**. Losses "
        f"identical: **{sum(bool(seen.losses) for seen in trained)} of {len(trained)}** that "
        f"trained. Told what was to be told: **{sum(row.was_told(seen) for row, seen in played)} "
        f"of {len(played)}**."
    )
    parts = {"summary": summary, "rows": markdown(lines)}
    fill("faults", parts, repeats="Every row once.", whole=not words)


def _cells(row: Row, seen: Outcome) -> tuple[str, ...]:
    told = row.sentence(seen).strip().replace("|", " ") if row.says else "nothing to tell"
    return (
        row.name,
        row.did,
        "yes" if seen.as_found else "**no**",
        "-" if seen.took_s is None else f"{1e3 * seen.took_s:.0f} ms",
        {None: "did not train", True: "identical", False: "**differ**"}[seen.losses],
        (told if len(told) <= _LONGEST else f"{told[:_LONGEST]}…") or "**nothing**",
    )


if __name__ == "__main__":
    main()
