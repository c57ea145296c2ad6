"""Kills trainer, launcher, controller and watchdog at random, up to three of them at once.

    nice python studies/kills.py COUNT [SEED]
    nice python studies/kills.py COUNT [SEED] --governed
    nice python studies/kills.py COUNT [SEED] --measured
    nice python studies/kills.py COUNT [SEED] --learned [--jobs 4]

A simulated GPU is served by a process of its own, so what is set on it outlives whoever set it, as
on a real driver. The controller sets clocks and the power limit every 2 ms. Who is killed,
by which signal and when are random: while processes start, while they arm, while a setter or the
undo runs. The trainer is any process (`sleep`): the undo knows nothing of it but its end. The
launcher starts the controller and waits for its end, as `underclock run` does. With ``--governed``
the controller governs by a serving plan instead: the launcher says every 2 ms which step begins.
With ``--measured`` a process sets clocks by itself every 2 ms, as `underclock measure` does: it and
its watchdog are all there is, and a measurement that is only stopped goes on. With ``--learned``
the launcher is `underclock run` and learns clocks while a process trains: it marks steps that the
served GPU executes, and kills come 5 to 15 s after everything is armed, for the first clocks are
tried after 8 s. Training that goes on by itself is ended 0.4 s later.

Guardians are controller, watchdog and launcher. A kill counts as good only if, once those have
ended who were left, locks and limit are as found and no journal is left. Its time runs from
the last signal to the last look at which something was still set; looks are about 1 ms apart. Where
all were killed, or stopped for good, `underclock restore --all` comes by a timer of 2 s, in any
phase of it, or the next run.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import numpy as np
from msgspec.structs import replace as replace_record

from pages import fill, made_by, markdown
from underclock.hw.base import SystemClock
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import SIMULATOR, SettableNvmlGpu, nvml_session
from underclock.records import AUTO, Clocks, Evidence, Pass
from underclock.records.serving import Basis, ServingBucket, ServingCost, ServingPlan
from underclock.runtime.controller.starting import ControllerProcess
from underclock.runtime.undo.guarded_gpu import left_behind
from underclock.runtime.undo.ownership import RUNTIME_DIR, Process, named_in
from underclock.store import write_document
from underclock.units import Domain

WITHIN_S = 8.0
LOOK_S = 1e-3
HELD_S, LEARNED_S = (0.0, 0.06), (5.0, 15.0)  # after everything is armed kills come
TRAINS_S = 0.4  # on by itself
LIMIT_S = 0.2
_ENOUGH = 400  # kills, for a page
PERIOD_S = 2.0
CLOCK = SystemClock()
_WORK = "import kills_work; kills_work.{}()"


class Victim(StrEnum):
    """Who is killed."""

    TRAINER = "trainer"
    CONTROLLER = "controller"
    WATCHDOG = "watchdog"
    LAUNCHER = "launcher"


T, C, W, L = Victim.TRAINER, Victim.CONTROLLER, Victim.WATCHDOG, Victim.LAUNCHER
SINGLES = ((T,), (C,), (W,), (L,))
PAIRS = ((T, C), (T, W), (C, T), (W, T), (C, W), (W, C), (C, L), (L, W))
THREE = ((C, W, L), (L, C, W), (W, L, C))
VICTIMS = (*SINGLES, *PAIRS, *THREE)
MEASURING = ((C,), (W,), (C, W), (W, C))
DEADLY = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
SIGNALS = (*DEADLY, signal.SIGSTOP)
FINAL = (signal.SIGKILL, signal.SIGSTOP)


class Work(StrEnum):
    """What sets the clocks."""

    HELD = "launch"
    GOVERNED = "governed"
    MEASURED = "measure"
    LEARNED = "learn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """What was done, and what came of it."""

    victims: tuple[Victim, ...]  # who was killed, in order
    signals: tuple[signal.Signals, ...]  # by what
    armed: bool  # whether everything was armed when the first signal was sent
    took_s: float  # from the last signal that could end the run to as found
    was_set: bool  # whether anything was seen set after that signal
    left: bool  # whether something was still set once no guardian was left, before the next start
    mended: bool  # whether all was as found after `restore`, where something was left
    period_s: float = 0.0  # of the timer that ran `restore`; 0 where it did not
    restored_s: float = 0.0  # from the start of that `restore` to as found
    has_launcher: bool = True  # a measurement has none

    @property
    def only_launcher_left(self) -> bool:
        """Whether controller and watchdog were both killed, or stopped for good."""
        by = dict(zip(self.victims, self.signals, strict=True))
        return by.get(C) in FINAL and by.get(W) in FINAL

    @property
    def nobody_left(self) -> bool:
        """Whether the launcher was killed as well."""
        return self.only_launcher_left and (L in self.victims or not self.has_launcher)


class Rig:
    """One served GPU, and what is set on it."""

    def __init__(self, folder: Path, work: Work = Work.HELD) -> None:
        self.folder, self.work = folder, work
        self.uuid = NvmlGpu(0).uuid()
        self._gpu = SettableNvmlGpu(self.uuid)
        self.found = self.state()

    def state(self) -> tuple[object, ...]:
        """Return everything that may be set."""
        return tuple(self._gpu.read(setting) for setting in Domain)

    def start_again(self) -> bool:
        """Start the next run, which changes nothing; return whether all is as found then."""
        controller = ControllerProcess.start(
            [self.uuid], work="underclock.runtime.controller.process:hold", options={}
        )
        controller.armed()
        controller.end()
        controller.close()
        return self.is_clean()

    def is_clean(self) -> bool:
        """Whether everything is as found, and no journal is left."""
        return self.state() == self.found and not left_behind(self.folder)

    def watchdog_of(self, controller: int) -> int | None:
        """Return the controller's watchdog, as soon as there is one."""
        if children := children_of(controller):
            return children[-1]
        _, watchdog = named_in(self.folder / f"{self.uuid}.lock")
        return watchdog.pid if watchdog and watchdog.lives else None


@contextmanager
def served(folder: Path, gpus: int = 1) -> Iterator[Path]:
    """Serve GPUs from a process of its own; return the folder of runs."""
    socket, runs = folder / "s", folder / "runs"
    serve = [sys.executable, "-m", "underclock", "simulate", "rtx3080ti", "--socket", str(socket)]
    server = subprocess.Popen([*serve, "--count", str(gpus)], stderr=subprocess.DEVNULL)
    try:
        while not socket.exists() and server.poll() is None:
            CLOCK.sleep_s(0.01)
        os.environ[SIMULATOR], os.environ[RUNTIME_DIR] = str(socket), str(runs)
        runs.mkdir(mode=0o700)
        with nvml_session():
            yield runs
    finally:
        server.terminate()
        server.wait()


def _table(path: Path) -> Path:
    """Write a serving plan: one step at 1200 MHz, another at 1800 MHz and slower memory."""
    cost = ServingCost(
        clocks=AUTO,
        time_s=1.0,
        time_interval_s=(1.0, 1.0),
        energy_j=1.0,
        energy_interval_j=(1.0, 1.0),
        basis=Basis.MODELLED,
    )
    clocks = {Pass.DECODE: Clocks(core_mhz=1200), Pass.PREFILL: Clocks(core_mhz=1800, mem_mhz=5001)}
    buckets = [
        ServingBucket(
            pass_=phase,
            batch=1,
            context=1,
            tokens=1,
            auto=cost,
            chosen=replace_record(cost, clocks=each),
            frontier=(cost,),
        )
        for phase, each in clocks.items()
    ]
    plan = ServingPlan(
        evidence=Evidence.SIMULATED,
        gpu=NvmlGpu(0).info(),
        workload="two steps",
        max_slowdown=0.0,
        fixed=None,
        buckets=tuple(buckets),
    )
    write_document(path, plan)
    return path


def kill_once(rig: Rig, draw: random.Random) -> Kill:
    """Start a run, kill at random, and wait until no guardian is left that could undo."""
    learns, measures = rig.work is Work.LEARNED, rig.work is Work.MEASURED
    victims = draw.choice(MEASURING if measures else VICTIMS)
    choice = {T: DEADLY, L: DEADLY} if victims not in THREE else {}
    if measures:
        choice[C] = DEADLY
    also = FINAL if victims in THREE else ()  # most of these end or stop all three
    signals = tuple(draw.choice((*choice.get(one, SIGNALS), *also)) for one in victims)
    with _run(rig, draw) as (trainer, launcher, controller):
        armed = draw.random() < 0.7  # noqa: PLR2004 - most kills come while something is set
        if armed:
            launcher.stdout.readline()  # type: ignore[union-attr]
        CLOCK.sleep_s(draw.uniform(*((LEARNED_S if learns else HELD_S) if armed else (0.0, 0.4))))
        watchdog = rig.watchdog_of(controller)
        pids = {T: trainer, L: launcher.pid, C: controller, W: watchdog}
        guardians = {
            Process.of(pid) if pid else None for pid in (watchdog, launcher.pid, controller)
        }
        for victim, number in zip(victims, signals, strict=True):
            send(pids[victim], number)
            if victim is not victims[-1]:
                CLOCK.sleep_s(draw.choice((0.0, 0.0, draw.uniform(0.0, 0.05))))
        if C not in victims and T not in victims:  # everything goes on: its end comes next
            CLOCK.sleep_s(draw.uniform(0.0, 0.3))
            send(*((controller, signal.SIGTERM) if measures else (trainer, signal.SIGKILL)))
        begun_s = CLOCK.now_s()
        seen_s, was_set = _look(rig, controller, guardians, trainer if learns else None)
        kill = Kill(
            victims=victims,
            signals=signals,
            armed=armed,
            took_s=(seen_s or begun_s) - begun_s,
            was_set=was_set,
            left=not rig.is_clean(),
            mended=True,
            has_launcher=not measures,
        )
        if kill.left and draw.random() < 0.75:  # noqa: PLR2004
            kill = _by_timer(rig, kill, begun_s, draw.uniform(0.0, PERIOD_S))
        elif kill.left:
            kill = replace(kill, mended=rig.start_again())
        for one in guardians:
            if one and one.lives:  # stopped, and had nothing to undo
                send(one.pid, signal.SIGKILL)
    return kill


@contextmanager
def _run(rig: Rig, draw: random.Random) -> Iterator[tuple[int, "subprocess.Popen[bytes]", int]]:
    """Start a trainer, a launcher and by that a controller; numbers of the first and the last."""
    governed = rig.work is Work.GOVERNED
    plan = [str(_table(rig.folder.parent / "plan.json"))] if governed else []
    work = _WORK.format(Work.HELD if governed else rig.work)
    with (
        subprocess.Popen(["/bin/sleep", "100"]) as trainer,
        subprocess.Popen(
            [sys.executable, "-P", "-c", work, rig.uuid, str(draw.randrange(100)),
             str(trainer.pid), *plan],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as launcher,
    ):  # fmt: skip
        pid = trainer.pid
        try:
            if rig.work is not Work.LEARNED:
                controller = int(launcher.stdout.readline())  # type: ignore[union-attr]
            else:  # it starts both
                until_s = CLOCK.now_s() + WITHIN_S
                while len(children := children_of(launcher.pid)) < 2 and CLOCK.now_s() < until_s:  # noqa: PLR2004
                    CLOCK.sleep_s(LOOK_S)
                pid, controller = children
            yield pid, launcher, controller
        finally:
            send(pid, signal.SIGKILL)
            trainer.kill()
            launcher.kill()


def children_of(pid: int) -> list[int]:
    """Return a process's children in the order they were started; none where it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    return []


def _by_timer(rig: Rig, kill: Kill, begun_s: float, wait_s: float) -> Kill:
    """Have `restore --all` run as a timer does, and look until all is as found."""
    CLOCK.sleep_s(wait_s)
    started_s = seen_s = CLOCK.now_s()
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "underclock", "restore", "--all"], stdout=subprocess.DEVNULL
    ) as restoring:
        while restoring.poll() is None:
            looked_s = CLOCK.now_s()
            if not rig.is_clean():
                seen_s = looked_s
            CLOCK.sleep_s(LOOK_S)
    return replace(
        kill,
        took_s=seen_s - begun_s,
        mended=restoring.returncode == 0 and rig.is_clean(),
        period_s=PERIOD_S,
        restored_s=seen_s - started_s,
    )


def send(pid: int | None, number: signal.Signals) -> None:
    """Send a process a signal, if there is one."""
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _look(
    rig: Rig, controller: int, guardians: set[Process | None], trainer: int | None
) -> tuple[float | None, bool]:
    """Look until all guardians ended or stopped; return when something was last set, and if any.

    A trainer is ended after some time, where the launcher waits for its end.
    """
    until_s, ends_s = CLOCK.now_s() + WITHIN_S, CLOCK.now_s() + TRAINS_S
    seen_s: float | None = None
    while CLOCK.now_s() < until_s:
        looked_s = CLOCK.now_s()
        if rig.state() != rig.found:
            seen_s = looked_s
        pid = rig.watchdog_of(controller)
        guardians.add(Process.of(pid) if pid else None)
        if not any(one and one.lives and not one.stopped for one in guardians):
            break
        if looked_s > ends_s:
            send(trainer, signal.SIGKILL)
        CLOCK.sleep_s(LOOK_S)
    return seen_s, seen_s is not None


def summary(kills: list[Kill]) -> str:
    """Say what came of all kills."""
    guarded = [kill for kill in kills if not kill.nobody_left]
    nobody = [kill for kill in kills if kill.nobody_left]
    held = [kill for kill in guarded if kill.was_set]
    late = [kill for kill in held if kill.took_s > LIMIT_S]
    alone = [kill for kill in late if kill.only_launcher_left]
    stopped = sum(signal.SIGSTOP in kill.signals for kill in alone)
    took_s = [kill.took_s for kill in held]
    two_s = [kill.took_s for kill in held if not kill.only_launcher_left]
    by_timer = [kill for kill in nobody if kill.period_s]
    waited, restored = (
        _spread([getattr(k, n) for k in by_timer]) for n in ("took_s", "restored_s")
    )
    return (
        f"- As found, where a guardian was left: **{sum(not kill.left for kill in guarded)} of "
        f"{len(guarded)}**. In {len(held)} of them something was still set after the last signal. "
        f"Time to as found of these: {_quantiles(took_s)}; {len(late)} took longer than "
        f"{1e3 * LIMIT_S:.0f} ms (wanted: none). Of those {len(alone)} had only the launcher left, "
        f"{stopped} of them beside a controller or watchdog that was stopped.\n"
        f"- Where controller or watchdog was left: {_quantiles(two_s)}.\n"
        f"- All guardians killed, or stopped for good: {len(nobody)}, of which "
        f"{sum(kill.left for kill in nobody)} left something set, or a journal; "
        f"{sum(kill.mended for kill in nobody)} were as found after the timer's `restore --all` or "
        f"the next start. By a timer of {PERIOD_S:g} s, {len(by_timer)} times: {waited}; from the "
        f"start of `restore --all` alone: {restored}."
    )


def rows(kills: list[Kill]) -> str:
    """Return the table by who was killed."""
    heads = ("killed, in order", "kills", "with SIGSTOP", "something was set", "as found", "most")
    lines: list[Sequence[object]] = [heads]
    for victims in VICTIMS:
        these = [kill for kill in kills if kill.victims == victims]
        took_s = [kill.took_s for kill in these if kill.was_set and not kill.left]
        stopped = sum(signal.SIGSTOP in kill.signals for kill in these)
        was_set, good = (sum(kill.was_set for kill in these), sum(not kill.left for kill in these))
        most = f"{1e3 * max(took_s):.0f} ms" if took_s else ""
        lines.append((", ".join(victims), len(these), stopped, was_set, good, most))
    return markdown(lines)


def _quantiles(took_s: list[float]) -> str:
    half, most_of, most = 1e3 * np.quantile(took_s or [0.0], (0.5, 0.99, 1.0))
    return f"p50 {half:.0f} ms, p99 {most_of:.0f} ms, most {most:.0f} ms"


def _spread(took_s: list[float]) -> str:
    if not took_s:
        return "never"
    return f"p50 {np.median(took_s):.1f} s, most {max(took_s):.1f} s"


def kills_of(work: Work, count: int, seed: int) -> list[Kill]:
    """Kill so often, one after the other."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    draw = random.Random(seed)  # noqa: S311 - which kill comes next
    kills: list[Kill] = []
    with (
        contextlib.suppress(KeyboardInterrupt),  # the page then has the kills so far
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder)) as runs,
    ):
        rig = Rig(runs, work)
        for number in range(count):
            kill = kill_once(rig, draw)
            kills.append(kill)
            if kill.left and not (kill.nobody_left and kill.mended):
                print(f"{number}: {kill}", file=sys.stderr)
            if not rig.is_clean():
                raise SystemExit(f"found {rig.found}, left {rig.state()} after {kill}")
    return kills


def main() -> None:
    """Kill as often as asked, print what came of it, and fill the page of many."""
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("--jobs", type=int, default=1)
    for work in (Work.GOVERNED, Work.MEASURED, Work.LEARNED):
        parser.add_argument(f"--{work.name.lower()}", dest="work", action="store_const", const=work)
    asked = parser.parse_args()
    work = asked.work or Work.HELD
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    )
    counts = [len(range(at, asked.count, asked.jobs)) for at in range(asked.jobs)]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # those that kill end, and say what came so far
    seeds = range(asked.seed, asked.seed + asked.jobs)
    with ProcessPoolExecutor(asked.jobs) as pool:
        found = pool.map(kills_of, [work] * asked.jobs, counts, seeds)
        kills = [kill for some in found for kill in some]
    whole, repeats = asked.count >= _ENOUGH, f"{len(kills)} kills, fresh processes for each."
    if work is Work.HELD:
        parts = {"summary": summary(kills), "rows": rows(kills)}
        fill("kills", parts, repeats=repeats, whole=whole)
    else:
        made = f"{made_by(repeats)}\n\n{summary(kills)}"
        fill("kills", {work.name.lower(): made}, whole=whole)


if __name__ == "__main__":
    main()
