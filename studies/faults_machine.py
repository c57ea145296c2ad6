"""Faults of the training and of the machine around it; see `faults.py`."""

import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import faults_training
from faults_outcome import (
    STOOD_STILL,
    Outcome,
    Row,
    doctor_finds_nothing,
    losses_in,
    outcome,
    plain_losses,
)
from faults_rig import STEPS, Rig, Trial, open_rig
from faults_signals import KILL
from small_training import plan
from underclock.records import GpuInfo
from underclock.runtime.undo.ownership import RUNTIME_DIR


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
        name="steps that change length",
        did="1 to 3 passes, pauses of the host",
        says="",
        play=_training("lengths"),
    ),
    Row(
        name="data-loader stalls",
        did="1 s every 8 steps",
        says=STOOD_STILL,
        play=_training("stalls"),
    ),
    Row(name="workers", did="forked, which train too", says="", play=_training("fork")),
    Row(name="workers", did="spawned, which train too", says="", play=_training("spawn")),
    Row(
        name="two trainers, one GPU",
        did="of one run",
        says="another process marks .*",
        play=_twice,
    ),
    Row(
        name="two trainers, one GPU",
        did="of two runs",
        says="GPU .* is set by another Underclock.*",
        play=_second_run,
    ),
    Row(
        name="eight GPUs, setters one after the other",
        did="conductor killed",
        says="the conductor ended; .*",
        play=_eight,
    ),
    Row(
        name="page unlinked",
        did="while marks are written",
        says="",
        play=_page_unlinked(early=False),
    ),
    Row(
        name="page unlinked",
        did="before training",
        says="somebody removed the page of marks",
        play=_page_unlinked(early=True),
    ),
    Row(name="disk full", did="of the log", says="lines of .* are lost.*", play=_full_log),
    Row(
        name="disk full",
        did="of journals, from the start",
        says="cannot .*: No space left on device",
        play=_no_room_for_a_journal,
    ),
    Row(
        name="clock jump of the host",
        did="wall clock off by up to 11 days, anew at each look",
        says="",
        play=_clock_jumps,
    ),
)
