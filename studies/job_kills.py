"""Kills ranks, their launcher, controller, watchdog and `underclock run` of a job of four ranks.

    nice python studies/job_kills.py COUNT [SEED]

Four simulated GPUs are served by a process of its own, so what is set on them outlives whoever set
it. `underclock run` holds a job's plan on them: its controller follows four ranks, which mark their
iterations at the plan's times without PyTorch, and are ended by their launcher 1 s after one ended.
Who is killed is random, up to two at once by SIGKILL, and when: while processes start, while they
arm, while clocks change with every instruction.

Controller, watchdog and `underclock run` are guardians: one is left each time. A kill counts as
good only if, once all have ended, every clock of every GPU is as found and no journal is left. Its
time runs from the signal to the last look at which anything was set on any GPU, whoever ended what.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import job_kills_work
from kills import CLOCK, C, L, T, Victim, W, send, served
from pages import fill, markdown
from underclock.core.job.network import network_of
from underclock.core.job.schedules import Layout, pipeline
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import SettableNvmlGpu
from underclock.records import Arm, Cost, Evidence, GpuInfo, Status, Strategy
from underclock.records.job import Held, Job, JobPlan, Profile, ProfileRow, Waiting
from underclock.runtime.undo.guarded_gpu import left_behind
from underclock.runtime.undo.ownership import Process, named_in
from underclock.store import write_document
from underclock.units import Domain

RANKS = 4
WITHIN_S, LOOK_S = 30.0, 5e-3
R, RR = "a rank", "two ranks"
WHO: tuple[tuple[Victim | str, ...], ...] = (
    (R,), (RR,), (T,), (C,), (W,), (L,), (R, C), (R, W), (R, L), (T, C), (T, W), (C, W), (C, L),
    (L, W),
)  # fmt: skip
_NAMES: dict[str, str] = {T: "the ranks' launcher", L: "underclock run"}
_LAUNCH = "import job_kills_work; job_kills_work.launch()"
_UNIT_S = 4e-3
_ENOUGH = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """Who was killed, and what came of it.

    Attributes:
        who: In order.
        was_set: Whether a clock was set when the last signal was sent, on how many GPUs.
        took_s: From then until nothing was.
        good: Whether all is as found, and no journal left.
    """

    who: tuple[str, ...]
    was_set: int
    took_s: float
    good: bool


def plan() -> JobPlan:
    """Return a plan whose forwards are slow and whose backwards are not, on four stages."""
    auto = ProfileRow(time_s=_UNIT_S, energy_j=2.0)
    locked = (
        ProfileRow(core_mhz=mhz, time_s=_UNIT_S * 1800 / mhz, energy_j=mhz / 1e3)
        for mhz in (1200, 1710)
    )
    rows = auto, *locked
    profiles = {
        f"stage {stage} {kind}": Profile(rows=rows, auto=0)
        for stage in range(RANKS)
        for kind in ("forward", "backward")
    }
    job = pipeline(
        "1f1b",
        Layout(stages=RANKS, microbatches=RANKS),
        profiles,
        waiting=dict.fromkeys(range(RANKS), (Waiting(power_w=60.0),)),
        gpu=GpuInfo(name="RTX 3080 Ti"),
        workload="killed",
        evidence=Evidence.SIMULATED,
    )
    return JobPlan(
        evidence=Evidence.SIMULATED,
        job=job,
        max_slowdown=0.9,
        latency_s=2e-3,
        chosen=Strategy.INSTRUCTION,
        arms=(
            Arm(Strategy.AUTO, _cost(job, 0, 0), Status.BASELINE),
            Arm(Strategy.INSTRUCTION, _cost(job, 1, 2), Status.BOUNDED, gap=0.0),
        ),
        clocks=tuple(
            tuple(Held(row=1 + ("backward" in (each.profile or ""))) for each in rank.instructions)
            for rank in job.ranks
        ),
    )


def _cost(job: Job, forward: int, backward: int) -> Cost:
    """Return what rows of forwards and backwards cost, waiting apart."""
    totals = []
    for rows in ((0, 0), (forward, backward)):
        every = [
            job.profiles[each.profile or ""].rows[rows["backward" in (each.profile or "")]]
            for rank in job.ranks
            for each in rank.instructions
        ]
        time_s = float(network_of(job).iteration_s(np.array([row.time_s for row in every])))
        totals.append((time_s, sum(row.energy_j or 0.0 for row in every)))
    (auto_s, auto_j), (time_s, energy_j) = totals
    return Cost(
        time_s=time_s,
        energy_j=energy_j,
        time_change=time_s / auto_s - 1.0,
        energy_change=energy_j / auto_j - 1.0,
    )


class Rig:
    """Served GPUs, and what is set on them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, folder / "runs"
        self.plan, self.log = folder / "job.plan.json", folder / "log.jsonl"
        write_document(self.plan, plan())
        self.uuids = [NvmlGpu(at).uuid() for at in range(RANKS)]
        self._gpus = [SettableNvmlGpu(uuid) for uuid in self.uuids]
        self.found = self.state()

    def state(self) -> list[tuple[object, ...]]:
        """Return everything that may be set, of each GPU."""
        return [tuple(gpu.read(setting) for setting in Domain) for gpu in self._gpus]

    def changed(self) -> int:
        """Return on how many GPUs anything is set."""
        return sum(now != found for now, found in zip(self.state(), self.found, strict=True))

    @property
    def is_clean(self) -> bool:
        """Whether everything is as found, and no journal is left."""
        return not self.changed() and not left_behind(self.runs)

    def guardians(self) -> tuple[Process | None, Process | None]:
        """Return controller and watchdog, as the first GPU's lock names them."""
        return named_in(self.runs / f"{self.uuids[0]}.lock")


def kill_once(rig: Rig, draw: random.Random, who: tuple[Victim | str, ...] = ()) -> Kill:
    """Run the job, kill at random, or who is said, and wait until everybody has ended."""
    who = who or draw.choice(WHO)
    pids_at = rig.folder / "pids"
    pids_at.unlink(missing_ok=True)
    environment = {**os.environ, job_kills_work.PIDS: str(pids_at)}
    ranks = [sys.executable, "-P", "-c", _LAUNCH, str(RANKS)]
    command = [sys.executable, "-P", "-m", "underclock", "run", str(rig.plan), "--guard", "0"]
    command += ["--log", str(rig.log)]
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(
        [*command, "--", *ranks], env=environment, stdout=nowhere, stderr=nowhere
    ) as run:
        held = draw.random() < 0.8  # noqa: PLR2004 - most kills come while something is set
        if held:
            _wait(lambda: rig.changed() == RANKS or run.poll() is not None)
            CLOCK.sleep_s(draw.uniform(0.0, 0.3))
        else:
            CLOCK.sleep_s(draw.uniform(0.0, 1.5))
        controller, watchdog = rig.guardians()
        started = json.loads(pids_at.read_text()) if pids_at.exists() else []
        victims: list[int | None] = []
        for each in who:
            some = draw.sample(started[1:], 2 if each is RR else 1) if started else []
            named: dict[str, list[Process | int | None]] = {
                T: started[:1], C: [controller], W: [watchdog], L: [run.pid]
            }  # fmt: skip
            found = named.get(each, some)
            victims += [one.pid if isinstance(one, Process) else one for one in found]
        was_set = rig.changed()
        for pid in victims:
            send(pid, signal.SIGKILL)
            CLOCK.sleep_s(draw.choice((0.0, 0.0, draw.uniform(0.0, 0.05))))
        sent_s = seen_s = CLOCK.now_s()
        goes_on_s = sent_s + 0.4
        until_s = sent_s + WITHIN_S
        while CLOCK.now_s() < until_s:
            if rig.changed():
                seen_s = CLOCK.now_s()
            if CLOCK.now_s() > goes_on_s:  # what was killed need not end the run
                for pid in json.loads(pids_at.read_text()) if pids_at.exists() else ():
                    send(pid, signal.SIGKILL)
                if run.poll() is None and not started and not rig.changed():
                    run.terminate()
            controller, watchdog = rig.guardians()
            alive = [one for one in (controller, watchdog) if one is not None and one.lives]
            if run.poll() is not None and not alive:
                break
            CLOCK.sleep_s(LOOK_S)
        run.kill()
    names = tuple(str(_NAMES.get(each, each)) for each in who)
    return Kill(who=names, was_set=was_set, took_s=seen_s - sent_s, good=rig.is_clean)


def _wait(condition: Callable[[], bool]) -> None:
    until_s = CLOCK.now_s() + WITHIN_S
    while not condition() and CLOCK.now_s() < until_s:
        CLOCK.sleep_s(LOOK_S)


def summary(kills: list[Kill]) -> str:
    """Say what came of all."""
    held = [kill for kill in kills if kill.was_set]
    took_ms = 1e3 * np.array([kill.took_s for kill in held] or [0.0])
    half, most_of = (float(np.quantile(took_ms, q)) for q in (0.5, 0.99))
    return (
        f"- Every GPU as found: **{sum(kill.good for kill in kills)} of {len(kills)}**. In "
        f"{len(held)} of them clocks were set when the signal was sent, on {RANKS} GPUs in "
        f"{sum(kill.was_set == RANKS for kill in held)}.\n"
        f"- Time of those until nothing was set on any GPU: p50 {half:.0f} ms, p99 {most_of:.0f} "
        f"ms, most {took_ms.max():.0f} ms."
    )


def rows(kills: list[Kill]) -> str:
    """Return the table by who was killed."""
    lines: list[tuple[object, ...]] = [
        ("killed, in order", "kills", "clocks were set", "every GPU as found", "p50", "most")
    ]
    for who in sorted({kill.who for kill in kills}, key=lambda each: (len(each), each)):
        these = [kill for kill in kills if kill.who == who]
        took_s = [kill.took_s for kill in these if kill.was_set]
        times = (np.median(took_s), max(took_s)) if took_s else ()
        cells = [f"{1e3 * float(each):.0f} ms" for each in times] or ["", ""]
        good = sum(kill.good for kill in these)
        lines.append((", ".join(who), len(these), len(took_s), good, *cells))
    return markdown(lines)


def main() -> None:
    """Kill as often as asked, and fill the page of many."""
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0  # noqa: PLR2004
    stop: list[int] = []  # asked to by Ctrl-C: never in the middle of a call
    signal.signal(signal.SIGINT, lambda number, _: stop.append(number))
    draw = random.Random(seed)  # noqa: S311 - which kill comes next
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    kills: list[Kill] = []
    with tempfile.TemporaryDirectory() as folder, served(Path(folder), RANKS):
        rig = Rig(Path(folder))
        for number in range(count):
            if stop:  # the page then tells of the kills so far
                break
            kills.append(kill_once(rig, draw))
            if not kills[-1].good:
                print(f"{number}: {kills[-1]}: {rig.state()}", file=sys.stderr)
                raise SystemExit(1)
            if number % 20 == 19:  # noqa: PLR2004
                print(f"{number + 1}: {summary(kills)}", file=sys.stderr)
    parts = {"summary": summary(kills), "rows": rows(kills)}
    repeats = f"{len(kills)} kills, fresh processes for each."
    fill("job_kills", parts, repeats=repeats, whole=len(kills) >= _ENOUGH)


if __name__ == "__main__":
    main()
