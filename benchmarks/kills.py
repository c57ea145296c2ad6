"""Kills trainer, conductor, watcher and pairs of them at random, and times the return to as found.

    python benchmarks/kills.py COUNT [SEED] > docs/evidence/kills.md

A simulated GPU is served by a process of its own, so what is set on it outlives whoever set it, as
on a real driver. The conductor sets clocks, power limit and persistence every 2 ms. Who is killed,
by which signal and when are random: while processes start, while they arm, while a setter or the
undo runs. The trainer is any process (`sleep`): the undo knows nothing of it but its end.

A kill counts as good only if, once conductor and watcher have ended, locks, limit and persistence
are as found and no journal is left. Its time runs from the last signal to the last look at which
something was still set; looks are about 1 ms apart.
"""

import contextlib
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from underclock.hw.clock import SystemClock
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.hw.served_simulator import SIMULATOR
from underclock.hw.settable import SettableNvmlGpu, Setting
from underclock.runtime.conductor.starting import Conducting
from underclock.runtime.undo.ownership import RUNTIME_DIR, named_in
from underclock.runtime.undo.processes import Process
from underclock.runtime.undo.restore import left_behind, restore

WITHIN_S = 5.0
LOOK_S = 1e-3
HELD_S = 0.06  # kills come up to so long after everything is armed
TARGET_MS, LIMIT_S = 100.0, 0.2
CLOCK = SystemClock()


PAGE = """# Kills, and what they leave behind

Made by `python benchmarks/kills.py {count} {seed}`; one run, fresh processes for each kill.
Machine: {machine}, Python {python}; load average at the end {load:.1f}, from
other work that ran beside it. The GPU is **simulated**; processes, signals and times are real.

{how}

- As found, where conductor or watcher was left: **{good} of {alone}**. In {held} of them something
  was still set after the last signal.
- Time to as found of these {held}: p50 {p50_ms:.0f} ms, p99 {p99_ms:.0f} ms (wanted:
  100 ms{missed}), most {most_ms:.0f} ms; {late} took longer than {limit_ms:.0f} ms (wanted: none).
- Conductor and watcher both killed, or stopped for good: {both}, of which {before} left something
  set, or a journal. After `restore` or the next start {after} of {both} were as found.

| killed, in order | by | kills | something was set | as found | p50 | p99 | most |
|---|---|---:|---:|---:|---:|---:|---:|
"""


class Victim(StrEnum):
    """Who is killed."""

    TRAINER = "trainer"
    CONDUCTOR = "conductor"
    WATCHER = "watcher"


T, C, W = Victim.TRAINER, Victim.CONDUCTOR, Victim.WATCHER
VICTIMS = ((T,), (C,), (W,), (T, C), (T, W), (C, T), (W, T), (C, W), (W, C))
DEADLY = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
SIGNALS = (*DEADLY, signal.SIGSTOP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """What was done, and what came of it.

    Attributes:
        victims: Who was killed, in order.
        signals: By what.
        armed: Whether everything was armed when the first signal was sent.
        took_s: From the last signal that could end the run to as found.
        was_set: Whether anything was seen set after that signal.
        left: What was still set once nobody was left to undo it, before the next start.
        mended: Whether all was as found after `restore`, where something was left.
    """

    victims: tuple[Victim, ...]
    signals: tuple[signal.Signals, ...]
    armed: bool
    took_s: float
    was_set: bool
    left: bool
    mended: bool

    @property
    def nobody_left(self) -> bool:
        """Whether conductor and watcher were both killed, or stopped for good."""
        final = {signal.SIGKILL, signal.SIGSTOP}
        by = dict(zip(self.victims, self.signals, strict=True))
        return by.get(C) in final and by.get(W) in final


class Rig:
    """One served GPU, and what is set on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uuid = NvmlGpu(0).uuid()
        self._gpu = SettableNvmlGpu(self.uuid)
        self.found = self.state()

    def state(self) -> tuple[object, ...]:
        """Return everything that may be set."""
        return tuple(self._gpu.read(setting) for setting in Setting)

    def restore(self) -> bool:
        """Restore what is left; return whether all is as found then."""
        undone = restore(self.folder, left_behind(self.folder), SettableNvmlGpu)
        return not any(one.failed for one in undone) and self.is_clean()

    def start_again(self) -> bool:
        """Start the next run, which changes nothing; return whether all is as found then."""
        conducting = Conducting.start(
            [self.uuid], work="underclock.runtime.conductor.hold:begin", options={}
        )
        conducting.armed()
        conducting.end()
        conducting.close()
        return self.is_clean()

    def is_clean(self) -> bool:
        """Whether everything is as found, and no journal is left."""
        return self.state() == self.found and not left_behind(self.folder)

    def watcher_of(self, conductor: int) -> int | None:
        """Return the conductor's watcher, as soon as there is one."""
        try:
            children = Path(f"/proc/{conductor}/task/{conductor}/children").read_text().split()
        except FileNotFoundError:
            children = []
        if children:
            return int(children[-1])
        _, watcher = named_in(self.folder / f"{self.uuid}.lock")
        return watcher.pid if watcher and watcher.lives else None


@contextmanager
def open_rig(folder: Path) -> Iterator[Rig]:
    """Serve a GPU from a process of its own."""
    socket = folder / "gpu.sock"
    server = subprocess.Popen(
        [sys.executable, "-m", "underclock", "simulate", "rtx3080ti", "--socket", str(socket)],
        stderr=subprocess.DEVNULL,
    )
    try:
        while not socket.exists():
            CLOCK.sleep_s(0.01)
        os.environ[SIMULATOR] = str(socket)
        os.environ[RUNTIME_DIR] = str(folder / "run")
        (folder / "run").mkdir(mode=0o700)
        with nvml_session():
            yield Rig(folder / "run")
    finally:
        server.terminate()
        server.wait()


def kill_once(rig: Rig, draw: random.Random) -> Kill:
    """Start a run, kill at random, and wait until nobody is left who could undo."""
    victims = draw.choice(VICTIMS)
    signals = tuple(draw.choice(DEADLY if one is T else SIGNALS) for one in victims)
    with subprocess.Popen(["/bin/sleep", "100"]) as trainer:
        conducting = Conducting.start(
            [rig.uuid],
            work="kills_work:begin",
            options={"first": draw.randrange(100)},
            trainer_pid=trainer.pid,
        )
        armed = draw.random() < 0.7  # noqa: PLR2004 - most kills come while something is set
        if armed:
            conducting.armed()
        CLOCK.sleep_s(draw.uniform(0.0, HELD_S if armed else 0.4))
        watcher = rig.watcher_of(conducting.process.pid)
        pids = {T: trainer.pid, C: conducting.process.pid, W: watcher}
        watchers = {Process.of(watcher) if watcher else None}
        for victim, number in zip(victims, signals, strict=True):
            _send(pids[victim], number)
            if victim is not victims[-1]:
                CLOCK.sleep_s(draw.choice((0.0, 0.0, draw.uniform(0.0, 0.05))))
        if victims == (W,):  # then everything goes on: the trainer's end comes next
            CLOCK.sleep_s(draw.uniform(0.0, 0.3))
            _send(trainer.pid, signal.SIGKILL)
        took_s, was_set, left, mended = _outcome(rig, conducting, watchers, draw)
        trainer.kill()
    return Kill(
        victims=victims,
        signals=signals,
        armed=armed,
        took_s=took_s,
        was_set=was_set,
        left=left,
        mended=mended,
    )


def _send(pid: int | None, number: signal.Signals) -> None:
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _outcome(
    rig: Rig, conducting: Conducting, watchers: set[Process | None], draw: random.Random
) -> tuple[float, bool, bool, bool]:
    """Look until conductor and watchers have ended, or are stopped for good.

    Returns:
        How long until all was as found, whether anything was seen set, whether anything was left,
        and whether a restore or the next start mended that.
    """
    begun_s = seen_s = CLOCK.now_s()
    conductor = Process.of(conducting.process.pid)
    was_set = False
    while CLOCK.now_s() < begun_s + WITHIN_S:
        looked_s = CLOCK.now_s()
        if rig.state() != rig.found:
            seen_s, was_set = looked_s, True
        pid = rig.watcher_of(conducting.process.pid)
        watchers.add(Process.of(pid) if pid else None)
        if not any(one and one.lives and not one.stopped for one in (conductor, *watchers)):
            break
        CLOCK.sleep_s(LOOK_S)
    left = not rig.is_clean()
    mended = (rig.restore() if draw.random() < 0.5 else rig.start_again()) if left else True  # noqa: PLR2004
    for one in (conductor, *watchers):
        if one and one.lives:  # stopped, and had nothing to undo
            _send(one.pid, signal.SIGKILL)
    conducting.close()
    return seen_s - begun_s, was_set, left, mended


def page(kills: list[Kill], seed: int) -> str:
    """Return the page: what was done, and what came of it."""
    alone = [kill for kill in kills if not kill.nobody_left]
    both = [kill for kill in kills if kill.nobody_left]
    held = [kill for kill in alone if kill.was_set]
    took_ms = 1e3 * np.array([kill.took_s for kill in held])
    p99_ms = float(np.quantile(took_ms, 0.99))
    text = PAGE.format(
        count=len(kills),
        seed=seed,
        machine=f"{platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}",
        python=platform.python_version(),
        load=os.getloadavg()[0],
        how=(__doc__ or "").partition("evidence/kills.md\n")[2].strip(),
        alone=len(alone),
        good=sum(not kill.left for kill in alone),
        held=len(held),
        p50_ms=np.median(took_ms),
        p99_ms=p99_ms,
        missed="" if p99_ms <= TARGET_MS else ", **missed**",
        most_ms=took_ms.max(),
        late=sum(kill.took_s > LIMIT_S for kill in alone),
        limit_ms=1e3 * LIMIT_S,
        both=len(both),
        before=sum(kill.left for kill in both),
        after=sum(kill.mended for kill in both),
    )
    rows = []
    for victims in VICTIMS:
        for stopped in (False, True):
            these = [
                kill
                for kill in kills
                if kill.victims == victims and (signal.SIGSTOP in kill.signals) == stopped
            ]
            if these:
                rows.append(_row(victims, these, stopped=stopped))
    return text + "\n".join(rows) + "\n"


def _row(victims: tuple[Victim, ...], kills: list[Kill], *, stopped: bool) -> str:
    took_s = np.array([kill.took_s for kill in kills if kill.was_set and not kill.left])
    cells = [
        f"{1e3 * float(np.quantile(took_s, q)):.0f} ms" if len(took_s) else ""
        for q in (0.5, 0.99, 1)
    ]
    by = "SIGSTOP among them" if stopped else "SIGKILL, SIGTERM, SIGINT"
    good = sum(not kill.left for kill in kills)
    return (
        f"| {', '.join(victims)} | {by} | {len(kills)} | {sum(kill.was_set for kill in kills)} "
        f"| {good} | {' | '.join(cells)} |"
    )


def main() -> None:
    """Kill as often as asked, and print the page."""
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0  # noqa: PLR2004
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    draw = random.Random(seed)  # noqa: S311 - which kill comes next
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    )
    kills: list[Kill] = []
    with (
        contextlib.suppress(KeyboardInterrupt),  # the page then tells of the kills so far
        tempfile.TemporaryDirectory() as folder,
        open_rig(Path(folder)) as rig,
    ):
        for number in range(count):
            kill = kill_once(rig, draw)
            kills.append(kill)
            if kill.left and not (kill.nobody_left and kill.mended):
                print(f"{number}: {kill}", file=sys.stderr)
            if not rig.is_clean():
                raise SystemExit(f"found {rig.found}, left {rig.state()} after {kill}")
    print(page(kills, seed), end="")


if __name__ == "__main__":
    main()
